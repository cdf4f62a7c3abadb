"""Reference implementation in plain PyTorch, on any device: one event after the other."""

from __future__ import annotations

import torch
from torch import Tensor

from dynedge.ops.decaying_columns import as_powers


def all_scores(
    query: Tensor,
    states: Tensor,
    id_embeddings: Tensor | None,
    item: Tensor,
    row_after: Tensor,
    arena: Tensor,
    decay: Tensor | None = None,
) -> Tensor:
    d, states = states.shape[1], states.clone()
    bias = torch.zeros_like(states[:, 0]) if id_embeddings is None else id_embeddings[:, d]
    decay = query.new_zeros(len(query), 0) if decay is None else decay
    out = query.new_empty(len(query), len(states))
    for k, (i, r) in enumerate(zip(item.tolist(), row_after.tolist(), strict=True)):
        out[k] = as_powers(states, decay[k]) @ query[k, :d] + bias
        if id_embeddings is not None:
            out[k] += id_embeddings[:, :d] @ query[k, d:]
        if r >= 0:
            states[i] = arena[r]
    return out
