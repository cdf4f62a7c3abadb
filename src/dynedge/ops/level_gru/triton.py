"""level_gru on a GPU: a few launches for all levels of a window, then whole-window products.

Legend: d width of a state, W states written, R rows of the arena, F rows before the written ones, P rows of pre.

Levels of very many rows get a launch each, as many programs as it takes; runs of narrower ones share a launch whose
programs wait for each other after each level, no more of them than run at once; runs of the narrowest are one
program's. Products are in bfloat16 with float32 sums under autocast, else in float32; states and gradients of states
are float32. Same bits every time.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import torch
import triton
from torch import Tensor
from torch.autograd.function import once_differentiable

from dynedge.ops.level_gru import triton_kernels as kernels
from dynedge.ops.level_gru import triton_narrow_levels as alone
from dynedge.ops.segment_sum.triton import segment_sum
from dynedge.plan.schedule import Schedule
from dynedge.utils.arrays import Array

Run = tuple[int, int, int]  # first level, last level + 1, rows of the widest side among them

LEVEL_TENSORS = "parents", "children", "blocks", "offsets", "psi_keys", "psi_readers"
# From so many rows of a side on: rows a program takes at once, programs a multiprocessor gets, warps of each.
# A launch takes the CPU 30 µs, and a row some 2 ns of the GPU: a level of 32,768 rows is worth one of its own.
NARROW, MIDDLE, WIDE = (0, 16, 1, 8), (1536, 64, 1, 8), (32768, 64, 4, 8)
COLUMNS = 64  # of a state that a program takes at once
ALONE = 16  # no more rows of a side: one program does both sides,
ALONE_BYTES = 96 * 1024  # if it can hold the weights of both
SHORT = 16  # fewer of such levels join what is next to them: a launch more takes longer than they gain


@dataclass(frozen=True, eq=False)
class Levels:
    """A schedule's levels as the kernels read them: tensors where the arithmetic runs, launches as plain numbers."""

    parents: Tensor  # int32[W, 2]
    children: Tensor  # int32[R, 2]
    blocks: Tensor  # int32[2L + 1]
    offsets: Tensor  # int32[2L]: where each block's rows start when all users' come before all items'
    psi_keys: Tensor  # int32: the ψ row of each reader, sorted
    psi_readers: Tensor  # int32: the reader w, as 2·w + 1: the row of sent [2W] that goes to its other parent
    first_written: int
    users: int  # written rows of users
    runs: list[Run]

    @classmethod
    def of(cls, schedule: Schedule, device: torch.device | str) -> Levels:
        arrays = level_arrays(schedule)
        tensors: dict[str, Any] = {name: torch.from_numpy(array).to(device) for name, array in arrays.items()}
        return cls(**tensors, **level_metadata(schedule))


def level_arrays(schedule: Schedule) -> dict[str, Array]:
    """The tensors of Levels, int32, still on the host."""
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
    """The rest of Levels."""
    users = int(np.diff(schedule.blocks)[::2].sum())
    return {"first_written": schedule.first_written, "users": users, "runs": runs(schedule.blocks)}


def runs(blocks: Array) -> list[Run]:
    """Each wide level alone, others of a kind together."""
    sides = np.diff(blocks).reshape(-1, 2).max(1, initial=0)
    kinds = np.searchsorted((ALONE + 1, MIDDLE[0], WIDE[0]), sides, side="right")
    for first, last in _stretches(kinds):
        if kinds[first] == 0 and last - first < SHORT:
            kinds[first:last] = 1
    return [(first, last, int(sides[first:last].max())) for first, last in _stretches(kinds, alone=3)]


def _stretches(kinds: Array, alone: int = -1) -> list[tuple[int, int]]:
    """Where the same kind goes on: first, last + 1; each of kind `alone` by itself."""
    new = np.ones(len(kinds), bool)
    new[1:] = (kinds[1:] != kinds[:-1]) | (kinds[1:] == alone)
    return list(pairwise([*np.flatnonzero(new).tolist(), len(kinds)]))


def level_gru(
    roots: Tensor, pre: Tensor, source: Tensor, w_own: Tensor, w_other: Tensor, b_own: Tensor, levels: Levels
) -> Tensor:
    """The arena float32[R, d]: the roots, then the written states; written row w adds pre[source[w]], pre [P, 3d].

    All rows of the arena have a gradient, so that whoever reads it need not tell roots from written states.
    """
    arena: Tensor = _LevelGRU.apply(roots, pre, source, w_own, w_other, b_own, levels)  # type: ignore[no-untyped-call]
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
    ) -> Tensor:
        kind = torch.bfloat16 if torch.is_autocast_enabled(roots.device.type) else torch.float32
        d, first, written = roots.shape[1], levels.first_written, len(source)
        arena = roots.new_empty(first + written, d)
        arena[:first] = roots
        kept = roots.new_empty((written, 4 * d), dtype=kind)
        operands = roots.new_empty((written, 2 * d), dtype=kind)
        weights = w_own.to(kind).contiguous(), w_other.to(kind).contiguous()
        tables = arena, pre.contiguous(), kept, operands, *weights, b_own.contiguous()
        lists = levels.parents, source, levels.blocks, levels.offsets
        _launch("forward", levels.runs, d, kind, first, *tables, *lists)
        ctx.levels, ctx.pre = levels, (pre.shape, pre.dtype)
        ctx.save_for_backward(*weights, kept, operands, source)
        return arena

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        levels: Levels = ctx.levels
        w_own, w_other, kept, operands, source = ctx.saved_tensors
        d, first, users = w_own.shape[2], levels.first_written, levels.users
        turned, sent = torch.empty_like(kept), grad.new_empty(len(source), 2 * d)
        grad = grad.contiguous()
        tables = grad[first:], sent, kept, operands, turned, w_own, w_other
        lists = levels.children, levels.blocks, levels.offsets
        _launch("backward", levels.runs[::-1], d, kept.dtype, first, *tables, *lists)
        grads = _root_gradients(grad[:first], sent, levels), _pre_gradients(turned, source, levels, *ctx.pre)
        sides = [_weight_gradients(turned[part], operands[part], d) for part in (slice(users), slice(users, None))]
        own, other, bias = (torch.stack(pair) for pair in zip(*sides, strict=True))
        return *grads, None, own, other, bias, None


