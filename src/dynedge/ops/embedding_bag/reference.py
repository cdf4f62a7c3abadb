"""Reference implementation in plain PyTorch, on any device: a matrix of all weights times the table.

An item is listed at most once per event, so that no two entries are added in an order that may vary.
"""

from __future__ import annotations

from torch import Tensor

from dynedge.ops.bucket_values import bucket_values


def embedding_bag(
    table: Tensor, values: Tensor, bucket: Tensor, noise: Tensor | None, start: Tensor, event: Tensor, item: Tensor
) -> Tensor:
    weight = bucket_values(values, bucket.clamp(max=len(values)))
    weight = weight if noise is None else weight * noise
    weights = table.new_zeros(len(start) - 1, len(table))
    return weights.index_put((event, item), weight.to(table.dtype)) @ table
