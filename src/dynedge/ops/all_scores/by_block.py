"""The scores of `all_scores` for one event after the other, of those blocks of items that are asked for.

Each block of each event has an upper bound, so that a caller in search of large scores can do without most blocks:
the largest product of the query with any point of the box around the vectors that the block's items have in the
window. The scores have the bits of `all_scores`.

Legend: n events of a window, I items, B blocks of BLOCK items, d width of a state, D of a query (d, or 2d with id
embeddings), r decaying columns, m chunks of events with the same shift (ops/decaying_columns.py), R rows of the
arena, L listed items.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from dynedge.ops.all_scores.cpu import BLOCK as CHUNK
from dynedge.ops.decaying_columns import relative_to_chunks
from dynedge.ops.gather_matmul import add_matmul_of_rows
from dynedge.ops.sampled_softmax import ScoreBonus
from dynedge.ops.thread_pool import part_of_range, run_in_parts
from dynedge.ops.vector_math import exp2
from dynedge.utils.array_type import Array
from dynedge.utils.numba_compile import compiled

BLOCK = 64  # items
ROUNDING = 2.0**-22  # of each term of a product: four times that of float32, for the score and for its bound
NOT_YET = -1
ONE = np.float32(1)


class WindowScores(NamedTuple):
    """What the scores of a window's events are computed from; no columns in `bound`: there are no scores."""

    bound: Array  # float32[n, B]: no item of the block has a larger score
    given: Array  # float32[n, I]: the scores, where they are known already; else no rows, and what follows
    query: Array  # float32[n, D]: relative to `shift`
    shift: Array  # float32[m, r]
    item: Array  # int64[n]
    row_after: Array  # int64[n]: of the item's new state in the arena; negative: it keeps its state
    arena: Array  # float32[R, d]
    bonus_start: Array  # int64[n + 1]: entries start[k] to start[k + 1] − 1 are those of event k
    bonus_item: Array  # int64[L]
    bonus: Array  # float32[L]: added to the scores of these items


class ItemBlocks(NamedTuple):
    """The items before one event of a window, and its scores; every thread has its own."""

    vectors: Array  # float32[B, D, BLOCK]
    bias: Array  # float32[B, BLOCK]
    decaying: Array  # float32[B, r, BLOCK]: exponents of the decaying columns
    shifted: Array  # int64[B]: chunk whose shift the decaying columns of `vectors` have, or NOT_YET
    is_alive: Array  # bool[B, r]: whether any of them is above 0
    scores: Array  # float32[1, B · BLOCK]: of the event, in the blocks that were asked for


def given_scores(scores: Tensor) -> tuple[WindowScores, ItemBlocks]:
    """Rows of scores [n, I], on any device, as they are; no columns: no scores."""
    scores = scores.detach().float()
    whole = scores.shape[1] // BLOCK * BLOCK
    largest = [scores[:, :whole].unflatten(1, (-1, BLOCK)).amax(2)] if whole else []  # type: ignore[no-untyped-call]
    largest += [scores[:, whole:].amax(1, keepdim=True)] if whole < scores.shape[1] else []
    bound = torch.cat(largest, 1) if largest else scores
    none, nothing = torch.empty(0).long(), torch.empty(0, 0)
    return _window(None, bound, scores, nothing, nothing, none, none, nothing), _empty_blocks(bound.shape[1], 0, 0)


