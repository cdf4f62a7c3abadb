"""Scores of items: the probabilities of all sources, mixed by the gating network and rescaled item by item.

The gating network turns the query's features into a weight for every source (`gates`); the weighted sum of the
sources is a probability. The rescaling network then multiplies the probability of each candidate (an item that any
context has seen) by a factor, from the candidate's features and its probability under every source; all other items
keep theirs. Both networks are evaluated here with plain loops, event by event as the counts change; gating.py has
them as torch modules.

Legend: n events or queries, C items to score given by the caller, I items, H half-lives, M = 1 + H + CONTEXT_SOURCES
sources: uniform, popularity by half-life, contexts.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from dynedge.models.count_memory.candidates import ITEM_FEATURES, CandidateBuffer, clear, collect_candidates
from dynedge.models.count_memory.contexts import CONTEXT_SOURCES, ContextCounts, CountSettings, count_event
from dynedge.models.count_memory.hash_table import NONE
from dynedge.ops.lockstep_threads import fetch_increment
from dynedge.utils.array_type import Array
from dynedge.utils.numba_compile import compiled

RESCALING_INPUTS = CONTEXT_SOURCES + ITEM_FEATURES + 2  # per item, beside the query features
SEEN_INPUT = CONTEXT_SOURCES  # the input that is 1 for the user's own items
NEGLIGIBLE = 1e-3  # a probability under a source far below this is close to an input of 0
CHUNK = 2048  # items


class NetworkWeights(NamedTuple):
    """The weights of both networks as float32 arrays; hidden sizes may be 0."""

    gating_in: Array  # [hidden, QUERY_FEATURES]
    gating_bias: Array  # [hidden]
    gating_out: Array  # [M, hidden]
    gating_logits: Array  # [M]: without the hidden layer
    rescaling_in: Array  # [RESCALING_INPUTS, hidden]
    rescaling_query: Array  # [hidden, QUERY_FEATURES]
    rescaling_bias: Array  # [hidden]
    rescaling_out: Array  # [hidden]
    rescaling_seen: Array  # [1]: added to the log factor of the user's own items


@compiled
def compute_gates(networks: NetworkWeights, buffer: CandidateBuffer, half_lives: int, out: Array) -> None:
    """Evaluates the gating network into out[M]: a softmax over the sources that the mask allows."""
    hidden = np.zeros(len(networks.gating_bias), np.float32)
    for a in range(len(hidden)):
        total = networks.gating_bias[a]
        for b in range(len(buffer.query_features)):
            total += networks.gating_in[a, b] * buffer.query_features[b]
        hidden[a] = max(total, np.float32(0))
    top = np.float32(-np.inf)
    for m in range(len(out)):
        total = networks.gating_logits[m]
        for a in range(len(hidden)):
            total += networks.gating_out[m, a] * hidden[a]
        if m > half_lives and not buffer.source_mask[m - 1 - half_lives]:
            total = np.float32(-np.inf)
        out[m] = total
        top = max(top, total)
    total = np.float32(0)
    for m in range(len(out)):
        out[m] = np.exp(out[m] - top)
        total += out[m]
    for m in range(len(out)):
        out[m] /= total


@compiled
def rescaling_inputs(counts: ContextCounts, buffer: CandidateBuffer, slot: int, out: Array) -> None:
    """Writes out[RESCALING_INPUTS]: log probabilities by source, item features, popularity at two half-lives."""
    for s in range(CONTEXT_SOURCES):
        probability = buffer.probability[slot, s]
        out[s] = 0.3 * (np.log(NEGLIGIBLE + probability) - np.log(NEGLIGIBLE)) if probability > 0 else 0.0
    for s in range(ITEM_FEATURES):
        out[CONTEXT_SOURCES + s] = buffer.item_features[slot, s]
    items = counts.num_items
    for s in range(2):
        h = 0 if s == 0 else len(counts.popularity_total) // 2
        share = counts.popularity[h, buffer.items[slot]] / max(counts.popularity_total[h], 1e-30)
        out[CONTEXT_SOURCES + ITEM_FEATURES + s] = 0.3 * np.log1p(items * share)


@compiled
def _popularity_factors(counts: ContextCounts, gates: Array) -> Array:
    """Returns float32[H]: what one unit of popularity adds to the probability of its item."""
    factor = np.zeros(len(counts.popularity_total), np.float32)
    for h in range(len(factor)):
        if counts.popularity_total[h] > 0:
            factor[h] = gates[1 + h] / counts.popularity_total[h]
    return factor


@compiled
def _mix_global_sources(counts: ContextCounts, gates: Array, out: Array) -> None:
    """Writes out[I]: the mixture of the sources that do not depend on the context."""
    items, factor = len(out), _popularity_factors(counts, gates)
    for start in range(0, items, CHUNK):  # a chunk of `out` stays in the first-level cache
        stop = min(start + CHUNK, items)
        for i in range(start, stop):
            out[i] = gates[0] / items
        for h in range(len(factor)):
            row, of_row = counts.popularity[h], factor[h]
            for i in range(start, stop):
                out[i] += of_row * row[i]


@compiled
def _add_context_sources(
    counts: ContextCounts,
    networks: NetworkWeights,
    buffer: CandidateBuffer,
    gates: Array,
    slots: Array,
    places: Array,
    out: Array,
) -> None:
    """Adds the context sources to out[places[j]] for the candidate in slots[j], and rescales the sum."""
    half_lives, hidden = len(counts.popularity_total), len(networks.rescaling_bias)
    base, units = np.zeros(hidden, np.float32), np.zeros(hidden, np.float32)
    inputs = np.zeros(RESCALING_INPUTS, np.float32)
    for a in range(hidden):
        base[a] = networks.rescaling_bias[a]
        for b in range(len(buffer.query_features)):
            base[a] += networks.rescaling_query[a, b] * buffer.query_features[b]
    for j in range(len(slots)):
        slot, place = slots[j], places[j]
        probability = buffer.probability[slot]
        for s in range(CONTEXT_SOURCES):
            if probability[s] != 0:
                out[place] += gates[1 + half_lives + s] * probability[s]
        log_factor = networks.rescaling_seen[0] * buffer.item_features[slot, 0]
        if hidden:
            rescaling_inputs(counts, buffer, slot, inputs)
            units[:] = base
            for b in range(RESCALING_INPUTS):
                if inputs[b] != 0:  # most sources have not seen most candidates
                    row, value = networks.rescaling_in[b], inputs[b]
                    for a in range(hidden):
                        units[a] += value * row[a]
            for a in range(hidden):
                log_factor += networks.rescaling_out[a] * max(units[a], np.float32(0))
        if log_factor != 0:
            out[place] *= np.exp(log_factor)


@compiled
def score_all_items(
    counts: ContextCounts,
    settings: CountSettings,
    networks: NetworkWeights,
    user: int,
    time: float,
    buffer: CandidateBuffer,
    gates: Array,
    out: Array,
) -> None:
    """Writes out[I]: the unnormalised probability of every item. `gates` float32[M] is scratch."""
    size = collect_candidates(counts, settings, user, time, buffer)
    compute_gates(networks, buffer, len(counts.popularity_total), gates)
    _mix_global_sources(counts, gates, out)
    _add_context_sources(counts, networks, buffer, gates, np.arange(size), buffer.items[:size], out)
    clear(buffer, size)


@compiled
def score_candidates(
    counts: ContextCounts,
    settings: CountSettings,
    networks: NetworkWeights,
    user: int,
    time: float,
    buffer: CandidateBuffer,
    gates: Array,
    candidates: Array,
    out: Array,
) -> None:
    """Writes out[C] for the given items, as `score_all_items` does, at a cost that does not depend on I."""
    size = collect_candidates(counts, settings, user, time, buffer)
    compute_gates(networks, buffer, len(counts.popularity_total), gates)
    factor = _popularity_factors(counts, gates)
    slots, places, seen = np.empty(len(out), np.int64), np.empty(len(out), np.int32), 0
    for c in range(len(out)):
        item = candidates[c]
        out[c] = gates[0] / counts.num_items
        for h in range(len(factor)):
            out[c] += factor[h] * counts.popularity[h, item]
        if buffer.slot[item] != NONE:
            slots[seen], places[seen] = buffer.slot[item], c
            seen += 1
    _add_context_sources(counts, networks, buffer, gates, slots[:seen], places[:seen], out)
    clear(buffer, size)


@compiled
def score_and_count_events(
    counts: ContextCounts,
    settings: CountSettings,
    networks: NetworkWeights,
    user: Array,
    item: Array,
    time: Array,
    taken: Array,
    buffer: CandidateBuffer,
    candidates: Array,
    out: Array,
) -> None:
    """Scores each event, then counts it: out[n, C] for candidates [n, C], or out[n, I] where candidates are empty.

    Several threads may do so, each with its own counts. `taken` int64[n] is shared: every thread counts all events,
    and scores those that no other thread has taken.
    """
    gates = np.zeros(len(networks.gating_logits), np.float32)
    for k in range(len(user)):
        if fetch_increment(taken, k) == 0:
            if len(candidates):
                score_candidates(counts, settings, networks, user[k], time[k], buffer, gates, candidates[k], out[k])
            else:
                score_all_items(counts, settings, networks, user[k], time[k], buffer, gates, out[k])
        count_event(counts, settings, user[k], item[k], time[k])


@compiled
def score_queries(
    counts: ContextCounts,
    settings: CountSettings,
    networks: NetworkWeights,
    user: Array,
    time: Array,
    buffer: CandidateBuffer,
    out: Array,
) -> None:
    """Writes out[n, I] for queries; nothing is counted."""
    gates = np.zeros(len(networks.gating_logits), np.float32)
    for k in range(len(user)):
        score_all_items(counts, settings, networks, user[k], time[k], buffer, gates, out[k])
