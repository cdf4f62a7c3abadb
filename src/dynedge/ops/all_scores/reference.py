"""Reference implementation in plain PyTorch, on any device: one event after the other."""

from __future__ import annotations

import torch
from torch import Tensor


def all_scores(
    query: Tensor, states: Tensor, id_embeddings: Tensor | None, item: Tensor, row_after: Tensor, arena: Tensor
) -> Tensor:
    d = states.shape[1]
    vectors = states if id_embeddings is None else torch.cat([states, id_embeddings[:, :d]], 1)
    vectors = vectors.clone()
    bias = torch.zeros_like(vectors[:, 0]) if id_embeddings is None else id_embeddings[:, d]
    out = query.new_empty(len(query), len(states))
    for k, (i, r) in enumerate(zip(item.tolist(), row_after.tolist(), strict=True)):
        out[k] = vectors @ query[k] + bias
        if r >= 0:
            vectors[i, :d] = arena[r]
    return out
