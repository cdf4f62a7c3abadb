"""list_log_sum on a GPU by a Triton kernel, in float32."""

from __future__ import annotations

import triton
from torch import Tensor

from dynedge.ops.list_log_sum import triton_kernels
from dynedge.ops.list_log_sum.differentiable import differentiable_sum
from dynedge.ops.list_log_sum.inputs import SumInputs

ENTRIES = 32  # scored at once by a program


def list_log_sum(inputs: SumInputs) -> Tensor:
    return differentiable_sum(_sums, inputs)


def _sums(inputs: SumInputs) -> tuple[Tensor, Tensor, Tensor]:
    query, value, arena, outside, id_embeddings, lists, item, decay = inputs
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
    return out, share, query_grad
