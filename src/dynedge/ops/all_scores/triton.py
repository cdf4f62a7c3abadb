"""all_scores on a GPU by Triton kernels, in float32."""

from __future__ import annotations

import torch
import triton
from torch import Tensor

from dynedge.ops.all_scores import triton_kernels
from dynedge.ops.decaying_columns import relative_to_chunks

EVENTS, ITEMS = 64, 64  # per program


def all_scores(
    query: Tensor,
    states: Tensor,
    id_embeddings: Tensor | None,
    item: Tensor,
    row_after: Tensor,
    arena: Tensor,
    decay: Tensor | None = None,
) -> Tensor:
    query, shift = relative_to_chunks(query, states, decay, EVENTS)
    n, (items, d) = len(query), states.shape
    out = states.new_empty(n, items)
    if not (n and items):
        return out
    width = min(64, max(16, triton.next_power_of_2(d)))
    shape = {
        "d": d,
        "DECAYING": shift.shape[1],
        "BM": EVENTS,
        "BN": ITEMS,
        "BK": width,
        "HAS_IDS": id_embeddings is not None,
    }
    query, embeddings = query.contiguous(), states if id_embeddings is None else id_embeddings.contiguous()
    blocks = triton.cdiv(n, EVENTS)
    triton_kernels.score_initial[triton.cdiv(items, ITEMS), blocks](
        out, query, states, embeddings, shift, n, items, **shape
    )
    triton_kernels.score_updated[triton.cdiv(n, ITEMS), blocks](
        out, query, arena, embeddings, item, row_after, _next_update(item, row_after), shift, n, items, **shape
    )
    return out


def _next_update(item: Tensor, row_after: Tensor) -> Tensor:
    """int64[n]: the next event that updates the same item; n where there is none."""
    ordered, order = torch.sort(torch.where(row_after >= 0, item, -1), stable=True)
    following = torch.where(ordered[1:] == ordered[:-1], order[1:], len(item))
    last = torch.full((1,), len(item), device=item.device)
    return torch.empty_like(order).index_copy_(0, order, torch.cat([following, last]))
