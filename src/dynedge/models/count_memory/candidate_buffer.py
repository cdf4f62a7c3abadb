"""Candidates of one query: their buffer, and what every context does with it.

An item that no context has found has probability 0 under all context sources. Sums are collected unnormalised, with
their totals: a probability is their ratio. Most candidates are found by `near` alone: they come last, and the sums of
`near`, `session` and `alike` are in a small array of their own.

Legend: I items, C candidates, H half-lives of the popularity.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from dynedge.models.count_memory.contexts import CONTEXT_SOURCES, SOURCE
from dynedge.models.count_memory.event_index import NONE, START, EventIndex, gap_code
from dynedge.models.count_memory.queries import Query
from dynedge.ops.all_scores.by_block import BLOCK
from dynedge.utils.array_type import Array
from dynedge.utils.numba_compile import compiled, compiled_without_counting

QUERY_FEATURES = 24  # sizes of the contexts, time since the user's last event, the user's habits and kind of items
NEAR = SOURCE["near", "plain"]  # the first of those that `near`, `session` and `alike` have
NEAR_SOURCES = SOURCE["alike", "plain"] + 1 - NEAR


class CandidateBuffer(NamedTuple):
    """Scratch for the candidates of one query at a time, which take the slots from 0 on."""

    slot: Array  # int32[I]: slot of an item, or -1
    items: Array  # int32[C]: item in each slot
    seen: Array  # int32[C]: 1 + age of the user's newest event with the item, negative if there are others; 0: none
    near: Array  # float32[C, NEAR_SOURCES]: sums of the sources from NEAR on, by slot
    sums: Array  # float32[C, CONTEXT_SOURCES], by slot; not of candidates that these alone found, see add_rows
    totals: Array  # float64[CONTEXT_SOURCES]: 0 where the source has seen nothing
    query_features: Array  # float32[QUERY_FEATURES]
    popularity: Array  # float32[C, H]: counts at all half-lives, by slot (probabilities.py)
    probability: Array  # float32[C]: of the mixture, by slot (probabilities.py)
    row: Array  # float32[I, and more to fill a block]: the same of all items in some blocks (ranking.py)


def allocate_buffer(items: int, candidates: int, half_lives: int) -> CandidateBuffer:
    """Returns an empty buffer for logs of up to `items` items and queries of up to `candidates`."""
    return CandidateBuffer(
        np.full(items, NONE, np.int32),
        np.zeros(candidates, np.int32),
        np.zeros(candidates, np.int32),
        np.zeros((candidates, NEAR_SOURCES), np.float32),
        np.zeros((candidates, CONTEXT_SOURCES), np.float32),
        np.zeros(CONTEXT_SOURCES),
        np.zeros(QUERY_FEATURES, np.float32),
        np.zeros((candidates, half_lives), np.float32),
        np.zeros(candidates, np.float32),
        np.ones(-(-items // BLOCK) * BLOCK, np.float32),
    )


@compiled_without_counting
def clear(buffer: CandidateBuffer, size: int) -> None:
    """Empties a buffer of `size` candidates."""
    for slot in range(size):
        buffer.slot[buffer.items[slot]] = NONE


@compiled(inline="always")
def slot_of(buffer: CandidateBuffer, size: int, item: int) -> int:
    """Returns the slot of an item, which is `size` for a new candidate."""
    slot = buffer.slot[item]
    if slot == NONE:
        slot = size
        buffer.slot[item], buffer.items[slot], buffer.seen[slot] = slot, item, 0
        for s in range(NEAR_SOURCES):
            buffer.near[slot, s] = 0
        for s in range(CONTEXT_SOURCES):
            buffer.sums[slot, s] = 0
    return slot


@compiled(inline="always")
def add_count(buffer: CandidateBuffer, slot: int, source: int, weight: float) -> None:
    buffer.sums[slot, source] += np.float32(weight)
    buffer.totals[source] += np.float32(weight)


@compiled_without_counting
def add_rows(buffer: CandidateBuffer, others: int, slots: Array) -> None:
    """Fills the rows of `sums` of those of these candidates that have none yet: the slots from `others` on."""
    for slot in slots:
        if slot >= others:
            for s in range(CONTEXT_SOURCES):
                buffer.sums[slot, s] = 0
            for s in range(NEAR_SOURCES):
                buffer.sums[slot, NEAR + s] = buffer.near[slot, s]


@compiled(inline="always")
def factor_at(factors: Array, age: int) -> np.float32:
    """Returns the factor for an age in events; past the end of the table it is 0."""
    return factors[min(age, len(factors) - 1)]


@compiled(inline="always")
def likeness_of_gaps(factors: Array, gap: int, other: int) -> np.float32:
    """Returns 1 for gaps with the same code, half of it for twice the time; the first event of a user has none."""
    likeness, is_same = factor_at(factors, abs(gap - other)), np.float32(gap == other)
    return is_same if min(gap, other) == NONE else likeness  # both are computed: a branch could not be predicted


@compiled_without_counting
def gap_before(index: EventIndex, query: Query) -> int:
    """Returns the code of the time since the user's last event; NONE without one."""
    if query.place == 0:
        return NONE
    last = index.user_blocks[query.user, START] + query.place - 1
    return int(gap_code(query.time - index.history_time[last]))
