"""Popularity of items at several half-lives: counts of events that decay by giving newer events a larger weight.

Where the weight of an event becomes large, all counts are divided by it (rescaled).

Legend: I items, H half-lives.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from dynedge.ops.all_scores.by_block import BLOCK
from dynedge.ops.prefetch_row import prefetch_row
from dynedge.utils.array_type import Array
from dynedge.utils.numba_compile import compiled, compiled_without_counting

RESCALE_ABOVE = 1e12  # weight of an event at which all counts are divided by it
NEGLIGIBLE = 1e-30  # counts below, beside an event of weight 1, become 0
NOT_LISTED = -1
AHEAD = 16  # listed items whose counts are fetched before they are rescaled


class Popularity(NamedTuple):
    """The popularity of an index, or a thread's own copy of it."""

    counts: Array  # float32[I, H]
    total: Array  # float64[H]
    event_weight: Array  # float64[H]
    largest: Array  # float32[blocks, H]: of the counts of each BLOCK of items; no rows in the index's own popularity
    listed: Array  # int32[H, I]: items whose count is not 0, from the first rescaling on; no rows: not listed
    num_listed: Array  # int64[H]: number of them; NOT_LISTED before the first rescaling


@compiled
def copy_popularity(popularity: Popularity) -> Popularity:
    """Returns a copy that has the largest count of each block."""
    counts, items = popularity.counts.copy(), len(popularity.counts)
    largest = np.zeros(((items + BLOCK - 1) // BLOCK, counts.shape[1]), np.float32)
    for i in range(items):
        for h in range(counts.shape[1]):
            largest[i // BLOCK, h] = max(largest[i // BLOCK, h], counts[i, h])
    listed, num_listed = np.empty((counts.shape[1], items), np.int32), np.full(counts.shape[1], NOT_LISTED)
    return Popularity(counts, popularity.total.copy(), popularity.event_weight.copy(), largest, listed, num_listed)


@compiled_without_counting
def count_popularity(popularity: Popularity, growth: Array, item: Array) -> None:
    """Counts events in the popularity of their items; `growth` float64[H] is that of an event's weight.

    Counts of a short half-life are 0 for most items. Where items are listed, the first rescaling reads all of them,
    and later ones only those whose count is not 0.
    """
    counts, largest, weight = popularity.counts, popularity.largest, popularity.event_weight
    num_listed = popularity.num_listed
    for k in range(len(item)):
        i = item[k]
        for h in range(len(growth)):
            weight[h] *= growth[h]
            if num_listed[h] != NOT_LISTED and counts[i, h] == 0:
                popularity.listed[h, num_listed[h]] = i
                num_listed[h] += 1
            counts[i, h] += weight[h]
            popularity.total[h] += weight[h]
            if len(largest):
                largest[i // BLOCK, h] = max(largest[i // BLOCK, h], counts[i, h])
            if weight[h] > RESCALE_ABOVE:
                if len(popularity.listed):
                    listed = popularity.listed[h]
                    if num_listed[h] == NOT_LISTED:
                        num_listed[h] = list_counted(counts, h, 0, len(counts), listed, 0)
                    num_listed[h] = rescale_listed(counts, h, weight[h : h + 1], listed, num_listed[h])
                else:
                    for x in range(len(counts)):
                        counts[x, h] = rescaled(counts[x, h], weight[h])
                for x in range(len(largest)):
                    largest[x, h] /= weight[h]
                popularity.total[h] /= weight[h]
                weight[h] = 1.0


@compiled(inline="always")
def rescaled(count: float, weight: float) -> np.float32:
    """Returns a count divided by the weight of an event; 0 if that is negligible."""
    scaled = np.float32(count / weight)
    return scaled if scaled >= NEGLIGIBLE else np.float32(0)


@compiled(inline="always")
def rescaled_by(count: np.float32, weights: Array, first: int, last: int) -> np.float32:
    """Returns a count after the rescalings from `first` to before `last`, by the weights of events."""
    for r in range(first, last):
        if count == 0:
            break
        count = rescaled(count, weights[r])
    return count


@compiled_without_counting
def list_counted(counts: Array, h: int, start: int, stop: int, listed: Array, size: int) -> int:
    """Adds those of the items start to stop - 1 whose count is not 0 to the `size` listed ones; returns how many."""
    for i in range(start, stop):
        if counts[i, h] > 0:
            listed[size] = i
            size += 1
    return size


@compiled_without_counting
def rescale_listed(counts: Array, h: int, weights: Array, listed: Array, size: int) -> int:
    """Rescales the counts of the `size` listed items by all the weights, and lists those that are not 0 after it.

    Returns their number.
    """
    left = 0
    for x in range(size):
        prefetch_row(counts, listed[min(x + AHEAD, size - 1)])
        i = listed[x]
        counts[i, h] = rescaled_by(counts[i, h], weights, 0, len(weights))
        listed[left] = i
        left += counts[i, h] > 0
    return left
