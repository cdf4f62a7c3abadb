"""level_gru on a GPU: a few launches for all levels of a window, then whole-window products.

Legend: d width of a state, W states written, R rows of the arena, F rows before the written ones, P rows of pre.

A run of levels shares a launch whose programs wait for each other after each level, no more of them than run at once;
runs of the narrowest levels are computed by one program. Products are in bfloat16 with float32 sums under autocast,
else in float32; states and their gradients are float32. The bits are the same every time.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import torch
import triton
from torch import Tensor
from torch.autograd.function import once_differentiable

from dynedge.ops.column_sum.triton import column_sum, weighted_column_sums
from dynedge.ops.gather_linear.triton import converted
from dynedge.ops.level_gru import triton_kernels, triton_narrow_levels
from dynedge.ops.matmul import matmul
from dynedge.ops.remember import remember
from dynedge.ops.segment_sum.triton import segment_sum, sorted_index
from dynedge.plan.schedule import Schedule
from dynedge.utils.array_type import Array

LevelRun = tuple[int, int, int]  # first level, last level + 1, rows of the widest side among them

LEVEL_TENSORS = "parents", "children", "blocks", "offsets", "psi_keys", "psi_readers"


class LaunchShape(NamedTuple):
    """How a run of levels is launched."""

    rows_per_block: int
    programs_per_processor: int
    warps: int

    @property
    def max_registers(self) -> int:
        """Registers per thread with which so many programs run at once on a multiprocessor."""
        return min(255, REGISTERS // (32 * self.warps * self.programs_per_processor))


REGISTERS = 1 << 16  # of a multiprocessor
# For runs of levels with fewer rows on their widest side than WIDE, and with more (benchmarks/level_shapes.py).
WIDE = 3072
SHAPES = {
    "forward": (LaunchShape(16, 2, 8), LaunchShape(16, 2, 8)),
    "backward": (LaunchShape(16, 2, 8), LaunchShape(32, 2, 8)),
}
FLOAT32 = LaunchShape(16, 1, 8)  # products in three parts need so many registers
MAX_BYTES = 128  # of a row of a state that a program computes at once: more weights would not fit beside it
MAX_SOLO_ROWS = 16  # levels with at most 16 rows per side are computed by one program,
MAX_SOLO_BYTES = 96 * 1024  # if the weights of both sides fit into it
MIN_SOLO_LEVELS = (
    16  # shorter runs of such levels join their neighbours: another launch would cost more than it gains
)


@dataclass(frozen=True, eq=False)
class Levels:
    """A schedule's levels as the kernels read them: tensors on the device, launches as plain numbers."""

    parents: Tensor  # int32[W, 2]
    children: Tensor  # int32[R, 2]
    blocks: Tensor  # int32[2L + 1]
    offsets: Tensor  # int32[2L]: where each block's rows start when all users' rows come before all items'
    psi_keys: Tensor  # int32: the ψ row of each reader, sorted
    psi_readers: (
        Tensor  # int32: 2·w + 1 of each reader w: the row of parent_grads [2W, d] that is for its other parent
    )
    first_written: int
    users: int  # number of written rows of users
    runs: list[LevelRun]

    @cached_property
    def gate_rows(self) -> Callable[[Tensor], tuple[Tensor, Tensor]]:
        """For the rows of pre that are read, int[W]: (these sorted, rows of the gates' gradients in that order)."""

        @remember
        def in_order(source: Tensor) -> tuple[Tensor, Tensor]:
            keys, order = sorted_index(source)
            return keys, _rows_by_side(self, len(source)).index_select(0, order)

        return in_order

    @classmethod
    def of(cls, schedule: Schedule, device: torch.device | str) -> Levels:
        arrays = level_arrays(schedule)
        tensors: dict[str, Any] = {name: torch.from_numpy(array).to(device) for name, array in arrays.items()}
        return cls(**tensors, **level_metadata(schedule))


class EventInputs(NamedTuple):
    """A few numbers of each event and side, which have no gradient, as further inputs of the written rows."""

    values: Tensor  # float32[E, g]
    rows: Tensor  # int32[W]: the row of `values` that each written row reads
    rows_by_side: Tensor  # int32[W]: the same where all users' rows come before all items'
    weights: Tensor  # float32[2, 3d, g]


def level_arrays(schedule: Schedule) -> dict[str, Array]:
    """Arrays of the tensors of Levels, int32, on the host."""
    sizes = np.diff(schedule.blocks).reshape(-1, 2)
    ends = np.cumsum(sizes.T.ravel()).reshape(2, -1).T
    psi = np.arange(schedule.first_psi, schedule.first_phi, dtype=np.int32)
    return {
        "parents": schedule.parents,
        "children": schedule.children,
        "blocks": schedule.blocks,
        "offsets": (ends - sizes).ravel().astype(np.int32),
        "psi_keys": np.repeat(psi, np.diff(schedule.psi_starts)),
        "psi_readers": 2 * (schedule.psi_readers - np.int32(schedule.first_written)) + np.int32(1),
    }


