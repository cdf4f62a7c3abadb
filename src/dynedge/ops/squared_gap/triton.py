"""squared_gap on a GPU: two launches forward, one backward."""

from __future__ import annotations

from typing import Any

import torch
import triton
from torch import Tensor
from torch.autograd.function import once_differentiable

from dynedge.ops.squared_gap import triton_kernels

ROWS = 32  # per program


def squared_gap(a: Tensor, b: Tensor, weight: float) -> tuple[Tensor, Tensor]:
    out: tuple[Tensor, Tensor] = _SquaredGap.apply(a, b, weight)  # type: ignore[no-untyped-call]
    return out


class _SquaredGap(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, a: Tensor, b: Tensor, weight: float) -> tuple[Tensor, Tensor]:
        a, b = a.contiguous(), b.contiguous()
        count, d = a.shape
        partial = a.new_empty(2, triton.cdiv(count, ROWS))
        if count:
            triton_kernels.sums[(partial.shape[1],)](a, b, partial, count, weight, **_shape(d))
        ctx.save_for_backward(a, b)
        ctx.weight = weight
        total, mean = partial.sum(1).unbind()
        ctx.mark_non_differentiable(mean)
        return total, mean

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor, _: Tensor) -> tuple[Tensor, Tensor, None]:
        a, b = ctx.saved_tensors
        grads = a.new_empty(2, *a.shape)
        if len(a):
            grid = (triton.cdiv(len(a), ROWS),)
            triton_kernels.gradients[grid](a, b, grad, grads, len(a), ctx.weight, **_shape(a.shape[1]))
        of_a, of_b = grads.unbind()
        return of_a, of_b, None


def _shape(d: int) -> dict[str, int]:
    return {"D": d, "BM": ROWS, "BK": min(64, triton.next_power_of_2(d))}
