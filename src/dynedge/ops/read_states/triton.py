"""read_states on a GPU. Nothing here waits for it: how many rows are of ψ is never asked."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import triton
from torch import Tensor
from torch.autograd.function import once_differentiable

from dynedge.ops.read_states import triton_kernels as kernels

BLOCK = 32  # rows a program takes at once
PROGRAMS = 256  # that sum for ξ, at most


def read_states(groups: Sequence[tuple[Any, Tensor]], more: Tensor | None) -> Tensor:
    learned = [tensor for side, _ in groups for tensor in side[:2]]
    indices = [(*side[2:], entities) for side, entities in groups]
    found: Tensor = _ReadStates.apply(indices, more, *learned)  # type: ignore[no-untyped-call]
    return found


class _ReadStates(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, groups: list[tuple[Tensor, ...]], more: Tensor | None, *learned: Tensor) -> Tensor:
        sizes, d = [len(entities) for *_, entities in groups], len(learned[0])
        out = learned[0].new_empty(sum(sizes) + (0 if more is None else len(more)), d)
        source = torch.empty(sum(sizes), dtype=torch.int64, device=out.device)
        at = 0
        for i, size in enumerate(sizes):
            xi, psi = learned[2 * i : 2 * i + 2]
            if size:
                kernels.fill[(triton.cdiv(size, BLOCK),)](
                    *(out[at:], source[at:], xi.contiguous(), psi, *groups[i], size), D=d, BM=BLOCK, BK=_width(d)
                )
            at += size
        if more is not None:
            out[at:] = more
        # Not the groups: by the time of the backward pass the state has moved on.
        ctx.sizes, ctx.shapes = sizes, [tensor.shape for tensor in learned]
        ctx.save_for_backward(source)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        (source,), grad = ctx.saved_tensors, grad.contiguous()
        grads, at = list[Tensor | None](), 0
        for i, size in enumerate(ctx.sizes):
            for_xi, for_psi = ctx.needs_input_grad[2 + 2 * i : 4 + 2 * i]
            own, of = grad[at : at + size], source[at : at + size]
            grads.append(_xi_sums(own, of) if for_xi else None)
            shape = ctx.shapes[2 * i + 1]
            grads.append(_of_psi(own, of, shape) if for_psi and shape[0] and size else None)
            at += size
        return None, grad[at:] if ctx.needs_input_grad[1] else None, *grads


def _of_psi(rows: Tensor, source: Tensor, shape: torch.Size) -> Tensor:
    """A sparse gradient of all rows; those that are not of ψ have an index below 0, which the optimiser skips."""
    return torch.sparse_coo_tensor(source[None], rows, shape, check_invariants=False)


def _xi_sums(rows: Tensor, source: Tensor) -> Tensor:
    size, d = rows.shape
    part = rows.new_zeros(max(1, min(PROGRAMS, triton.cdiv(size, BLOCK))), d)
    if size:
        kernels.xi_sums[(len(part),)](rows, source, part, size, D=d, BM=BLOCK, BK=_width(d))
    return part.sum(0)


def _width(d: int) -> int:
    return int(min(64, triton.next_power_of_2(d)))
