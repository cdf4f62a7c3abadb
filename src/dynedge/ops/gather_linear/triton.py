"""gather_linear on a GPU: gathered rows and one matrix product; gradients are summed by row in a fixed order."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from dynedge.ops.segment_sum.triton import segment_sum

ALIGNMENT = 8  # numbers: matrix products are slow where rows are not a multiple of it


def gather_linear(parts: Sequence[tuple[Tensor, Tensor | None]], w: Tensor, bias: Tensor, relu: bool) -> Tensor:
    inputs = [x if index is None else gather_rows(x, index) for x, index in parts]
    if padding := -w.shape[1] % ALIGNMENT:
        inputs.append(inputs[0].new_zeros(len(inputs[0]), padding))
        w = F.pad(w, (0, padding))
    out = F.linear(inputs[0] if len(inputs) == 1 else torch.cat(inputs, 1), w, bias)
    return F.relu(out) if relu else out


def gather_rows(x: Tensor, index: Tensor) -> Tensor:
    out: Tensor = _GatherRows.apply(x, index)  # type: ignore[no-untyped-call]
    return out


class _GatherRows(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, index: Tensor) -> Tensor:
        ctx.save_for_backward(index)
        ctx.shape, ctx.kind = x.shape, x.dtype
        return x.index_select(0, index)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        (index,) = ctx.saved_tensors
        keys, order = torch.sort(index, stable=True)
        out = grad.new_zeros(ctx.shape, dtype=torch.float32)
        segment_sum(grad.contiguous(), order, keys, out)
        return out.to(ctx.kind), None
