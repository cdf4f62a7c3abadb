"""Ranks of the events' items among all items, without a row of scores.

An item that no context has seen has a probability from popularity alone, which is bounded for a block of items by its
largest counts; few blocks can hold a better item.

Legend: n events, W weights of added scores, H half-lives.
"""

from __future__ import annotations

import numpy as np

from dynedge.models.count_memory.candidate_buffer import CandidateBuffer, clear
from dynedge.models.count_memory.contexts import CountSettings
from dynedge.models.count_memory.event_index import NONE, EventIndex
from dynedge.models.count_memory.network_kernels import NetworkWeights
from dynedge.models.count_memory.popularity import Popularity, count_popularity
from dynedge.models.count_memory.probabilities import (
    global_probability,
    mix_and_rescale,
    mix_global_sources,
    popularity_factors,
)
from dynedge.models.count_memory.queries import Events, Query, query_of
from dynedge.ops.all_scores.by_block import BLOCK, ItemBlocks, WindowScores, apply_event, score_blocks
from dynedge.ops.log_plus import log_plus
from dynedge.ops.vector_math import exp2, log
from dynedge.utils.array_type import Array
from dynedge.utils.numba_compile import compiled, compiled_without_counting

MARGIN, LOG2E = np.float32(1e-5), np.float32(np.log2(np.e))  # the margin is relative


@compiled
def rank_events(
    index: EventIndex,
    popularity: Popularity,
    settings: CountSettings,
    networks: NetworkWeights,
    events: Events,
    start: int,
    stop: int,
    buffer: CandidateBuffer,
    added: WindowScores,
    blocks: ItemBlocks,
    weights: Array,
    out: Array,
) -> None:
    """Writes out[n, W]: the ranks of the items of the events start to stop - 1, with each of the weights.

    `popularity` and `blocks` are those before event `start`, and advance to `stop`. An event that is counted in both
    directions is two in a row in `events`.
    """
    step = len(events.item) // len(out)
    for k in range(start, stop):
        query, item = query_of(events, k * step), events.item[k * step]
        rank_query(index, popularity, settings, networks, query, buffer, item, added, blocks, k, weights, out[k])
        advance(popularity, settings, events, added, blocks, k, k + 1)


@compiled_without_counting
def advance(
    popularity: Popularity,
    settings: CountSettings,
    events: Events,
    added: WindowScores,
    blocks: ItemBlocks,
    start: int,
    stop: int,
) -> None:
    """Advances what `rank_events` reads from before event `start` to before event `stop`."""
    step = len(events.item) // max(len(added.bound), 1)
    count_popularity(popularity, settings.weight_growth, events.item[start * step : stop * step])
    for k in range(start, stop):
        apply_event(added, blocks, k)


