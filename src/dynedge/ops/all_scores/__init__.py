"""all_scores: the score of every item for every event of a window, each item as it was just before the event.

Legend: n events, I items, d width of a state, D width of a query vector (d, or 2d with ID embeddings), R rows of the
arena.

    out[k, i] = state of i before k · query[k, :d]
                and, with ID embeddings E, + E[i, :d] · query[k, d:] + E[i, d], the last column being the item's bias

`states` [I, d] are the items' states at the window's start; after event k, item[k] has the state arena[row_after[k]],
unless row_after[k] is negative. `decay` [n, r] makes the last r columns of a state decay (ops/decaying_columns.py). A
score's bits depend only on its event and its item, not on the rest of the window: a log may be cut into windows
anywhere. Has no gradient: it is used for evaluation.
"""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from dynedge.ops.all_scores import cpu, reference
from dynedge.ops.dispatch import prefer_triton

__all__ = ["all_scores"]

BY_DEVICE: dict[str, Callable[..., Tensor]] = {
    "cpu": cpu.all_scores,
    "cuda": prefer_triton("dynedge.ops.all_scores.triton", "all_scores", reference.all_scores),
}


def all_scores(
    query: Tensor,
    states: Tensor,
    id_embeddings: Tensor | None,
    item: Tensor,
    row_after: Tensor,
    arena: Tensor,
    decay: Tensor | None = None,
) -> Tensor:
    """[n, I]; query [n, D], id_embeddings [I, d + 1] or None, item and row_after int64[n]."""
    compute = BY_DEVICE.get(query.device.type, reference.all_scores)
    embeddings = None if id_embeddings is None else id_embeddings.detach()
    tables = query.detach().to(states.dtype), states.detach(), embeddings
    return compute(*tables, item, row_after, arena.detach(), decay)
