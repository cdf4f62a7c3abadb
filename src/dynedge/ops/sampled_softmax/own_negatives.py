"""Cross-entropy of the true items against negatives that every event has to itself, in plain PyTorch on any device.

Legend: as in the package; C negatives of an event, r decaying columns.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from dynedge.ops.decaying_columns import as_powers
from dynedge.ops.gather_linear import gather_rows
from dynedge.ops.sampled_softmax.inputs import ListedScores, LossInputs
from dynedge.ops.sampled_softmax.reference import cross_entropy_of_first


def own_negatives_softmax(
    inputs: LossInputs,
    negatives: Tensor,
    place: Tensor,
    log_weight: float,
    listed: ListedScores | None = None,
    q: float = 0.0,
) -> Tensor:
    """Sum of the events' losses; `place` int64[n, C]: rows of the `negatives` int64[n, C] in [arena | outside].

    A negative that is the event's own item does not count. `log_weight` is added to the scores of negatives.
    """
    query, arena, outside, id_embeddings, item, row, decay = inputs
    candidates = torch.cat([item[:, None], negatives], 1)
    placed = torch.cat([row[:, None], place.to(row.dtype)], 1)
    vectors = gather_rows(torch.cat([arena, outside]), placed.flatten()).view(*placed.shape, arena.shape[1])
    if decay is not None:
        vectors = as_powers(vectors, decay.to(vectors.dtype)[:, None])
    d, query = arena.shape[1], query.to(arena.dtype)[:, None]
    logits = (vectors * query[..., :d]).sum(2)
    if id_embeddings is not None:
        ids = F.embedding(candidates, id_embeddings, sparse=True)
        logits = logits + (ids[..., :-1] * query[..., d:]).sum(2) + ids[..., -1]
    is_true = negatives == item[:, None]
    logits = torch.cat([logits[:, :1], logits[:, 1:].masked_fill(is_true, -torch.inf) + log_weight], 1)
    if listed is not None:
        logits = torch.cat([logits[:, :1] + listed.true[:, None], logits[:, 1:], listed.others[:, None]], 1)
    return cross_entropy_of_first(logits, q)
