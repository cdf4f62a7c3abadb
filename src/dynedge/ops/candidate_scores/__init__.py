"""candidate_scores: scores of a few candidates per event, each as it was just before the event.

Legend: n events, C candidates of each, I items, d width of a state, D width of a query vector (d, or 2d with ID
embeddings), M items that the window updates, W such updates, R rows of the arena.

    out[k, c] = state of i before k · query[k, :d]        i = candidates[k, c]
                and, with ID embeddings E, + E[i, :d] · query[k, d:] + E[i, d], the last column being the item's bias

An item's state is the one at the window's start (`table`) until an event of the window updates it (`updates`).
`decay` [n, r] makes the last r columns of a state decay (ops/decaying_columns.py). Has no
gradient: it is used for evaluation. Only the reference implementation allocates a table of n · C states.
"""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from dynedge.ops.candidate_scores import reference
from dynedge.ops.candidate_scores.inputs import ItemUpdates, ScoreInputs
from dynedge.ops.dispatch import prefer_triton
from dynedge.ops.read_states import EntityTable

__all__ = ["ItemUpdates", "ScoreInputs", "candidate_scores"]


BY_DEVICE: dict[str, Callable[..., Tensor]] = {
    "cuda": prefer_triton(
        "dynedge.ops.candidate_scores.triton",
        "candidate_scores",
        reference.candidate_scores,
        lambda inputs: inputs.query,
    ),
}


def candidate_scores(
    query: Tensor,
    candidates: Tensor,
    table: EntityTable,
    id_embeddings: Tensor | None,
    updates: ItemUpdates,
    arena: Tensor,
    decay: Tensor | None = None,
) -> Tensor:
    """[n, C]; query [n, D], candidates int64[n, C], id_embeddings [I, d + 1] or None, arena [R, d]."""
    compute: Callable[..., Tensor] = BY_DEVICE.get(query.device.type, reference.candidate_scores)
    embeddings = None if id_embeddings is None else id_embeddings.detach()
    queries = query.detach().to(arena.dtype)
    decay = None if decay is None else decay.to(arena.dtype)
    return compute(ScoreInputs(queries, candidates, table, embeddings, updates, arena.detach(), decay))
