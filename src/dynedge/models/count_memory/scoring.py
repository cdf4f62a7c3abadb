"""Scores of items: the probabilities of all sources, mixed by the gating network and rescaled item by item.

The gating network turns the query's features into a weight for every source (`gates`); the weighted sum of the
sources is a probability. The rescaling network then multiplies the probability of the most probable candidates by a
factor, from the candidate's features and its probability under every source; all other items keep theirs. Both
networks are evaluated here with plain loops; gating.py has them as torch modules.

The rank of an item among all others needs no row of scores: an item that no context has seen has a probability from
popularity alone, which is bounded for a block of items by its largest counts; few blocks can hold a better item.

Events of a window are in the index before they are scored, and a score reads only what is before its own clock, so
threads score any of them in any order. Popularity alone is a running count: a thread has its own copy.

Legend: n events or queries, C items to score given by the caller, I items, H half-lives, W weights of added scores,
M = 1 + H + CONTEXT_SOURCES sources: uniform, popularity by half-life, contexts.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from dynedge.models.count_memory.candidate_buffer import NEAR, NEAR_SOURCES, CandidateBuffer, Query, add_rows, clear
from dynedge.models.count_memory.candidates import collect_candidates
from dynedge.models.count_memory.contexts import CONTEXT_SOURCES, CountSettings
from dynedge.models.count_memory.event_index import (
    NONE,
    RECENT_EVENTS,
    EventIndex,
    Popularity,
    count_popularity,
)
from dynedge.models.count_memory.features import ITEM_FEATURES, SEEN, item_features
from dynedge.ops.all_scores.by_block import (
    BLOCK,
    ItemBlocks,
    WindowScores,
    apply_event,
    score_blocks,
)
from dynedge.ops.gather_matmul import VECTOR_BYTES, add_matmul
from dynedge.ops.log_plus import log_plus
from dynedge.ops.prefetch_row import prefetch_row
from dynedge.ops.vector_math import exp2, log
from dynedge.utils.array_type import Array
from dynedge.utils.numba_compile import compiled, compiled_without_counting

FIXED_INPUTS = CONTEXT_SOURCES + ITEM_FEATURES  # of the rescaling network per item; then popularity by half-life
SEEN_INPUT = CONTEXT_SOURCES + SEEN  # the input that is 1 for the user's own items
NEGLIGIBLE = 1e-3  # a probability under a source far below this is close to an input of 0
BITS = np.uint32(19)  # trailing bits of a float32 by which `nth_largest` does not group
AHEAD = 16  # rows
MARGIN, LOG2E = np.float32(1e-5), np.float32(np.log2(np.e))  # the margin is relative
LANES = VECTOR_BYTES // 4  # numbers of a vector
VECTORISED = {"reassoc", "contract", "nsz"}  # sums of floats in any order


class NetworkWeights(NamedTuple):
    """The weights of both networks as float32 arrays; hidden sizes may be 0."""

    gating_in: Array  # [hidden, QUERY_FEATURES]
    gating_bias: Array  # [hidden]
    gating_out: Array  # [M, hidden]
    gating_logits: Array  # [M]: without the hidden layer
    rescaling_in: Array  # [hidden, FIXED_INPUTS + H]
    rescaling_query: Array  # [hidden, QUERY_FEATURES]
    rescaling_bias: Array  # [hidden]
    rescaling_second: Array  # [second, hidden]; no rows: there is no second layer
    second_bias: Array  # [second]
    rescaling_out: Array  # [second, or else hidden]
    rescaling_seen: Array  # [1]: added to the log factor of the user's own items


class Events(NamedTuple):
    """A window whose events are in the index, or queries after all events of the index."""

    user: Array  # [n]
    item: Array  # [n]
    time: Array  # float64[n]
    place: Array  # int32[n]: in the user's history
    clock: int  # of the first event
    latest_items: Array  # int32[RECENT_EVENTS + n]: items of the log's events up to the last one of the window
    step: int  # from an event's clock to the next one's: 1, or 0 for queries, of which all have the same latest items


@compiled
def query_of(events: Events, k: int) -> Query:
    """Returns event k of a window as a query."""
    at = k * events.step
    latest = events.latest_items[at : at + RECENT_EVENTS]
    user, place = np.int64(events.user[k]), np.int64(events.place[k])  # as in explain.py: one type to compile for
    return Query(user, place, events.clock + at, events.time[k], latest)  # type: ignore[arg-type]


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


@compiled
def rescaling_inputs(
    index: EventIndex,
    total: Array,
    settings: CountSettings,
    query: Query,
    buffer: CandidateBuffer,
    others: int,
    slots: Array,
) -> Array:
    """Returns float32[FIXED_INPUTS + H, n]: log probabilities by source, item features, popularity by half-life.

    There is a column for each of the candidates in `slots`, and more to fill whole vectors.
    """
    add_rows(buffer, others, slots)
    width = (len(slots) + LANES - 1) // LANES * LANES
    out, found = np.zeros((FIXED_INPUTS + len(total), width), np.float32), np.empty((3, len(slots)), np.int64)
    factor, of_half_life = np.zeros(CONTEXT_SOURCES, np.float32), np.zeros(len(total), np.float32)
    for s in range(CONTEXT_SOURCES):
        if buffer.totals[s] > 0:
            factor[s] = 1 / (NEGLIGIBLE * buffer.totals[s])
    for h in range(len(total)):
        if total[h] > 0:
            of_half_life[h] = index.num_items / total[h]
    _write_inputs(buffer, slots, factor, of_half_life, out)
    item_features(index, settings, query, buffer, slots, found, out[CONTEXT_SOURCES:FIXED_INPUTS])
    return out


@compiled_without_counting(error_model="numpy")
def _write_inputs(buffer: CandidateBuffer, slots: Array, factor: Array, of_half_life: Array, out: Array) -> None:
    """Writes the logarithms of the probabilities and of the popularity."""
    for j in range(len(slots)):
        slot = slots[j]
        for s in range(CONTEXT_SOURCES):
            out[s, j] = factor[s] * buffer.sums[slot, s]
        for h in range(len(of_half_life)):
            out[FIXED_INPUTS + h, j] = of_half_life[h] * buffer.popularity[slot, h]
    scale = np.float32(0.3)
    for rows in (out[:CONTEXT_SOURCES], out[FIXED_INPUTS:]):
        for s in range(len(rows)):
            for j in range(out.shape[1]):
                rows[s, j] = scale * log(np.float32(1) + rows[s, j])


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
def _mix_global_sources(
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
def _rescaling_base(networks: NetworkWeights, buffer: CandidateBuffer) -> Array:
    """Returns float32[hidden]: what all candidates of a query have in common."""
    base = networks.rescaling_bias.copy()
    for a in range(len(base)):
        for b in range(len(buffer.query_features)):
            base[a] += networks.rescaling_query[a, b] * buffer.query_features[b]
    return base


@compiled
def _second_layer(networks: NetworkWeights, units: Array) -> Array:
    """Returns float32[second, n] before its rectifier, given the first layer's [hidden, n] before its own."""
    for a in range(len(units)):
        for j in range(units.shape[1]):
            units[a, j] = max(units[a, j], np.float32(0))
    second = len(networks.second_bias)
    out, rows = np.empty((second, units.shape[1]), np.float32), np.arange(second)
    for a in range(second):
        out[a] = networks.second_bias[a]
    add_matmul(out, 0, rows, networks.rescaling_second, 0, rows, second, units)
    return out


