"""embedding_bag: for each event the weighted sum of the table rows of its list of items.

Legend: n events, L listed items of all events together, I items, d width of a row.

    out[k] = Σ weight[e] · table[item[e]]  over the entries e of event k

An item is listed at most once per event. Differentiable once in the table and in the weights. On a CPU the terms are
added in the order of the list, so that a sum has the same bits whatever the window.
"""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from dynedge.ops.embedding_bag import cpu, reference

__all__ = ["embedding_bag"]

BY_DEVICE: dict[str, Callable[..., Tensor]] = {"cpu": cpu.embedding_bag}


def embedding_bag(table: Tensor, weight: Tensor, start: Tensor, event: Tensor, item: Tensor) -> Tensor:
    """[n, d] for table [I, d], weight [L], start int64[n + 1], event int64[L] (ascending) and item int64[L].

    The entries of event k are start[k] to start[k + 1] − 1.
    """
    compute = BY_DEVICE.get(table.device.type, reference.embedding_bag)
    return compute(table, weight, start, event, item)
