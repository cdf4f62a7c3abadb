"""embedding_bag: for each event the weighted sum of the table rows of its list of items.

Legend: n events, L listed items of all events together, I items, d width of a row, B buckets.

    out[k] = Σ values[bucket[e]] · noise[e] · table[item[e]]  over the entries e of event k

Buckets from B on have the value 0. The noise is that of dropout. An item is listed at most once per event.
Differentiable once in the table and in the values. On a CPU the terms are added in the order of the list, so that a
sum has the same bits whatever the window.
"""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from dynedge.ops.embedding_bag import cpu, reference

__all__ = ["embedding_bag"]

BY_DEVICE: dict[str, Callable[..., Tensor]] = {"cpu": cpu.embedding_bag}


def embedding_bag(
    table: Tensor, values: Tensor, bucket: Tensor, noise: Tensor | None, start: Tensor, event: Tensor, item: Tensor
) -> Tensor:
    """[n, d] for table [I, d], values [B], bucket int64[L], noise [L] (None: 1), start int64[n + 1], event int64[L]
    (ascending) and item int64[L].

    The entries of event k are start[k] to start[k + 1] − 1.
    """
    compute = BY_DEVICE.get(table.device.type, reference.embedding_bag)
    return compute(table, values, bucket, noise, start, event, item)
