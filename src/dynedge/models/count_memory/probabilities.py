"""Probabilities of items: all sources, mixed by the gating network's weights and rescaled item by item.

The weighted sum of the sources is a probability. The rescaling network then multiplies that of the most probable
candidates by a factor; the other candidates get the mean factor. An item that no context has seen has a probability
from popularity alone and keeps it.

Legend: I items, H half-lives, M = 1 + H + CONTEXT_SOURCES sources: uniform, popularity by half-life, contexts.
"""

from __future__ import annotations

import numpy as np

from dynedge.models.count_memory.candidate_buffer import NEAR, NEAR_SOURCES, CandidateBuffer
from dynedge.models.count_memory.candidates import collect_candidates
from dynedge.models.count_memory.contexts import CONTEXT_SOURCES, CountSettings
from dynedge.models.count_memory.event_index import EventIndex
from dynedge.models.count_memory.network_kernels import VECTORISED, NetworkWeights, compute_gates, rescale
from dynedge.models.count_memory.popularity import Popularity
from dynedge.models.count_memory.queries import Query
from dynedge.ops.prefetch_row import prefetch_row
from dynedge.utils.array_type import Array
from dynedge.utils.numba_compile import compiled, compiled_without_counting

BITS = np.uint32(19)  # trailing bits of a float32 by which `nth_largest` does not group
AHEAD = 16  # rows


@compiled
def popularity_factors(total: Array, gates: Array) -> Array:
    """Returns float32[H]: what one unit of popularity adds to the probability of its item; `total` is that of all."""
    factor = np.zeros(len(total), np.float32)
    for h in range(len(factor)):
        if total[h] > 0:
            factor[h] = gates[1 + h] / total[h]
    return factor


@compiled(inline="always")
def global_probability(gates: Array, factor: Array, items: int, counts: Array) -> np.float32:
    """Returns the mixture of the sources that do not depend on the user, for an item with these counts [H]."""
    total = np.float32(gates[0] / items)
    for h in range(len(factor)):
        total += factor[h] * counts[h]
    return total


@compiled
def mix_global_sources(
    popularity: Popularity, gates: Array, factor: Array, items: int, start: int, out: Array
) -> None:
    """Writes the same to `out`, for the items from `start` on."""
    if len(factor) == 5:  # the default: a stride that is known lets the loop be vectorised, five times as fast
        uniform, counts = np.float32(gates[0] / items), popularity.counts[start:].ravel()
        a, b, c, d, e = factor[0], factor[1], factor[2], factor[3], factor[4]
        for i in range(len(out)):
            x = 5 * i
            of_first = uniform + a * counts[x] + b * counts[x + 1] + c * counts[x + 2]
            out[i] = of_first + d * counts[x + 3] + e * counts[x + 4]
    else:
        for i in range(len(out)):
            out[i] = global_probability(gates, factor, items, popularity.counts[start + i])


@compiled_without_counting
def _read_popularity(popularity: Popularity, buffer: CandidateBuffer, size: int) -> None:
    """Copies the counts of all candidates to the buffer."""
    for slot in range(size):
        prefetch_row(popularity.counts, buffer.items[min(slot + AHEAD, size - 1)])
        for h in range(len(popularity.total)):
            buffer.popularity[slot, h] = popularity.counts[buffer.items[slot], h]


@compiled
def mix_sources(
    index: EventIndex, total: Array, gates: Array, buffer: CandidateBuffer, others: int, size: int
) -> None:
    """Writes the mixture's probability of every candidate to the buffer, which has their popularity."""
    first = 1 + len(total)
    factor, of_source = popularity_factors(total, gates), np.zeros(CONTEXT_SOURCES, np.float32)
    for s in range(CONTEXT_SOURCES):
        if buffer.totals[s] > 0:
            of_source[s] = gates[first + s] / buffer.totals[s]
    _mix_of_candidates(gates, factor, index.num_items, buffer, size)
    _add_sources(of_source, buffer, others, size)


@compiled_without_counting
def _mix_of_candidates(gates: Array, factor: Array, items: int, buffer: CandidateBuffer, size: int) -> None:
    for slot in range(size):
        buffer.probability[slot] = global_probability(gates, factor, items, buffer.popularity[slot])


@compiled_without_counting(fastmath=VECTORISED)
def _add_sources(of_source: Array, buffer: CandidateBuffer, others: int, size: int) -> None:
    for slot in range(others):
        total, sums = buffer.probability[slot], buffer.sums[slot]
        for s in range(CONTEXT_SOURCES):
            total += of_source[s] * sums[s]
        buffer.probability[slot] = total
    for slot in range(others, size):
        total, sums = buffer.probability[slot], buffer.near[slot]
        for s in range(NEAR_SOURCES):
            total += of_source[NEAR + s] * sums[s]
        buffer.probability[slot] = total


@compiled
def _most_probable(buffer: CandidateBuffer, size: int, most: int) -> Array:
    """Returns the slots of the `most` most probable candidates; those that tie with the last one too."""
    if size <= most:
        return np.arange(size)
    least, slots, count = nth_largest(buffer.probability[:size], most), np.empty(size, np.int64), 0
    for slot in range(size):
        slots[count] = slot
        count += buffer.probability[slot] >= least
    return slots[:count]


@compiled
def nth_largest(numbers: Array, n: int) -> np.float32:
    """Returns the n-th largest of positive float32 numbers: by their leading bits, then among those with the same."""
    words = numbers.view(np.uint32)
    lowest, highest = words[0] >> BITS, words[0] >> BITS
    for word in words:
        lowest, highest = min(lowest, word >> BITS), max(highest, word >> BITS)
    count = np.zeros(highest - lowest + 1, np.int32)
    for word in words:
        count[(word >> BITS) - lowest] += 1
    group, larger = len(count) - 1, 0
    while larger + count[group] < n:
        larger += count[group]
        group -= 1
    same, found = np.empty(count[group], np.float32), 0
    for k in range(len(numbers)):
        if (words[k] >> BITS) - lowest == group:
            same[found] = numbers[k]
            found += 1
    return np.sort(same)[larger - n]


@compiled_without_counting
def _scale_others(buffer: CandidateBuffer, size: int, rescaled: Array, factor: float) -> None:
    """Multiplies the probabilities of all candidates but the rescaled ones, whose slots ascend, by one factor."""
    place = 0
    for slot in range(size):
        if place < len(rescaled) and rescaled[place] == slot:
            place += 1
        else:
            buffer.probability[slot] *= factor


@compiled
def mix_and_rescale(
    index: EventIndex,
    popularity: Popularity,
    settings: CountSettings,
    networks: NetworkWeights,
    query: Query,
    buffer: CandidateBuffer,
) -> tuple[int, Array]:
    """Writes the unnormalised probabilities of a query's candidates; returns their number and the gates."""
    others, size = collect_candidates(index, settings, query, buffer)
    gates = np.empty(len(networks.gating_logits), np.float32)
    compute_gates(networks, buffer, len(popularity.total), gates)
    _read_popularity(popularity, buffer, size)
    mix_sources(index, popularity.total, gates, buffer, others, size)
    rescaled = _most_probable(buffer, size, settings.rescaled_items if len(networks.rescaling_bias) else size)
    mean_factor = np.exp(rescale(index, popularity.total, settings, networks, query, buffer, others, rescaled))
    _scale_others(buffer, size, rescaled, mean_factor)
    return size, gates
