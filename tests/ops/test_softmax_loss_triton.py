"""softmax_loss's Triton kernel against the reference: the error and every gradient."""

from __future__ import annotations

from contextlib import nullcontext

import pytest
import torch
from ops.interpreted import DEVICE
from torch import Tensor

from dynedge.ops.softmax_loss import CHUNK, Columns, reference
from dynedge.ops.softmax_loss.triton import softmax_loss

FLOAT32, BFLOAT16 = 1e-4, 2e-2  # of the greatest number: what the project promises


def window(n: int, count: int, items: int, rows: int, d: int, versions: int) -> tuple[Columns, Tensor, Tensor]:
    """(columns, true items, their rows): some candidates move once inside their chunk, if versions are asked for."""
    m, outside = -(-n // CHUNK), 5
    item = torch.randint(items, (m, count)) if count < items else torch.arange(items).expand(m, -1)
    since, until = torch.full((m, count), -1), torch.full((m, count), n)
    row = torch.randint(rows + outside, (m, count))
    candidate = torch.arange(count).expand(m, -1)
    more: list[list[Tensor]] = [[], [], [], []]
    for v in range(versions):  # candidate v moves at some event of the chunk, and is read anew from then on
        when = torch.arange(m) * CHUNK + torch.randint(CHUNK - 1, (m,))
        until[:, v] = when
        for part, value in zip(more, (item[:, v], torch.randint(rows, (m,)), when, torch.full((m,), v)), strict=True):
            part.append(value)
    if versions:  # and one column that only fills up
        for part, value in zip(more, (0, 0, n + 9, 0), strict=True):
            part.append(torch.full((m,), value))
        item, row, since, candidate = (
            torch.cat([base, torch.stack(part, 1)], 1)
            for base, part in zip((item, row, since, candidate), more, strict=True)
        )
        ends = torch.full((m, versions + 1), n)
        ends[:, -1] = -1
        until = torch.cat([until, ends], 1)
    parts = (part.contiguous().to(DEVICE) for part in (item, row, since, until, candidate))
    columns = Columns(count, *parts, outside=torch.zeros(outside, dtype=torch.int64, device=DEVICE))
    return columns, torch.randint(items, (n,)).to(DEVICE), torch.randint(rows, (n,)).to(DEVICE)


@pytest.mark.parametrize("low", [False, True], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("ids", [False, True], ids=["states", "ids"])
@pytest.mark.parametrize(
    ("n", "count", "items", "d", "versions"),
    [(130, 10, 50, 16, 0), (7, 3, 4, 5, 2), (200, 20, 20, 24, 4), (140, 70, 500, 65, 3)],
)
def test_error_and_gradients(n: int, count: int, items: int, d: int, versions: int, ids: bool, low: bool) -> None:
    torch.manual_seed(0)
    rows = 30
    columns, item, row = window(n, count, items, rows, d, versions)
    shapes = [(n, 2 * d if ids else d), (rows, d), (5, d), *([(items, d + 1)] if ids else [])]
    inputs = [torch.randn(shape) * d**-0.25 for shape in shapes]

    def run(operator: object, kind: torch.dtype) -> list[Tensor]:
        tensors = [tensor.to(DEVICE, kind).requires_grad_() for tensor in inputs]
        error = operator(*tensors[:3], tensors[3] if ids else None, columns, item, row)
        grads = torch.autograd.grad(0.5 * error, tensors)
        return [(grad.to_dense() if grad.is_sparse else grad).double().cpu() for grad in (error.detach(), *grads)]

    expected = run(reference.softmax_loss, torch.float64)
    with torch.autocast(DEVICE, torch.bfloat16) if low else nullcontext():
        found = run(softmax_loss, torch.float32)
    for got, right in zip(found, expected, strict=True):
        bound = (BFLOAT16 if low else FLOAT32) * float(right.abs().max()) if right.numel() else 0
        torch.testing.assert_close(got, right, rtol=0, atol=bound)
