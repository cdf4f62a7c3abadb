"""list_log_sum: the logarithm of the sum of exponentials of the scores that each event gives to a list of items.

Legend: n events, L listed items of all events together, d width of a state, D width of a query vector (d, or 2d with
ID embeddings), I items, R rows of the arena, r decaying columns.

    out[k] = log Σ exp(state of i · query[k, :d] + E[i, :d] · query[k, d:] + E[i, d] + value of the entry)

over the entries of event k whose item i is not the event's own; −∞ where there are none. Differentiable once in the
queries and in the values alone: what it teaches about items would be a small part of what sampled negatives teach.
"""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from dynedge.ops.dispatch import prefer_triton
from dynedge.ops.list_log_sum import cpu, reference
from dynedge.ops.list_log_sum.inputs import ListedRows, SumInputs

__all__ = ["ListedRows", "SumInputs", "list_log_sum"]

BY_DEVICE: dict[str, Callable[[SumInputs], Tensor]] = {
    "cpu": cpu.list_log_sum,
    "cuda": prefer_triton(
        "dynedge.ops.list_log_sum.triton", "list_log_sum", reference.list_log_sum, lambda inputs: inputs.arena
    ),
}


def list_log_sum(
    query: Tensor,
    value: Tensor,
    arena: Tensor,
    outside: Tensor,
    id_embeddings: Tensor | None,
    lists: ListedRows,
    item: Tensor,
    decay: Tensor | None = None,
) -> Tensor:
    """[n]; the arguments are those of SumInputs."""
    ids = None if id_embeddings is None else id_embeddings.detach()
    decay = None if decay is None else decay.to(arena.dtype)
    inputs = SumInputs(query, value, arena.detach(), outside.detach(), ids, lists, item, decay)
    return BY_DEVICE.get(query.device.type, reference.list_log_sum)(inputs)
