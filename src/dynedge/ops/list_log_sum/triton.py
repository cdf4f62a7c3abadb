"""list_log_sum on a GPU by a Triton kernel, in float32."""

from __future__ import annotations

from typing import Any

import torch
import triton
from torch import Tensor
from torch.autograd.function import once_differentiable

from dynedge.ops.list_log_sum import triton_kernels
from dynedge.ops.list_log_sum.inputs import ListedRows, SumInputs

ENTRIES = 32  # scored at once by a program


def list_log_sum(inputs: SumInputs) -> Tensor:
    query, value, *rest = inputs
    out: Tensor = _ListLogSum.apply(query, value, *rest)  # type: ignore[no-untyped-call]
    return out


class _ListLogSum(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        query: Tensor,
        value: Tensor,
        arena: Tensor,
        outside: Tensor,
        id_embeddings: Tensor | None,
        lists: ListedRows,
        item: Tensor,
        decay: Tensor | None,
    ) -> Tensor:
        n, d = len(query), arena.shape[1]
        out, share = arena.new_empty(n), arena.new_zeros(len(value))
        query_grad = arena.new_empty(query.shape)
        tables = query.contiguous(), arena.contiguous(), outside.contiguous()
        if n:
            triton_kernels.sum_events[(n,)](
                *(*tables, arena if id_embeddings is None else id_embeddings.contiguous()),
                *(arena if decay is None else decay.contiguous(), lists.start, lists.item, lists.row, item),
                *(value.contiguous(), out, share, query_grad, len(arena)),
                d=d,
                DECAYING=0 if decay is None else decay.shape[1],
                BE=ENTRIES,
                BK=triton.next_power_of_2(d),
                HAS_IDS=id_embeddings is not None,
                num_warps=4,
            )
        ctx.save_for_backward(share, query_grad, lists.event)
        ctx.types = query.dtype, value.dtype
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        share, query_grad, event = ctx.saved_tensors
        of_query, of_value = ctx.types
        return (query_grad * grad[:, None]).to(of_query), (share * grad[event]).to(of_value), *[None] * 6