def block_scores(
    query: Tensor,
    states: Tensor,
    id_embeddings: Tensor | None,
    item: Tensor,
    row_after: Tensor,
    arena: Tensor,
    decay: Tensor | None = None,
    bonus: ScoreBonus | None = None,
) -> tuple[WindowScores, ItemBlocks]:
    """On a CPU, in float32: the arguments of `all_scores`, and what is added to the scores of some items."""
    query, states, arena = query.detach().float(), states.detach(), arena.detach()
    relative, shift = relative_to_chunks(query, states, decay, CHUNK)
    width, blocks = query.shape[1], -(-len(states) // BLOCK)
    embeddings = torch.empty(0, states.shape[1] + 1) if id_embeddings is None else id_embeddings.detach()
    items, box = _empty_blocks(blocks, width, shift.shape[1]), np.empty((2, blocks, width + 1), np.float32)
    start = shift[0] if len(shift) else states.new_zeros(shift.shape[1])
    tables = (np.ascontiguousarray(part.numpy()) for part in (states, embeddings, start))
    run_in_parts(_fill_blocks, len(states), *tables, items, box)
    _widen(box, item.numpy(), row_after.numpy(), np.ascontiguousarray(arena.numpy()), shift.shape[1])
    bound = _bounds(query, *torch.from_numpy(box))
    if bonus is not None:
        place = bonus.event * blocks + bonus.item // BLOCK
        bound.view(-1).index_add_(0, place, bonus.value.detach().float().clamp_min(0))
    return _window(bonus, bound, states[:0], relative, shift, item, row_after, arena), items


def copy_blocks(items: ItemBlocks) -> ItemBlocks:
    """For another thread."""
    return ItemBlocks(*(part.copy() for part in items))


def _bounds(query: Tensor, lowest: Tensor, highest: Tensor) -> Tensor:
    """[n, B]: the largest products of the queries with points of boxes [B, D + 1], of which the last column is added.

    A margin covers the rounding of the bound and of the scores.
    """
    bound = torch.addmm(highest[:, -1], query.clamp_min(0), highest[:, :-1].T)
    bound.addmm_(query.clamp_max(0), lowest[:, :-1].T)
    size = torch.maximum(highest.abs(), lowest.abs()).amax(0) if len(highest) else highest.new_zeros(highest.shape[1])
    return bound.add_((query.abs() @ size[:-1] + size[-1])[:, None], alpha=ROUNDING * (query.shape[1] + 8))


def _empty_blocks(blocks: int, width: int, decaying: int) -> ItemBlocks:
    return ItemBlocks(
        np.zeros((blocks, width, BLOCK), np.float32),
        np.zeros((blocks, BLOCK), np.float32),
        np.zeros((blocks, decaying, BLOCK), np.float32),
        np.full(blocks, NOT_YET),
        np.zeros((blocks, decaying), np.bool_),
        np.empty((1, blocks * BLOCK), np.float32),
    )


def _window(bonus: ScoreBonus | None, bound: Tensor, *others: Tensor) -> WindowScores:
    """From the fields of WindowScores in their order, except for those of the bonus."""
    start, item, value = torch.zeros(len(bound) + 1).long(), torch.empty(0).long(), torch.empty(0)
    if bonus is not None:
        start, item, value = bonus.start, bonus.item, bonus.value.detach().float()
    return WindowScores(*map(_to_host, (bound, *others, start, item, value)))


def _to_host(tensor: Tensor) -> Array:
    """As an array; from a GPU by pinned memory, which torch reuses."""
    if tensor.is_cuda:
        tensor = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True).copy_(tensor)
    return np.ascontiguousarray(tensor.numpy())


@compiled
def _fill_blocks(
    part: int, parts: int, states: Array, embeddings: Array, shift: Array, items: ItemBlocks, box: Array
) -> None:
    """Copies the items' vectors into blocks and writes the box around each block: box[0] lowest, box[1] highest.

    A power of two that decays is at most what it is at the window's start, given by `shift`.
    """
    d, fixed = states.shape[1], states.shape[1] - len(shift)
    first, last = part_of_range(0, len(items.bias), part, parts)
    for b in range(first, last):
        start, stop = b * BLOCK, min((b + 1) * BLOCK, len(states))
        for i in range(start, stop):
            for j in range(fixed):
                items.vectors[b, j, i - start] = states[i, j]
            for j in range(len(shift)):
                items.decaying[b, j, i - start] = states[i, fixed + j]
            if len(embeddings):
                items.bias[b, i - start] = embeddings[i, d]
                for j in range(d):
                    items.vectors[b, d + j, i - start] = embeddings[i, j]
        for j in range(items.vectors.shape[1]):
            if fixed <= j < d:
                exponent = _range(items.decaying[b, j - fixed], stop - start)[1] - shift[j - fixed]
                box[0, b, j], box[1, b, j] = 0, exp2(min(exponent, np.float32(0)))
            else:
                box[0, b, j], box[1, b, j] = _range(items.vectors[b, j], stop - start)
        box[0, b, -1], box[1, b, -1] = _range(items.bias[b], stop - start)


