"""The gradient of list_log_sum, from what a kernel of any device computes along with the sums."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from dynedge.ops.list_log_sum.inputs import SumInputs

# returns the sums [n], each entry's share of its event's sum [L], and the gradient of the sums in the queries [n, D]
Kernel = Callable[[SumInputs], tuple[Tensor, Tensor, Tensor]]


def differentiable_sum(kernel: Kernel, inputs: SumInputs) -> Tensor:
    """Returns [n]: the kernel's sums, differentiable in the queries and in the values."""
    out: Tensor = _ListLogSum.apply(kernel, *inputs)  # type: ignore[no-untyped-call]
    return out


class _ListLogSum(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, kernel: Kernel, *parts: Any) -> Tensor:
        inputs = SumInputs(*parts)
        out, share, query_grad = kernel(inputs)
        ctx.save_for_backward(share, query_grad, inputs.lists.event)
        ctx.types = inputs.query.dtype, inputs.value.dtype
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        share, query_grad, event = ctx.saved_tensors
        of_query, of_value = ctx.types
        gradients = (query_grad * grad[:, None]).to(of_query), (share * grad[event.long()]).to(of_value)
        return None, *gradients, *[None] * (len(SumInputs._fields) - 2)
