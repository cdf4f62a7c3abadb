"""Training examples of the gating and rescaling networks, sampled from the events in order.

An example has the probability under every source of the true item, of the candidates that the current mixture ranks
highest, of a sample of the remaining candidates, and of all items together that no context has seen. That is close
to the full softmax: a sampled candidate is weighted by the number of candidates it represents. The more probable ones
are sampled more often: where there are many, samples of equal chance have large weights and are overfitted.

Legend: m sampled events, K candidates of each (the true item first), M sources in all.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from dynedge.models.count_memory.candidate_buffer import QUERY_FEATURES, CandidateBuffer, clear
from dynedge.models.count_memory.candidates import collect_candidates
from dynedge.models.count_memory.contexts import CONTEXT_SOURCES, CountSettings
from dynedge.models.count_memory.event_index import NONE, EventIndex
from dynedge.models.count_memory.network_kernels import FIXED_INPUTS, NetworkWeights, compute_gates, rescaling_inputs
from dynedge.models.count_memory.probabilities import mix_sources, nth_largest
from dynedge.models.count_memory.queries import Events, Query, query_of
from dynedge.models.count_memory.window_popularity import WindowPopularity, counts_before, pass_events
from dynedge.utils.array_type import Array
from dynedge.utils.numba_compile import compiled

TOP, SAMPLED = 16, 46
CANDIDATES = 2 + TOP + SAMPLED  # K: the true item, the items no context has seen, the top, a sample of the rest
SAMPLING_POWER = 0.75  # of a candidate's probability, to which its chance to be sampled is proportional
NO_CANDIDATE = np.float32(-1e9)  # log weight of an unused place


class Examples(NamedTuple):
    """Numpy arrays while they are collected, then tensors."""

    query_features: Any  # float32[m, QUERY_FEATURES]
    source_mask: Any  # bool[m, M]
    probability: Any  # float32[m, K, M]: of each candidate under each source
    inputs: Any  # float32[m, K, FIXED_INPUTS + H]
    log_weight: Any  # float32[m, K]: logarithm of how many candidates this one represents


def allocate_examples(events: int, sources: int) -> Examples:
    """Returns empty arrays for `events` examples."""
    return Examples(
        np.zeros((events, QUERY_FEATURES), np.float32),
        np.zeros((events, sources), np.bool_),
        np.zeros((events, CANDIDATES, sources), np.float32),
        np.zeros((events, CANDIDATES, FIXED_INPUTS + sources - 1 - CONTEXT_SOURCES), np.float32),
        np.full((events, CANDIDATES), NO_CANDIDATE),
    )


def to_tensors(examples: Examples, like: Tensor) -> Examples:
    """Moves examples to the device of a parameter.

    They stay there for all epochs, so the two large arrays are stored as bfloat16, except for a float64 parameter.
    """
    moved = Examples(*(torch.from_numpy(part).to(like.device) for part in examples))
    dtype = like.dtype if like.dtype == torch.float64 else torch.bfloat16
    return moved._replace(probability=moved.probability.to(dtype), inputs=moved.inputs.to(dtype))


@compiled
def collect_examples(
    index: EventIndex,
    window: WindowPopularity,
    settings: CountSettings,
    networks: NetworkWeights,
    events: Events,
    sampled: Array,
    offsets: Array,
    first: int,
    step: int,
    buffer: CandidateBuffer,
    latest: Array,
    out: Examples,
) -> None:
    """Writes the examples first, first + step, … of a window: of the events `sampled` int64[m], which ascend.

    `offsets` float64[m] in [0, 1) are the random starts of the systematic samples of candidates. `latest` is scratch
    of the thread, as in `counts_before`.
    """
    half_lives, passed = len(window.rescalings), 0
    own = np.empty((1, half_lives), np.float32)
    gates = np.zeros(len(networks.gating_logits), np.float32)
    for m in range(first, len(sampled), step):
        k = sampled[m]
        pass_events(latest, window.clock, events.item, passed, k)
        passed = k
        query, total = query_of(events, k), window.sampled_total[m]
        others, size = collect_candidates(index, settings, query, buffer)
        counts_before(window, m, buffer.items[:size], latest, buffer.popularity)
        counts_before(window, m, events.item[k : k + 1], latest, own)
        compute_gates(networks, buffer, half_lives, gates)
        mix_sources(index, total, gates, buffer, others, size)
        out.query_features[m] = buffer.query_features
        out.source_mask[m, : 1 + half_lives] = True
        out.source_mask[m, 1 + half_lives :] = buffer.totals > 0
        items, log_weights = _choose_candidates(buffer, size, events.item[k], offsets[m])
        out.log_weight[m, 0], out.log_weight[m, 2 : 1 + len(items)] = 0.0, log_weights[1:]
        _write_candidates(
            index, total, own[0], settings, query, buffer, others, items, out.probability[m], out.inputs[m]
        )
        _write_unseen(index, total, buffer, size, events.item[k], out, m)
        clear(buffer, size)


@compiled
def _choose_candidates(buffer: CandidateBuffer, size: int, true_item: int, offset: float) -> tuple[Array, Array]:
    """Returns the true item, the top candidates and a sample of the rest, and the log of how many each represents."""
    items, log_weights = np.empty(CANDIDATES - 1, np.int64), np.zeros(CANDIDATES - 1, np.float32)
    items[0], chosen = true_item, 1
    mixed = buffer.probability[:size]
    threshold = nth_largest(mixed, TOP) if size > TOP else np.float32(-1)
    rest, left, total = np.empty(size, np.int64), 0, 0.0
    for slot in range(size):
        if buffer.items[slot] == true_item:
            continue
        if mixed[slot] >= threshold and chosen <= TOP:
            items[chosen] = buffer.items[slot]
            chosen += 1
        else:
            rest[left] = slot
            left += 1
            total += mixed[slot] ** SAMPLING_POWER
    if left <= SAMPLED:
        for other in rest[:left]:
            items[chosen] = buffer.items[other]
            chosen += 1
        return items[:chosen], log_weights[:chosen]
    passed, taken = 0.0, 0  # systematic sampling: a point every total / SAMPLED, from a random start
    for other in rest[:left]:
        share, before = mixed[other] ** SAMPLING_POWER, taken
        passed += share
        while taken < SAMPLED and (taken + offset) * total < passed * SAMPLED:
            taken += 1
        if taken > before:
            items[chosen] = buffer.items[other]
            log_weights[chosen] = np.log((taken - before) * total / (SAMPLED * share))
            chosen += 1
    return items[:chosen], log_weights[:chosen]


@compiled
def _write_candidates(
    index: EventIndex,
    total: Array,
    own: Array,
    settings: CountSettings,
    query: Query,
    buffer: CandidateBuffer,
    others: int,
    items: Array,
    probability: Array,
    inputs: Array,
) -> None:
    """Writes probability [K, M] and inputs [K, FIXED_INPUTS + H] of the chosen items; `own` [H]: of the true item."""
    half_lives, places, slots = len(total), np.empty(len(items), np.int64), np.empty(len(items), np.int64)
    count = 0
    for number in range(len(items)):
        place = number + (number > 0)  # candidate 1 is the items that no context has seen
        slot = buffer.slot[items[number]]
        counts = own if number == 0 else buffer.popularity[slot]
        probability[place, 0] = 1.0 / index.num_items
        for h in range(half_lives):
            probability[place, 1 + h] = counts[h] / max(total[h], 1e-30)
        if slot != NONE:
            places[count], slots[count] = place, slot
            count += 1
    columns = rescaling_inputs(index, total, settings, query, buffer, others, slots[:count])
    for j in range(count):
        for s in range(CONTEXT_SOURCES):
            if buffer.totals[s] > 0:
                probability[places[j], 1 + half_lives + s] = buffer.sums[slots[j], s] / buffer.totals[s]
        for b in range(len(columns)):
            inputs[places[j], b] = columns[b, j]


@compiled
def _write_unseen(
    index: EventIndex,
    total: Array,
    buffer: CandidateBuffer,
    size: int,
    true_item: int,
    out: Examples,
    m: int,
) -> None:
    """Writes what each source leaves to the items that no context has seen, as candidate 1."""
    half_lives, items = len(total), index.num_items
    unseen = out.probability[m, 1]
    unseen[0] = 1.0
    for h in range(half_lives):
        unseen[1 + h] = 1.0 if total[h] > 0 else 0.0
    if buffer.slot[true_item] < 0:
        unseen[: 1 + half_lives] -= out.probability[m, 0, : 1 + half_lives]
    for slot in range(size):
        unseen[0] -= 1.0 / items
        for h in range(half_lives):
            unseen[1 + h] -= buffer.popularity[slot, h] / max(total[h], 1e-30)
    for h in range(1 + half_lives):
        unseen[h] = max(unseen[h], np.float32(0))
    out.log_weight[m, 1] = 0.0
