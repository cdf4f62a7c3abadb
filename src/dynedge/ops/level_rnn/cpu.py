"""level_rnn on a CPU by numba: one pass over the rows in level order, and one back.

Legend: d width of a state, W states written, R rows of the arena.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from dynedge.plan.schedule import OTHER, OWN, Schedule
from dynedge.utils.array_type import Array
from dynedge.utils.numba_compile import compiled


def level_rnn(roots: Tensor, pre: Tensor, w_own: Tensor, w_other: Tensor, schedule: Schedule) -> Tensor:
    written: Tensor = _LevelRNN.apply(roots, pre, w_own, w_other, schedule)  # type: ignore[no-untyped-call]
    return written


class _LevelRNN(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, roots: Tensor, pre: Tensor, w_own: Tensor, w_other: Tensor, schedule: Schedule) -> Tensor:
        first = schedule.first_written
        arena = torch.cat([roots, pre])
        transposed = (np.ascontiguousarray(w.detach().numpy().transpose(0, 2, 1)) for w in (w_own, w_other))
        _forward(arena.numpy(), first, schedule.parents, schedule.blocks, *transposed)
        ctx.save_for_backward(arena, w_own, w_other)
        ctx.schedule = schedule
        return arena[first:]

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        arena, w_own, w_other = ctx.saved_tensors
        schedule, first = ctx.schedule, ctx.schedule.first_written
        row_grads = torch.zeros_like(arena)
        row_grads[first:] = grad
        weights = (np.ascontiguousarray(w.numpy()) for w in (w_own, w_other))
        _backward(row_grads.numpy(), arena.numpy(), first, schedule.parents, schedule.blocks, *weights)
        own_grad, other_grad = torch.zeros_like(w_own), torch.zeros_like(w_other)
        for side, rows in enumerate(_rows_of_sides(schedule)):
            row_grad = row_grads[first + rows]
            for which, weight_grad in ((OWN, own_grad), (OTHER, other_grad)):
                weight_grad[side] = row_grad.T @ arena[torch.from_numpy(schedule.parents[rows.numpy(), which]).long()]
        return row_grads[:first], row_grads[first:], own_grad, other_grad, None


def _rows_of_sides(schedule: Schedule) -> list[Tensor]:
    """Written rows of users and of items, numbered from 0."""
    lengths = np.diff(schedule.blocks)
    side = np.repeat(np.arange(len(lengths)) % 2, lengths)
    return [torch.from_numpy(np.flatnonzero(side == s)) for s in (0, 1)]


@compiled
def _forward(arena: Array, first: int, parents: Array, blocks: Array, w_own: Array, w_other: Array) -> None:
    """Computes the written rows in place of `pre`; weights are transposed, [2, in, out]."""
    d = arena.shape[1]
    for block in range(len(blocks) - 1):
        own_weights, other_weights = w_own[block % 2], w_other[block % 2]
        for row in range(blocks[block], blocks[block + 1]):
            own, other, out = arena[parents[row - first, OWN]], arena[parents[row - first, OTHER]], arena[row]
            for c in range(d):
                for o in range(d):
                    out[o] += own[c] * own_weights[c, o] + other[c] * other_weights[c, o]
            for o in range(d):
                out[o] = math.tanh(out[o])


@compiled
def _backward(
    row_grads: Array, arena: Array, first: int, parents: Array, blocks: Array, w_own: Array, w_other: Array
) -> None:
    """Adds to row_grads [R, d] what the written rows pass on; theirs become gradients before the tanh."""
    d = arena.shape[1]
    for block in range(len(blocks) - 2, -1, -1):
        own_weights, other_weights = w_own[block % 2], w_other[block % 2]
        for row in range(blocks[block + 1] - 1, blocks[block] - 1, -1):
            row_grad, state = row_grads[row], arena[row]
            own, other = row_grads[parents[row - first, OWN]], row_grads[parents[row - first, OTHER]]
            for o in range(d):
                row_grad[o] *= 1 - state[o] * state[o]
            for o in range(d):
                for c in range(d):
                    own[c] += row_grad[o] * own_weights[o, c]
                for c in range(d):
                    other[c] += row_grad[o] * other_weights[o, c]