def _weight_gradients(turned: Tensor, operands: Tensor, d: int) -> tuple[Tensor, Tensor, Tensor]:
    """Of one side's w_own, w_other [3d, d] and b_own [3d]; those of own parents come in the order n, r, z."""
    own, other = turned[:, : 3 * d], turned[:, d:]
    w_own, w_other = _product(own.T, operands[:, :d]), _product(other.T, operands[:, d:])
    return w_own.roll(-d, 0), w_other, own.sum(0, dtype=torch.float32).roll(-d, 0)


def _pre_gradients(turned: Tensor, source: Tensor, levels: Levels, shape: torch.Size, kind: torch.dtype) -> Tensor:
    """[P, 3d]: ∂r ∂z ∂n, summed over the written rows that add each row of pre."""
    keys, order = torch.sort(source, stable=True)
    out = turned.new_zeros(shape, dtype=torch.float32)
    segment_sum(turned[:, shape[1] // 3 :], _by_side(levels, len(source))[order], keys, out)
    return out.to(kind)


def _by_side(levels: Levels, written: int) -> Tensor:
    """int32[W]: where each written row is when all users' come before all items'."""
    starts = levels.blocks[:-1] - levels.first_written
    number = torch.arange(written, dtype=torch.int32, device=starts.device)
    block = torch.searchsorted(starts, number, right=True) - 1
    return number - starts[block] + levels.offsets[block]


def _root_gradients(grad: Tensor, sent: Tensor, levels: Levels) -> Tensor:
    """[F, d]: what reaches the roots from the rows that read them, and from outside."""
    rows, d = grad.shape
    out = torch.empty_like(grad)
    if rows:
        width = min(COLUMNS, max(16, triton.next_power_of_2(d)))
        kernels.root_gradients[(triton.cdiv(rows, 32),)](
            out, sent, levels.children, rows, levels.first_written, D=d, BM=32, BK=width
        )
    segment_sum(sent.view(-1, d), levels.psi_readers, levels.psi_keys, out)
    return out.add_(grad)


def _launch(name: str, runs: list[Run], d: int, kind: torch.dtype, first_written: int, *tensors: Tensor) -> None:
    """The kernel of that name over all runs of levels, in their order; backward, a run's levels are reversed too."""
    device = tensors[0].device
    width = min(COLUMNS, max(16, triton.next_power_of_2(d)))
    tiles = triton.cdiv(d, width)
    precision = "tf32x3" if kind == torch.float32 else "ieee" if device.type == "cuda" else "rounded"
    shape = {"D": d, "BK": width, "PRECISION": precision}
    holds = tiles == 1 and 12 * width * width * kind.itemsize <= ALONE_BYTES
    if device.type != "cuda":
        runs = _apart(runs, holds, back=name == "backward")
    arrived = torch.zeros(len(runs), dtype=torch.int32, device=device)
    for number, (first, last, rows) in enumerate(runs):
        levels = first, last, first_written
        if holds and rows <= ALONE:
            getattr(alone, name)[(1,)](*tensors, *levels, BM=16, **shape, num_warps=8, num_stages=1)
            continue
        _, block, at_once, warps = WIDE if rows >= WIDE[0] else MIDDLE if rows >= MIDDLE[0] else NARROW
        programs = 2 * tiles * min(triton.cdiv(rows, block), max(1, _room(device) * at_once // (2 * tiles)))
        meet = device.type == "cuda" and last - first > 1
        getattr(kernels, name)[(programs,)](
            *tensors,
            arrived[number:],
            *levels,
            BM=block,
            MEET=meet,
            **shape,
            num_warps=warps,
            num_stages=1,
            **({"launch_cooperative_grid": True} if meet else {}),
        )


def _apart(runs: list[Run], holds: bool, back: bool) -> list[Run]:
    """A launch a level where programs wait for each other: in Triton's interpreter one runs after the other."""

    def split(first: int, last: int, rows: int) -> list[Run]:
        if holds and rows <= ALONE:
            return [(first, last, rows)]
        levels = range(first, last)
        return [(level, level + 1, rows) for level in (reversed(levels) if back else levels)]

    return [part for run in runs for part in split(*run)]


def _room(device: torch.device) -> int:
    """How many programs run at once, one a multiprocessor."""
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 4


def _product(a: Tensor, b: Tensor) -> Tensor:
    """With float32 sums and a float32 result."""
    if a.dtype == torch.float32:
        return torch.mm(a, b)
    return torch.mm(a, b, out_dtype=torch.float32) if a.is_cuda else torch.mm(a.float(), b.float())
