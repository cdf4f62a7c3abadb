"""Reference implementation in plain PyTorch, on any device; on a GPU a kernel sums the gradient of the values."""

from __future__ import annotations

from torch import Tensor

from dynedge.ops.bucket_values import bucket_values


def list_values(values: Tensor, gates: Tensor, start: Tensor, event: Tensor, bucket: Tensor) -> Tensor:
    del start
    return (bucket_values(values, bucket) * (1 + gates.index_select(0, event))).sum(1)