def level_metadata(schedule: Schedule) -> dict[str, Any]:
    """The other fields of Levels."""
    users = int(np.diff(schedule.blocks)[::2].sum())
    return {"first_written": schedule.first_written, "users": users, "runs": runs(schedule.blocks)}


def runs(blocks: Array) -> list[LevelRun]:
    """Runs of levels that share a launch, neighbours of one kind: narrow enough for one program, wide, or others."""
    widths = np.diff(blocks).reshape(-1, 2).max(1, initial=0)
    kinds = np.searchsorted((MAX_SOLO_ROWS + 1, WIDE), widths, side="right")
    for first, last in _runs_of_equal(kinds):
        if kinds[first] == 0 and last - first < MIN_SOLO_LEVELS:
            kinds[first:last] = 1
    return [(first, last, int(widths[first:last].max())) for first, last in _runs_of_equal(kinds)]


def _runs_of_equal(kinds: Array) -> list[tuple[int, int]]:
    """(first, last + 1) of runs of equal kind."""
    new = np.ones(len(kinds), bool)
    new[1:] = kinds[1:] != kinds[:-1]
    return list(pairwise([*np.flatnonzero(new).tolist(), len(kinds)]))


def level_gru(
    roots: Tensor,
    pre: Tensor,
    source: Tensor,
    w_own: Tensor,
    w_other: Tensor,
    b_own: Tensor,
    levels: Levels,
    more: EventInputs | None = None,
) -> Tensor:
    """The arena float32[R, d]: the roots, then the written states; written row w adds pre[source[w]], pre [P, 3d],
    and what `more` gives it.

    All rows of the arena have a gradient, so that readers need not distinguish roots from written states.
    """
    arena: Tensor = _LevelGRU.apply(  # type: ignore[no-untyped-call]
        roots, pre, source, w_own, w_other, b_own, levels, *(more or (None,) * len(EventInputs._fields))
    )
    return arena


class _LevelGRU(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        roots: Tensor,
        pre: Tensor,
        source: Tensor,
        w_own: Tensor,
        w_other: Tensor,
        b_own: Tensor,
        levels: Levels,
        values: Tensor | None,
        value_rows: Tensor | None,
        value_rows_by_side: Tensor | None,
        value_weights: Tensor | None,
    ) -> Tensor:
        dtype = torch.bfloat16 if torch.is_autocast_enabled(roots.device.type) else torch.float32
        d, first, written = roots.shape[1], levels.first_written, len(source)
        arena = roots.new_empty(first + written, d)
        arena[:first] = roots
        gates = roots.new_empty((written, 4 * d), dtype=dtype)
        parent_states = roots.new_empty((written, 2 * d), dtype=dtype)
        own, other = converted(w_own.flatten(0, 1), w_other, dtype)
        weights = own.view_as(w_own), other
        tables = arena, pre.contiguous(), gates, parent_states, *weights, b_own.contiguous()
        lists = levels.parents, source, levels.blocks, levels.offsets
        numbers = 0 if values is None else values.shape[1]
        more = (arena, source, arena)  # not read
        if values is not None and value_rows is not None and value_weights is not None:
            more = values.contiguous(), value_rows, value_weights.mT.contiguous()
        _launch("forward", levels.runs, d, dtype, first, *tables, *lists, *more, G=numbers)
        ctx.levels, ctx.source, ctx.pre = levels, source, (pre.shape, pre.dtype)
        ctx.more = values, value_rows_by_side
        ctx.save_for_backward(*weights, gates, parent_states)
        return arena

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        levels: Levels = ctx.levels
        source: Tensor = ctx.source
        w_own, w_other, gates, parent_states = ctx.saved_tensors
        d, first, users = w_own.shape[2], levels.first_written, levels.users
        gate_grads, parent_grads = torch.empty_like(gates), grad.new_empty(len(source), 2 * d)
        grad = grad.contiguous()
        tables = grad[first:], parent_grads, gates, parent_states, gate_grads, w_own, w_other
        lists = levels.children, levels.blocks, levels.offsets
        _launch("backward", levels.runs[::-1], d, gates.dtype, first, *tables, *lists)
        grads = (
            _root_gradients(grad[:first], parent_grads, levels),
            _pre_gradients(gate_grads, source, levels, *ctx.pre),
        )
        parts = slice(users), slice(users, None)
        weights = _weight_gradients([(gate_grads[part], parent_states[part]) for part in parts], d)
        values, value_rows = ctx.more
        if values is None:
            bias, of_values = torch.stack([column_sum(gate_grads[part, : 3 * d]) for part in parts]), None
        else:
            sums = torch.stack([weighted_column_sums(gate_grads[part], values, value_rows[part]) for part in parts])
            bias, of_values = sums[:, 0, : 3 * d], sums[:, 1:, d:].mT
        return *grads, None, *weights, bias.roll(-d, 1), None, None, None, None, of_values


