"""list_values, compiled, against the reference: values and gradients, to the bit; the same bits for any threads."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from dynedge.ops.list_values import list_values, reference

Lists = tuple[Tensor, Tensor, Tensor, Tensor, Tensor]


def make(n: int, buckets: int, sources: int, dtype: torch.dtype = torch.float32) -> Lists:
    """Lists of 0 to 30 items; a quarter of the sources list nothing."""
    generator = torch.Generator().manual_seed(n)
    length = torch.randint(0, 31, (n,), generator=generator)
    start = torch.cat([torch.zeros(1, dtype=torch.int64), length.cumsum(0)])
    event = torch.repeat_interleave(torch.arange(n), length)
    bucket = torch.randint(0, buckets, (len(event), sources), generator=generator)
    bucket[torch.rand(bucket.shape, generator=generator) < 0.25] = buckets
    values, gates = torch.randn(buckets, generator=generator), torch.randn(n, sources, generator=generator)
    return values.to(dtype), gates.to(dtype), start, event, bucket


def results(compute: Any, lists: Lists) -> list[Tensor]:
    values, gates = (tensor.clone().requires_grad_() for tensor in lists[:2])
    out = compute(values, gates, *lists[2:])
    grad = torch.randn(out.shape, generator=torch.Generator().manual_seed(0), dtype=out.dtype)
    return [out.detach(), *torch.autograd.grad(out, [values, gates], grad)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("n", "buckets", "sources"), [(0, 3, 2), (1, 1, 1), (40, 7, 2), (300, 50, 2), (20, 5, 3)])
def test_equals_the_reference(n: int, buckets: int, sources: int, dtype: torch.dtype) -> None:
    lists = make(n, buckets, sources, dtype)
    torch.use_deterministic_algorithms(True)
    expected = results(reference.list_values, lists)
    torch.use_deterministic_algorithms(False)
    got = results(list_values, lists)
    if sources <= 2:
        assert all(torch.equal(*pair) for pair in zip(got, expected, strict=True))
    else:  # torch adds three numbers in another order
        torch.testing.assert_close(got, expected)


def test_bits_do_not_depend_on_threads() -> None:
    lists, before, found = make(12_000, 90, 2), torch.get_num_threads(), []
    for threads in (1, 3):
        torch.set_num_threads(threads)
        found.append(results(list_values, lists))
    torch.set_num_threads(before)
    assert len(lists[4]) > 128 * 1024, "enough entries for several threads"
    assert all(torch.equal(*pair) for pair in zip(*found, strict=True))
