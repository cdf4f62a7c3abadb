"""level_gru on a CPU: compiled levels between large products over the whole window.

Legend: d width of a state, W states written, R rows of the arena, F rows before the written ones.

Before the levels: the products of all entry and ψ rows with the weights of their readers, in one pass. About half of
all reads are of such rows (44 % on ml-100k, 67 % on globo at 300 windows), and the readers of a ψ row share them.
The levels: runs of narrow ones in one compiled call; a wide one in parts, which threads take in turn.
After the backward levels: gradients of roots, weights and biases, from all rows at once.
"""

from __future__ import annotations

from itertools import accumulate, pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from dynedge.ops import thread_pool
from dynedge.ops.autograd import apply
from dynedge.ops.level_gru import cpu_kernels
from dynedge.ops.thread_pool import run_in_parts
from dynedge.plan.schedule import Schedule
from dynedge.utils.array_type import Array


def level_gru(
    roots: Tensor, pre: Tensor, w_own: Tensor, w_other: Tensor, b_own: Tensor, schedule: Schedule
) -> Tensor:
    """The written states [W, d]; shapes as in the package."""
    if roots.dtype not in (torch.float32, torch.float64):
        raise TypeError(f"level_gru on a CPU computes in float32 or float64, not {roots.dtype}.")
    written: Tensor = apply(_LevelGRU, roots, pre, w_own, w_other, b_own, schedule)
    return written


class _LevelGRU(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, roots: Tensor, pre: Tensor, w_own: Tensor, w_other: Tensor, b_own: Tensor, schedule: Schedule
    ) -> Tensor:
        d = roots.shape[1]
        arena, gates = roots.new_empty(schedule.rows, d), roots.new_empty(len(pre), 4 * d)
        arena.numpy()[: schedule.first_written] = roots.numpy()
        entry_own = roots.new_empty(schedule.first_psi, 3 * d)
        root_other = roots.new_empty(schedule.first_phi, 3 * d)
        weights = cpu_kernels.kernel_weights(*_arrays(b_own, w_own, w_other))
        tables = _arrays(arena, entry_own, root_other)
        run_in_parts(
            cpu_kernels.project_roots,
            schedule.first_phi,
            root_bounds(schedule),
            schedule.children,
            *weights[1:],
            *tables,
        )
        arrays = *weights, *tables, *_arrays(pre, gates)
        for first, last, rows in _runs(schedule.blocks):
            run_in_parts(cpu_kernels.forward, rows, first, last, schedule.blocks, schedule.parents, *arrays)
        ctx.schedule = schedule
        ctx.save_for_backward(w_own, w_other, arena, gates)
        return arena[schedule.first_written :]

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        schedule: Schedule = ctx.schedule
        w_own, w_other, arena, gates = ctx.saved_tensors
        d = arena.shape[1]
        gate_grads, state_grads = torch.empty_like(gates), torch.empty_like(arena)
        weights = _arrays(_to_kernel_order(w_own, d), w_other)
        arrays = *weights, *_arrays(arena, gates, grad, gate_grads, state_grads)
        lists = schedule.blocks, schedule.parents, schedule.children
        for first, last, rows in reversed(_runs(schedule.blocks)):
            run_in_parts(cpu_kernels.backward, rows, first, last, *lists, *arrays)
        reader_sums = _psi_gradients(state_grads, gate_grads, weights, schedule)
        needs_roots, needs_weights = ctx.needs_input_grad[0], any(ctx.needs_input_grad[2:5])
        grad_roots = _root_gradients(gate_grads, state_grads, weights, schedule) if needs_roots else None
        grads = _weight_gradients(gate_grads, reader_sums, arena, schedule) if needs_weights else (None, None, None)
        return grad_roots, gate_grads[:, d:], *grads, None


def _to_kernel_order(rows: Tensor, d: int) -> Tensor:
    """Rows [2, 3d, ...] from torch's order of gates (r, z, n) to (n, r, z); with −d, back to torch's."""
    return rows.roll(d, 1)


def _arrays(*tensors: Tensor) -> tuple[Array, ...]:
    return tuple(tensor.contiguous().numpy() for tensor in tensors)


def root_bounds(schedule: Schedule) -> Array:
    """First rows of entry users, entry items, ψ users and ψ items, and the end."""
    parts = schedule.entry_users, schedule.entry_items, schedule.psi_users, schedule.psi_items
    return np.array([0, *accumulate(map(len, parts))])


def _psi_gradients(state_grads: Tensor, gate_grads: Tensor, weights: tuple[Array, ...], schedule: Schedule) -> Tensor:
    """Fills the ψ rows of state_grads; returns the sums over the readers of each, [ψ rows, 3d]."""
    reader_sums = state_grads.new_empty(schedule.first_phi - schedule.first_psi, 3 * state_grads.shape[1])
    lists = root_bounds(schedule), schedule.psi_starts, schedule.psi_readers, schedule.first_written
    run_in_parts(
        cpu_kernels.psi_gradients,
        len(schedule.psi_readers),
        *lists,
        weights[1],
        *_arrays(gate_grads, reader_sums, state_grads),
    )
    return reader_sums


def _root_gradients(
    gate_grads: Tensor, state_grads: Tensor, weights: tuple[Array, ...], schedule: Schedule
) -> Tensor:
    """Fills the entry and φ rows of state_grads; returns all rows before the written ones."""
    bounds = root_bounds(schedule)
    arrays = schedule.first_written, schedule.children, *weights, *_arrays(gate_grads, state_grads)
    for side in (0, 1):
        phi = schedule.first_phi + np.flatnonzero(schedule.dnodes % 2 == side)
        rows = np.concatenate((np.arange(bounds[side], bounds[side + 1]), phi))
        run_in_parts(cpu_kernels.root_gradients, len(rows), rows, side, *arrays)
    return state_grads[: schedule.first_written]


def _weight_gradients(
    gate_grads: Tensor, reader_sums: Tensor, arena: Tensor, schedule: Schedule
) -> tuple[Tensor, Tensor, Tensor]:
    d = arena.shape[1]
    w_own, w_other, b_own = (arena.new_empty(2, 3 * d, *more) for more in ((d,), (d,), ()))
    groups = cpu_kernels.group_by_reading(schedule.blocks, schedule.parents, schedule.first_psi, schedule.first_phi)
    arrays = root_bounds(schedule), schedule.parents, *_arrays(gate_grads, reader_sums, arena, w_own, w_other, b_own)
    run_in_parts(cpu_kernels.weight_gradients, len(gate_grads), *groups, *arrays)
    return _to_kernel_order(w_own, -d), w_other, _to_kernel_order(b_own, -d)


def _runs(blocks: Array) -> list[tuple[int, int, int]]:
    """(first, last + 1, rows of the first) of runs of levels: each wide level by itself, narrow ones together."""
    if len(blocks) == 1:
        return []
    rows = blocks[2::2] - blocks[:-2:2]
    if rows.max() < thread_pool.MIN_ROWS:
        return [(0, len(rows), int(rows[0]))]
    wide = rows >= thread_pool.MIN_ROWS
    edges = [0, *(np.flatnonzero(wide[1:] | wide[:-1]) + 1).tolist(), len(rows)]
    return [(first, last, int(rows[first])) for first, last in pairwise(edges)]
