"""level_rnn on a CPU: one compiled pass over the rows, which stand in an order that never waits, and one back.

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
from dynedge.utils.arrays import Array
from dynedge.utils.compile import compiled


def level_rnn(roots: Tensor, pre: Tensor, w_own: Tensor, w_other: Tensor, schedule: Schedule) -> Tensor:
    written: Tensor = _LevelRNN.apply(roots, pre, w_own, w_other, schedule)  # type: ignore[no-untyped-call]
    return written


class _LevelRNN(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, roots: Tensor, pre: Tensor, w_own: Tensor, w_other: Tensor, schedule: Schedule) -> Tensor:
        first = schedule.first_written
        arena = torch.cat([roots, pre])
        turned = (np.ascontiguousarray(w.detach().numpy().transpose(0, 2, 1)) for w in (w_own, w_other))
        _forward(arena.numpy(), first, schedule.parents, schedule.blocks, *turned)
        ctx.save_for_backward(arena, w_own, w_other)
        ctx.schedule = schedule
        return arena[first:]

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        arena, w_own, w_other = ctx.saved_tensors
        schedule, first = ctx.schedule, ctx.schedule.first_written
        back = torch.zeros_like(arena)
        back[first:] = grad
        weights = (np.ascontiguousarray(w.numpy()) for w in (w_own, w_other))
        _backward(back.numpy(), arena.numpy(), first, schedule.parents, schedule.blocks, *weights)
        to_own, to_other = torch.zeros_like(w_own), torch.zeros_like(w_other)
        for side, rows in enumerate(_rows_of_sides(schedule)):
            given = back[first + rows]
            for which, to in ((OWN, to_own), (OTHER, to_other)):
                to[side] = given.T @ arena[torch.from_numpy(schedule.parents[rows.numpy(), which]).long()]
        return back[:first], back[first:], to_own, to_other, None


def _rows_of_sides(schedule: Schedule) -> list[Tensor]:
    """The written rows of users, and those of items, counted from the first."""
    lengths = np.diff(schedule.blocks)
    side = np.repeat(np.arange(len(lengths)) % 2, lengths)
    return [torch.from_numpy(np.flatnonzero(side == s)) for s in (0, 1)]


@compiled
def _forward(arena: Array, first: int, parents: Array, blocks: Array, w_own: Array, w_other: Array) -> None:
    """The written rows, which hold `pre` before; weights are turned, [2, in, out]."""
    d = arena.shape[1]
    for block in range(len(blocks) - 1):
        mine, theirs = w_own[block % 2], w_other[block % 2]
        for row in range(blocks[block], blocks[block + 1]):
            own, other, out = arena[parents[row - first, OWN]], arena[parents[row - first, OTHER]], arena[row]
            for c in range(d):
                for o in range(d):
                    out[o] += own[c] * mine[c, o] + other[c] * theirs[c, o]
            for o in range(d):
                out[o] = math.tanh(out[o])


@compiled
def _backward(
    back: Array, arena: Array, first: int, parents: Array, blocks: Array, w_own: Array, w_other: Array
) -> None:
    """back [R, d]: gradients of the rows, as given; of written ones it becomes that of what tanh was taken of."""
    d = arena.shape[1]
    for block in range(len(blocks) - 2, -1, -1):
        mine, theirs = w_own[block % 2], w_other[block % 2]
        for row in range(blocks[block + 1] - 1, blocks[block] - 1, -1):
            given, state = back[row], arena[row]
            own, other = back[parents[row - first, OWN]], back[parents[row - first, OTHER]]
            for o in range(d):
                given[o] *= 1 - state[o] * state[o]
            for o in range(d):
                for c in range(d):
                    own[c] += given[o] * mine[o, c]
                for c in range(d):
                    other[c] += given[o] * theirs[o, c]