@compiled(inline="always")
def rank_query(
    index: EventIndex,
    popularity: Popularity,
    settings: CountSettings,
    networks: NetworkWeights,
    query: Query,
    buffer: CandidateBuffer,
    item: int,
    added: WindowScores,
    blocks: ItemBlocks,
    k: int,
    weights: Array,
    out: Array,
) -> None:
    """Writes out[W]: the rank of an item among all items, as ops/item_ranks has it from a row of scores.

    Scores are log(probability) + weight · added, for each of the weights; where nothing is added, probabilities.
    """
    size, gates = mix_and_rescale(index, popularity, settings, networks, query, buffer)
    factor, slot, has_added = popularity_factors(popularity.total, gates), buffer.slot[item], added.bound.shape[1] > 0
    own = global_probability(gates, factor, index.num_items, popularity.counts[item])
    own = buffer.probability[slot] if slot != NONE else own
    largest = _largest_probabilities(popularity, gates, factor, index.num_items, buffer, size)
    scores, is_read = np.empty(len(weights), np.float32), np.zeros(len(largest), np.bool_)
    is_read[item // BLOCK] = True
    if has_added:
        score_blocks(added, blocks, k, is_read)
    for w in range(len(weights)):
        scores[w] = log_plus(own, weights[w], blocks.scores[0, item]) if has_added else own
        _add_blocks_that_reach(largest, added.bound[k], weights[w], scores[w], is_read)
    _fill_probabilities(popularity, gates, factor, index.num_items, buffer, size, is_read)
    if has_added:
        score_blocks(added, blocks, k, is_read)
        _take_logarithms(buffer.row, is_read)
    for w in range(len(weights)):
        out[w] = _rank(buffer.row, blocks.scores[0], weights[w], scores[w], is_read, index.num_items)
    clear(buffer, size)


@compiled
def _largest_probabilities(
    popularity: Popularity, gates: Array, factor: Array, items: int, buffer: CandidateBuffer, size: int
) -> Array:
    """Returns float32[blocks]: no item of a block has a larger probability.

    Exact, because sums of rounded products grow with their terms.
    """
    out = np.empty(len(popularity.largest), np.float32)
    for b in range(len(out)):
        bound = np.float32(gates[0] / items)
        for h in range(len(factor)):
            bound += factor[h] * popularity.largest[b, h]
        out[b] = bound
    for slot in range(size):
        b = buffer.items[slot] // BLOCK
        out[b] = max(out[b], buffer.probability[slot])
    return out


@compiled_without_counting
def _add_blocks_that_reach(
    largest: Array, bound: Array, weight: np.float32, score: np.float32, is_read: Array
) -> None:
    """Sets is_read[blocks] where an item may reach a score, given the largest probabilities and added scores.

    With added scores, by the least probability that reaches it, with a margin for the rounding of the logarithm.
    """
    if not score > -np.inf:  # ties with NaN and -inf, below everything else
        is_read[:] = True
    elif not len(bound):
        for b in range(len(is_read)):
            is_read[b] |= not largest[b] < score
    else:
        for b in range(len(is_read)):
            most = weight * bound[b] if weight >= 0 else np.float32(np.inf)
            margin = MARGIN * (1 + abs(score) + abs(most))
            least = exp2(LOG2E * (score - most - margin)) if most < np.inf else np.float32(0)
            is_read[b] |= not largest[b] < least


@compiled
def _fill_probabilities(
    popularity: Popularity,
    gates: Array,
    factor: Array,
    items: int,
    buffer: CandidateBuffer,
    size: int,
    is_read: Array,
) -> None:
    """Writes the probabilities of all items of some blocks to the buffer's row."""
    b = 0
    while b < len(is_read):
        first = b
        while b < len(is_read) and is_read[b]:
            b += 1
        if b > first:
            row = buffer.row[first * BLOCK : min(b * BLOCK, items)]
            mix_global_sources(popularity, gates, factor, items, first * BLOCK, row)
        b += 1
    for slot in range(size):
        if is_read[buffer.items[slot] // BLOCK]:
            buffer.row[buffer.items[slot]] = buffer.probability[slot]


@compiled_without_counting
def _take_logarithms(row: Array, is_read: Array) -> None:
    for b in range(len(is_read)):
        if is_read[b]:
            of_block = row[b * BLOCK : (b + 1) * BLOCK]
            for i in range(BLOCK):
                of_block[i] = log(of_block[i])


@compiled_without_counting
def _rank(row: Array, added: Array, weight: np.float32, score: np.float32, is_read: Array, items: int) -> float:
    """Returns the rank of a score among the items of these blocks and items that are below it."""
    least, above, tied = score if score > -np.inf else np.float32(-np.inf), 0, 0
    for b in range(len(is_read)):
        if is_read[b]:
            start, stop = b * BLOCK, min((b + 1) * BLOCK, items)
            others, more, same = row[start:stop], np.int32(0), np.int32(0)
            of_block = added[start:stop]
            if len(added):
                for i in range(len(others)):
                    other = others[i] + weight * of_block[i]
                    more += np.int32(other > least)
                    same += np.int32(other == least)
            else:
                for i in range(len(others)):
                    more += np.int32(others[i] > least)
                    same += np.int32(others[i] == least)
            above, tied = above + int(more), tied + int(same)
    if least == -np.inf:  # NaN and -inf tie, below everything else
        tied = items - above
    return above + (tied + 1) / 2
