"""Scores of items: the probabilities of all sources, mixed by the gating network and rescaled item by item.

The gating network turns the query's features into a weight for every source (`gates`); the weighted sum of the
sources is a probability. The rescaling network then multiplies the probability of the most probable candidates by a
factor, from the candidate's features and its probability under every source; all other items keep theirs. Both
networks are evaluated here with plain loops; gating.py has them as torch modules.

Events of a window are in the index before they are scored, and a score reads only what is before its own clock, so
threads score any of them in any order. Popularity alone is a running count: a thread has its own copy.

Legend: n events or queries, C items to score given by the caller, I items, H half-lives, M = 1 + H + CONTEXT_SOURCES
sources: uniform, popularity by half-life, contexts.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from dynedge.models.count_memory.candidates import (
    ITEM_FEATURES,
    SEEN,
    CandidateBuffer,
    Query,
    clear,
    collect_candidates,
    set_staleness,
)
from dynedge.models.count_memory.contexts import CONTEXT_SOURCES, CountSettings
from dynedge.models.count_memory.event_index import (
    LENGTH,
    NONE,
    RECENT_EVENTS,
    EventIndex,
    Popularity,
    count_popularity,
)
from dynedge.utils.array_type import Array
from dynedge.utils.numba_compile import compiled

FIXED_INPUTS = CONTEXT_SOURCES + ITEM_FEATURES  # of the rescaling network per item; then popularity by half-life
SEEN_INPUT = CONTEXT_SOURCES + SEEN  # the input that is 1 for the user's own items
NEGLIGIBLE = 1e-3  # a probability under a source far below this is close to an input of 0
CHUNK = 2048  # items
VECTORISED = {"reassoc", "contract", "nsz"}  # sums of floats in any order


class NetworkWeights(NamedTuple):
    """The weights of both networks as float32 arrays; hidden sizes may be 0."""

    gating_in: Array  # [hidden, QUERY_FEATURES]
    gating_bias: Array  # [hidden]
    gating_out: Array  # [M, hidden]
    gating_logits: Array  # [M]: without the hidden layer
    rescaling_in: Array  # [FIXED_INPUTS + H, hidden]
    rescaling_query: Array  # [hidden, QUERY_FEATURES]
    rescaling_bias: Array  # [hidden]
    rescaling_out: Array  # [hidden]
    rescaling_seen: Array  # [1]: added to the log factor of the user's own items


class Events(NamedTuple):
    """A window whose events are in the index."""

    user: Array  # [n]
    item: Array  # [n]
    time: Array  # float64[n]
    place: Array  # int32[n]: in the user's history
    clock: int  # of the first event
    latest_items: Array  # int32[RECENT_EVENTS + n]: items of the log's events up to the last one of the window


@compiled
def query_of(events: Events, k: int) -> Query:
    """Returns event k of a window as a query."""
    latest = events.latest_items[k : k + RECENT_EVENTS]
    return Query(events.user[k], events.place[k], events.clock + k, events.time[k], latest)


@compiled
def compute_gates(networks: NetworkWeights, buffer: CandidateBuffer, half_lives: int, out: Array) -> None:
    """Evaluates the gating network into out[M]: a softmax over the sources that have seen something."""
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
        if m > half_lives and buffer.totals[m - 1 - half_lives] <= 0:
            total = np.float32(-np.inf)
        out[m] = total
        top = max(top, total)
    total = np.float32(0)
    for m in range(len(out)):
        out[m] = np.exp(out[m] - top)
        total += out[m]
    for m in range(len(out)):
        out[m] /= total


@compiled(inline="always")
def rescaling_inputs(
    index: EventIndex, popularity: Popularity, buffer: CandidateBuffer, slot: int, out: Array
) -> None:
    """Writes out[FIXED_INPUTS + H]: log probabilities by source, item features, popularity by half-life.

    After `set_staleness`.
    """
    for s in range(CONTEXT_SOURCES):
        out[s] = 0.0
        if buffer.sums[slot, s] > 0:
            probability = buffer.sums[slot, s] / buffer.totals[s]
            out[s] = 0.3 * (np.log(np.float32(NEGLIGIBLE + probability)) - np.float32(np.log(NEGLIGIBLE)))
    item = buffer.items[slot]
    for s in range(ITEM_FEATURES):
        out[CONTEXT_SOURCES + s] = buffer.item_features[slot, s]
    for h in range(len(popularity.total)):
        share = popularity.counts[h, item] / max(popularity.total[h], 1e-30)
        out[FIXED_INPUTS + h] = 0.3 * np.log1p(np.float32(index.num_items * share))


@compiled
def popularity_factors(popularity: Popularity, gates: Array) -> Array:
    """Returns float32[H]: what one unit of popularity adds to the probability of its item."""
    factor = np.zeros(len(popularity.total), np.float32)
    for h in range(len(factor)):
        if popularity.total[h] > 0:
            factor[h] = gates[1 + h] / popularity.total[h]
    return factor


@compiled
def _mix_global_sources(popularity: Popularity, gates: Array, out: Array) -> None:
    """Writes out[I]: the mixture of the sources that do not depend on the user."""
    factor, uniform = popularity_factors(popularity, gates), gates[0] / len(out)
    for start in range(0, len(out), CHUNK):  # a chunk of `out` stays in the first-level cache
        chunk = out[start : start + CHUNK]
        chunk[:] = uniform
        for h in range(len(factor)):
            counts, of_row = popularity.counts[h, start : start + CHUNK], factor[h]
            for i in range(len(chunk)):
                chunk[i] += of_row * counts[i]


@compiled(inline="always")
def global_probability(popularity: Popularity, gates: Array, factor: Array, items: int, item: int) -> np.float32:
    """Returns the same for one item."""
    total = np.float32(gates[0] / items)
    for h in range(len(factor)):
        total += factor[h] * popularity.counts[h, item]
    return total


@compiled(fastmath=VECTORISED)
def mix_sources(index: EventIndex, popularity: Popularity, gates: Array, buffer: CandidateBuffer, size: int) -> None:
    """Writes the mixture's probability of every candidate to the buffer."""
    first = 1 + len(popularity.total)
    factor, of_source = popularity_factors(popularity, gates), np.zeros(CONTEXT_SOURCES, np.float32)
    for s in range(CONTEXT_SOURCES):
        if buffer.totals[s] > 0:
            of_source[s] = gates[first + s] / buffer.totals[s]
    for slot in range(size):
        total = global_probability(popularity, gates, factor, index.num_items, buffer.items[slot])
        sums = buffer.sums[slot]
        for s in range(CONTEXT_SOURCES):
            total += of_source[s] * sums[s]
        buffer.probability[slot] = total