def _weight_gradients(sides: list[tuple[Tensor, Tensor]], d: int) -> tuple[Tensor, Tensor]:
    """Gradients of w_own and w_other [2, 3d, d], from gate_grads and parent_states of each side.

    Own parents' gates are in the order n, r, z.
    """
    # The part of a product from n to own and the one from h_n to other are not used.
    products = torch.stack([matmul(gates.T, parents) for gates, parents in sides])
    return products[:, : 3 * d, :d].roll(-d, 1), products[:, d:, d:]


def _pre_gradients(
    gate_grads: Tensor, source: Tensor, levels: Levels, shape: torch.Size, dtype: torch.dtype
) -> Tensor:
    """[P, 3d]: ∂r ∂z ∂n, summed over the written rows that read each row of pre."""
    keys, rows = levels.gate_rows(source)
    out = gate_grads.new_zeros(shape, dtype=torch.float32)
    segment_sum(gate_grads[:, shape[1] // 3 :], rows, keys, out)
    return out.to(dtype)


def _rows_by_side(levels: Levels, written: int) -> Tensor:
    """int32[W]: where each written row is when all users' rows come before all items'."""
    starts = levels.blocks[:-1] - levels.first_written
    row = torch.arange(written, dtype=torch.int32, device=starts.device)
    block = torch.searchsorted(starts, row, right=True) - 1
    return row - starts[block] + levels.offsets[block]


def _root_gradients(grad: Tensor, parent_grads: Tensor, levels: Levels) -> Tensor:
    """[F, d]: gradients of the roots, from the rows that read them and from outside."""
    rows, d = grad.shape
    out = torch.empty_like(grad)
    if rows:
        width = min(64, max(16, triton.next_power_of_2(d)))
        triton_kernels.root_gradients[(triton.cdiv(rows, 32),)](
            out, grad, parent_grads, levels.children, rows, levels.first_written, D=d, BM=32, BK=width
        )
    segment_sum(parent_grads.view(-1, d), levels.psi_readers, levels.psi_keys, out, add=True)
    return out


def _tile_width(d: int, dtype: torch.dtype) -> int:
    """Number of columns of a state that a program computes, for weights of this type."""
    return int(min(MAX_BYTES // dtype.itemsize, max(16, triton.next_power_of_2(d))))


def _launch(
    name: str,
    runs: list[LevelRun],
    d: int,
    dtype: torch.dtype,
    first_written: int,
    *tensors: Tensor,
    **constants: int,
) -> None:
    """Launches the kernel of that name for all runs of levels, in order."""
    device = tensors[0].device
    width = _tile_width(d, dtype)
    tiles = triton.cdiv(d, width)
    precision = "tf32x3" if dtype == torch.float32 else "ieee" if device.type == "cuda" else "rounded"
    shape = {"D": d, "BK": width, "PRECISION": precision, **constants}
    fits_one_program = tiles == 1 and 12 * width * width * dtype.itemsize <= MAX_SOLO_BYTES
    if device.type != "cuda":
        runs = _one_level_per_launch(runs, fits_one_program, reverse=name == "backward")
    arrivals = torch.zeros(len(runs), dtype=torch.int32, device=device)
    for number, (first, last, rows) in enumerate(runs):
        levels = first, last, first_written
        if fits_one_program and rows <= MAX_SOLO_ROWS:
            getattr(triton_narrow_levels, name)[(1,)](*tensors, *levels, BM=16, **shape, num_warps=8, num_stages=1)
            continue
        how = FLOAT32 if dtype == torch.float32 else SHAPES[name][rows >= WIDE]
        at_once = _num_processors(device) * how.programs_per_processor // (2 * tiles)
        programs = 2 * tiles * min(triton.cdiv(rows, how.rows_per_block), max(1, at_once))
        needs_barrier = device.type == "cuda" and last - first > 1
        getattr(triton_kernels, name)[(programs,)](
            *tensors,
            arrivals[number:],
            *levels,
            BM=how.rows_per_block,
            HAS_BARRIER=needs_barrier,
            **shape,
            num_warps=how.warps,
            num_stages=1,
            **({"maxnreg": how.max_registers} if device.type == "cuda" else {}),
            **({"launch_cooperative_grid": True} if needs_barrier else {}),
        )


def _one_level_per_launch(runs: list[LevelRun], fits_one_program: bool, reverse: bool) -> list[LevelRun]:
    """One launch per level instead of a barrier: Triton's interpreter runs one program after the other."""

    def split(first: int, last: int, rows: int) -> list[LevelRun]:
        if fits_one_program and rows <= MAX_SOLO_ROWS:
            return [(first, last, rows)]
        levels = range(first, last)
        return [(level, level + 1, rows) for level in (reversed(levels) if reverse else levels)]

    return [part for run in runs for part in split(*run)]


def _num_processors(device: torch.device) -> int:
    """Number of multiprocessors; a fixed number for the interpreter."""
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 4
