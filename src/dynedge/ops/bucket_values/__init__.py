"""bucket_values: learned numbers looked up by bucket, with a gradient that is summed in a fixed order.

Legend: L entries, B buckets.

Very many entries share few buckets, so that a sum by atomic additions or by sorted keys would be slow on a GPU.
"""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from dynedge.ops.bucket_values import reference
from dynedge.ops.dispatch import prefer_triton

__all__ = ["bucket_values"]

BY_DEVICE: dict[str, Callable[..., Tensor]] = {
    "cuda": prefer_triton("dynedge.ops.bucket_values.triton", "bucket_values", reference.bucket_values),
}


def bucket_values(values: Tensor, bucket: Tensor) -> Tensor:
    """[L, ..]: values [B] of the buckets int64[L, ..], which are 0 to B; bucket B has the value 0."""
    return BY_DEVICE.get(values.device.type, reference.bucket_values)(values, bucket)