@compiled
def _rescaling_base(networks: NetworkWeights, buffer: CandidateBuffer) -> Array:
    """Returns float32[hidden]: what all candidates of a query have in common."""
    base = networks.rescaling_bias.copy()
    for a in range(len(base)):
        for b in range(len(buffer.query_features)):
            base[a] += networks.rescaling_query[a, b] * buffer.query_features[b]
    return base


@compiled(fastmath=VECTORISED)
def _rescale(
    index: EventIndex,
    popularity: Popularity,
    networks: NetworkWeights,
    query: Query,
    buffer: CandidateBuffer,
    slots: Array,
) -> np.float32:
    """Multiplies the probabilities of the candidates in `slots` by their factors; returns the mean log factor."""
    base = _rescaling_base(networks, buffer)
    inputs, units = np.empty(FIXED_INPUTS + len(popularity.total), np.float32), np.empty_like(base)
    total = np.float32(0)
    if len(base):
        set_staleness(index, query, buffer, slots)
    for slot in slots:
        log_factor = networks.rescaling_seen[0] * buffer.item_features[slot, SEEN]
        if len(base):
            rescaling_inputs(index, popularity, buffer, slot, inputs)
            units[:] = base
            for b in range(len(inputs)):
                value = inputs[b]
                if value != 0:  # most sources have not seen most candidates
                    for a in range(len(units)):
                        units[a] += value * networks.rescaling_in[b, a]
            for a in range(len(units)):
                log_factor += networks.rescaling_out[a] * max(units[a], np.float32(0))
        if log_factor != 0:
            buffer.probability[slot] *= np.exp(log_factor)
        total += log_factor
    return total / max(len(slots), 1)


