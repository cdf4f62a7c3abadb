"""embedding_bag, compiled, against the reference: sums and gradients; the same bits for any window and threads."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from dynedge.ops.embedding_bag import embedding_bag, reference

Bag = tuple[Any, ...]  # table, values, bucket, noise, start, event, item
BUCKETS = 6


def make(n: int, d: int, items: int, dtype: torch.dtype) -> Bag:
    """Lists of 0 to `items` different items, in any order; a third of them left out by dropout."""
    generator = torch.Generator().manual_seed(n)
    length = torch.randint(0, items + 1, (n,), generator=generator)
    start = torch.cat([torch.zeros(1, dtype=torch.int64), length.cumsum(0)])
    lists = [torch.randperm(items, generator=generator)[:count] for count in length.tolist()]
    item = torch.cat([torch.zeros(0, dtype=torch.int64), *lists])
    event = torch.repeat_interleave(torch.arange(n), length)
    table, values = torch.randn(items, d, generator=generator), torch.randn(BUCKETS, generator=generator)
    bucket = torch.randint(0, BUCKETS + 3, (len(item), 2), generator=generator)[:, 0]
    noise = torch.full((len(item),), 1.5)
    noise[::3] = 0
    return table.to(dtype), values.to(dtype), bucket, noise.to(dtype), start, event, item


def results(compute: Any, bag: Bag) -> list[Tensor]:
    table, values = (tensor.clone().requires_grad_() for tensor in bag[:2])
    out = compute(table, values, *bag[2:])
    grad = torch.randn(out.shape, generator=torch.Generator().manual_seed(0), dtype=out.dtype)
    return [out.detach(), *torch.autograd.grad(out, [table, values], grad)]


@pytest.mark.parametrize("noise", [True, False])
@pytest.mark.parametrize(("n", "d", "items"), [(1, 1, 1), (0, 4, 3), (5, 3, 0), (40, 7, 9), (13, 65, 30)])
def test_equals_the_reference(n: int, d: int, items: int, noise: bool) -> None:
    bag = make(n, d, items, torch.float64)
    bag = bag if noise else (*bag[:3], None, *bag[4:])
    for got, right in zip(results(embedding_bag, bag), results(reference.embedding_bag, bag), strict=True):
        torch.testing.assert_close(got, right, rtol=1e-12, atol=1e-12)


def test_bits_depend_neither_on_threads_nor_on_the_window() -> None:
    bag = table, values, bucket, noise, start, event, item = make(800, 64, 90, torch.float32)
    before, parts = torch.get_num_threads(), []
    for threads in (1, 3):
        torch.set_num_threads(threads)
        parts.append(results(embedding_bag, bag))
    torch.set_num_threads(before)
    assert all(torch.equal(*pair) for pair in zip(*parts, strict=True))
    for k in (0, 17, 799):
        own = slice(int(start[k]), int(start[k + 1]))
        lists = start[k : k + 2] - start[k], event[own] - k, item[own]
        alone = embedding_bag(table, values, bucket[own], noise[own], *lists)
        assert torch.equal(alone[0], parts[0][0][k])