@compiled(fastmath=VECTORISED)
def _rescale(
    index: EventIndex,
    of_all: Array,
    settings: CountSettings,
    networks: NetworkWeights,
    query: Query,
    buffer: CandidateBuffer,
    others: int,
    slots: Array,
) -> np.float32:
    """Multiplies the probabilities of the candidates in `slots` by their factors; returns the mean log factor."""
    log_factor = np.zeros(len(slots), np.float32)
    for j in range(len(slots)):
        log_factor[j] = networks.rescaling_seen[0] if buffer.seen[slots[j]] else 0.0
    hidden = len(networks.rescaling_bias)
    if hidden:
        inputs = rescaling_inputs(index, of_all, settings, query, buffer, others, slots)
        units, rows = np.empty((hidden, inputs.shape[1]), np.float32), np.arange(hidden)
        base = _rescaling_base(networks, buffer)
        for a in range(hidden):
            units[a] = base[a]
        add_matmul(units, 0, rows, networks.rescaling_in, 0, rows, hidden, inputs)
        if len(networks.second_bias):
            units, hidden = _second_layer(networks, units), len(networks.second_bias)
        for a in range(hidden):
            weight, of_unit = networks.rescaling_out[a], units[a]
            for j in range(len(slots)):
                log_factor[j] += weight * max(of_unit[j], np.float32(0))
    total = np.float32(0)
    for j in range(len(slots)):
        if log_factor[j] != 0:
            buffer.probability[slots[j]] *= np.exp(log_factor[j])
        total += log_factor[j]
    return total / max(len(slots), 1)


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
def _mix_and_rescale(
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
    mean_factor = np.exp(_rescale(index, popularity.total, settings, networks, query, buffer, others, rescaled))
    _scale_others(buffer, size, rescaled, mean_factor)
    return size, gates


@compiled(inline="always")
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
    size, gates = _mix_and_rescale(index, popularity, settings, networks, query, buffer)
    if len(candidates):
        factor = popularity_factors(popularity.total, gates)
        for c in range(len(candidates)):
            slot = buffer.slot[candidates[c]]
            if slot == NONE:
                out[c] = global_probability(gates, factor, index.num_items, popularity.counts[candidates[c]])
            else:
                out[c] = buffer.probability[slot]
    else:
        _mix_global_sources(popularity, gates, popularity_factors(popularity.total, gates), index.num_items, 0, out)
        for slot in range(size):
            out[buffer.items[slot]] = buffer.probability[slot]
    clear(buffer, size)


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
    size, gates = _mix_and_rescale(index, popularity, settings, networks, query, buffer)
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
            _mix_global_sources(popularity, gates, factor, items, first * BLOCK, row)
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

    `popularity` is that before event `start`, and advances to `stop`, unless the events are queries.
    """
    for k in range(start, stop):
        given = candidates[k] if len(candidates) else np.empty(0, np.int64)
        score_query(index, popularity, settings, networks, query_of(events, k), buffer, given, out[k])
        if events.step:
            count_popularity(popularity, settings.weight_growth, events.item[k : k + 1])