@compiled
def _most_probable(buffer: CandidateBuffer, size: int, most: int) -> Array:
    """Returns the slots of the `most` most probable candidates; those that tie with the last one too."""
    if size <= most:
        return np.arange(size)
    threshold = np.partition(buffer.probability[:size], size - most)[size - most]
    return np.flatnonzero(buffer.probability[:size] >= threshold)


@compiled
def _scale_others(buffer: CandidateBuffer, size: int, rescaled: Array, factor: float) -> None:
    """Multiplies the probabilities of all candidates but the rescaled ones, whose slots ascend, by one factor."""
    place = 0
    for slot in range(size):
        if place < len(rescaled) and rescaled[place] == slot:
            place += 1
        else:
            buffer.probability[slot] *= factor


@compiled
def score_query(
    index: EventIndex,
    popularity: Popularity,
    settings: CountSettings,
    networks: NetworkWeights,
    query: Query,
    buffer: CandidateBuffer,
    candidates: Array,
    out: Array,
) -> None:
    """Writes out[C], the unnormalised probability of the given items, or out[I] of all items where out is as long."""
    size = collect_candidates(index, settings, query, buffer)
    gates = np.empty(len(networks.gating_logits), np.float32)
    compute_gates(networks, buffer, len(popularity.total), gates)
    mix_sources(index, popularity, gates, buffer, size)
    rescaled = _most_probable(buffer, size, settings.rescaled_items if len(networks.rescaling_bias) else size)
    mean_factor = np.exp(_rescale(index, popularity, networks, query, buffer, rescaled))
    _scale_others(buffer, size, rescaled, mean_factor)
    if len(candidates):
        factor = popularity_factors(popularity, gates)
        for c in range(len(candidates)):
            slot = buffer.slot[candidates[c]]
            if slot == NONE:
                out[c] = global_probability(popularity, gates, factor, index.num_items, candidates[c])
            else:
                out[c] = buffer.probability[slot]
    else:
        _mix_global_sources(popularity, gates, out)
        for slot in range(size):
            out[buffer.items[slot]] = buffer.probability[slot]
    clear(buffer, size)


@compiled
def score_events(
    index: EventIndex,
    popularity: Popularity,
    settings: CountSettings,
    networks: NetworkWeights,
    events: Events,
    start: int,
    stop: int,
    buffer: CandidateBuffer,
    candidates: Array,
    out: Array,
) -> None:
    """Scores the events start to stop - 1 of a window: out[n, C] for candidates [n, C], or out[n, I] where empty.

    `popularity` is that before event `start`, and advances to `stop`.
    """
    for k in range(start, stop):
        given = candidates[k] if len(candidates) else np.empty(0, np.int64)
        score_query(index, popularity, settings, networks, query_of(events, k), buffer, given, out[k])
        count_popularity(popularity, settings.weight_growth, events.item[k : k + 1])


@compiled
def score_queries(
    index: EventIndex,
    popularity: Popularity,
    settings: CountSettings,
    networks: NetworkWeights,
    user: Array,
    time: Array,
    buffer: CandidateBuffer,
    candidates: Array,
    out: Array,
) -> None:
    """Writes out[n, C] or out[n, I] for queries after all events of the index."""
    for k in range(len(user)):
        given = candidates[k] if len(candidates) else np.empty(0, np.int64)
        query = Query(user[k], index.user_blocks[user[k], LENGTH], index.clock[0], time[k], index.latest_items)
        score_query(index, popularity, settings, networks, query, buffer, given, out[k])
