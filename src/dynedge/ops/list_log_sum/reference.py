"""Reference implementation in plain PyTorch, on any device. Autograd computes the backward pass."""

from __future__ import annotations

import torch
from torch import Tensor

from dynedge.ops.decaying_columns import as_powers
from dynedge.ops.list_log_sum.inputs import SumInputs


def list_log_sum(inputs: SumInputs) -> Tensor:
    query, value, arena, outside, id_embeddings, lists, item, decay = inputs
    event, d = lists.event.long(), arena.shape[1]
    vectors = torch.cat([arena, outside])[lists.row.long()]
    if decay is not None:
        vectors = as_powers(vectors, decay[event])
    queries = query.to(arena.dtype)[event]
    scores = (queries[:, :d] * vectors).sum(1) + value
    if id_embeddings is not None:
        ids = id_embeddings[lists.item.long()]
        scores = scores + (queries[:, d:] * ids[:, :-1]).sum(1) + ids[:, -1]
    scores = scores.masked_fill(lists.item == item[event], -torch.inf)
    highest = (
        scores.detach().new_zeros(len(query)).scatter_reduce(0, event, scores.detach(), "amax", include_self=False)
    )
    highest = highest.clamp_min(torch.finfo(scores.dtype).min)
    sums = torch.zeros_like(highest).index_add(0, event, torch.exp(scores - highest[event]))
    return torch.where(sums > 0, highest + torch.where(sums > 0, sums, 1.0).log(), -torch.inf)