@compiled
def _range(numbers: Array, count: int) -> tuple[np.float32, np.float32]:
    """Returns the smallest and the largest of the first `count` numbers."""
    low = high = numbers[0]
    for i in range(count):
        low, high = min(low, numbers[i]), max(high, numbers[i])
    return low, high


@compiled
def _widen(box: Array, item: Array, row_after: Array, arena: Array, decaying: int) -> None:
    """Makes room in the boxes for the states that items take on in the window; a power is 1 at most."""
    fixed = arena.shape[1] - decaying
    for k in range(len(item)):
        if row_after[k] >= 0:
            lowest, highest, state = box[0, item[k] // BLOCK], box[1, item[k] // BLOCK], arena[row_after[k]]
            for j in range(fixed):
                lowest[j], highest[j] = min(lowest[j], state[j]), max(highest[j], state[j])
            highest[fixed : arena.shape[1]] = 1


@compiled
def score_blocks(window: WindowScores, items: ItemBlocks, k: int, is_scored: Array) -> None:
    """Writes the scores of event k for the items of some blocks, bool[B]."""
    for b in range(len(is_scored)):
        if is_scored[b]:
            if len(window.given):
                stop = min((b + 1) * BLOCK, window.given.shape[1])
                items.scores[0, b * BLOCK : stop] = window.given[k, b * BLOCK : stop]
            else:
                _score_block(window, items, k, b)
    for e in range(window.bonus_start[k], window.bonus_start[k + 1]):
        if is_scored[window.bonus_item[e] // BLOCK]:
            items.scores[0, window.bonus_item[e]] += window.bonus[e]


@compiled(inline="always")
def _score_block(window: WindowScores, items: ItemBlocks, k: int, b: int) -> None:
    d, vectors, query, start = window.arena.shape[1], items.vectors[b], window.query[k : k + 1], b * BLOCK
    if items.shifted[b] != k // CHUNK:
        _write_powers(window, items, b, k // CHUNK)
    for i in range(BLOCK):
        items.scores[0, start + i] = items.bias[b, i]
    add_matmul_of_rows(items.scores, start, (0,), query, 0, (0,), vectors[:d])
    if len(vectors) > d:
        add_matmul_of_rows(items.scores, start, (0,), query, d, (0,), vectors[d:])


@compiled
def _write_powers(window: WindowScores, items: ItemBlocks, b: int, chunk: int) -> None:
    """Writes the decaying columns of a block's vectors for the shift of a chunk.

    Columns with the same shift as before stay; so do those that were 0, because shifts only grow.
    """
    fixed, before, shift = window.arena.shape[1] - window.shift.shape[1], items.shifted[b], window.shift[chunk]
    for j in range(len(shift)):
        if before == NOT_YET or (items.is_alive[b, j] and shift[j] != window.shift[before, j]):
            powers, exponents, most = items.vectors[b, fixed + j], items.decaying[b, j], np.float32(0)
            for i in range(BLOCK):
                powers[i] = exp2(exponents[i] - shift[j])
            for i in range(BLOCK):
                most = max(most, powers[i])
            items.is_alive[b, j] = most > 0
    items.shifted[b] = chunk


@compiled
def apply_event(window: WindowScores, items: ItemBlocks, k: int) -> None:
    """Gives the item of event k its new state."""
    if len(window.given) or not window.bound.shape[1] or window.row_after[k] < 0:
        return
    b, i, state = window.item[k] // BLOCK, window.item[k] % BLOCK, window.arena[window.row_after[k]]
    fixed, chunk = len(state) - window.shift.shape[1], items.shifted[b]
    for j in range(fixed):
        items.vectors[b, j, i] = state[j]
    for j in range(fixed, len(state)):
        items.decaying[b, j - fixed, i] = state[j]
        if chunk != NOT_YET:
            items.vectors[b, j, i] = exp2(state[j] - window.shift[chunk, j - fixed])
            items.is_alive[b, j - fixed] = True
