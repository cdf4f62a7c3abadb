"""Reference implementation in plain PyTorch, on any device: a matrix of all weights times the table.

An item is listed at most once per event, so that no two entries are added in an order that may vary.
"""

from __future__ import annotations

from torch import Tensor


def embedding_bag(table: Tensor, weight: Tensor, start: Tensor, event: Tensor, item: Tensor) -> Tensor:
    weights = table.new_zeros(len(start) - 1, len(table))
    return weights.index_put((event, item), weight.to(table.dtype)) @ table
