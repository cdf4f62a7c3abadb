"""list_log_sum, compiled and as a Triton kernel, against the reference: the sums and both gradients."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from ops.triton_interpreter import DEVICE
from torch import Tensor

from dynedge.ops.decaying_columns import NEVER
from dynedge.ops.list_log_sum import ListedRows, SumInputs, list_log_sum, reference, triton


def make(n: int, d: int, longest: int, decaying: int, ids: bool, dtype: torch.dtype) -> SumInputs:
    """Some events have no list, some only their own item."""
    generator = torch.Generator().manual_seed(n)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator).to(dtype)

    items, rows = 9, 20
    length = torch.randint(0, longest + 1, (n,), generator=generator)
    start = torch.cat([torch.zeros(1, dtype=torch.int64), length.cumsum(0)])
    event = torch.repeat_interleave(torch.arange(n), length)
    item = torch.randint(items, (len(event),), generator=generator)
    true = torch.randint(items, (n,), generator=generator)
    item[event % 5 == 1] = true[event[event % 5 == 1]]
    row = torch.randint(rows + 6, (len(event),), generator=generator)
    arena, outside, decay = normal(rows, d), normal(6, d), None
    if decaying:
        decay = torch.arange(n).to(dtype)[:, None] / 2.0 ** torch.arange(1, 1 + decaying)
        for table in (arena, outside):
            table[:, -decaying:] = -table[:, -decaying:].abs()
            table[::4, -decaying:] = NEVER
    lists = ListedRows(start, event, item, row)
    embeddings = normal(items, d + 1) if ids else None
    return SumInputs(
        normal(n, 2 * d if ids else d), normal(len(event)), arena, outside, embeddings, lists, true, decay
    )


def results(compute: Any, inputs: SumInputs) -> list[Tensor]:
    query, value = (tensor.clone().requires_grad_() for tensor in inputs[:2])
    sums = compute(SumInputs(query, value, *inputs[2:]))
    finite = torch.isfinite(sums)
    grads = torch.autograd.grad(sums[finite].sum() * 0.5 + 0 * (query.sum() + value.sum()), [query, value])
    return [part.detach().cpu() for part in (sums, *grads)]


@pytest.mark.parametrize("ids", [False, True], ids=["states", "ids"])
@pytest.mark.parametrize(
    ("n", "d", "longest", "decaying"), [(40, 8, 5, 0), (13, 5, 70, 2), (9, 65, 40, 8), (1, 4, 0, 1)]
)
def test_equals_the_reference(n: int, d: int, longest: int, decaying: int, ids: bool) -> None:
    inputs = make(n, d, longest, decaying, ids, torch.float64)
    expected = results(reference.list_log_sum, inputs)
    for got, right in zip(results(lambda inputs: list_log_sum(*inputs), inputs), expected, strict=True):
        torch.testing.assert_close(got, right, rtol=1e-10, atol=1e-10)
    parts = [part.float().to(DEVICE) if isinstance(part, Tensor) else part for part in inputs]
    parts[5], parts[6] = ListedRows(*(part.to(DEVICE) for part in inputs.lists)), inputs.item.to(DEVICE)
    for got, right in zip(results(triton.list_log_sum, SumInputs(*parts)), expected, strict=True):
        torch.testing.assert_close(got.double(), right, rtol=1e-4, atol=1e-4)
