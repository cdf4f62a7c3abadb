"""bucket_values on a GPU: the gradient compares every entry with every bucket, which costs less than sorting them."""

from __future__ import annotations

from typing import Any

import torch
import triton
from torch import Tensor
from torch.autograd.function import once_differentiable

from dynedge.ops.bucket_values import reference, triton_kernels

ENTRIES, BUCKETS = 64, 128  # that a program compares at once
PROGRAMS = 64  # at most, per block of buckets


def bucket_values(values: Tensor, bucket: Tensor) -> Tensor:
    out: Tensor = _BucketValues.apply(values, bucket)  # type: ignore[no-untyped-call]
    return out


class _BucketValues(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, values: Tensor, bucket: Tensor) -> Tensor:
        ctx.save_for_backward(bucket)
        ctx.buckets = len(values)
        return reference.bucket_values(values, bucket)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        bucket, grad = ctx.saved_tensors[0].contiguous().flatten(), grad.contiguous().flatten()
        partial = grad.new_zeros(max(1, min(PROGRAMS, triton.cdiv(len(bucket), ENTRIES))), ctx.buckets)
        if len(bucket):
            grid = len(partial), triton.cdiv(ctx.buckets, BUCKETS)
            triton_kernels.sum_entries[grid](grad, bucket, partial, len(bucket), ctx.buckets, BE=ENTRIES, BB=BUCKETS)
        return partial.sum(0), None
