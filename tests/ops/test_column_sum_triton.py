"""column_sum's Triton kernel against the reference."""

from __future__ import annotations

import pytest
import torch
from ops.triton_interpreter import DEVICE

from dynedge.ops.column_sum import reference
from dynedge.ops.column_sum.triton import column_sum, relu_backward, weighted_column_sums

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("shape", [(0, 3), (1, 1), (5, 0), (130, 65), (64 * 300, 3)])
def test_sums(shape: tuple[int, int]) -> None:
    torch.manual_seed(0)
    x = torch.randn(shape)
    torch.testing.assert_close(column_sum(x.to(DEVICE)).cpu(), reference.column_sum(x), rtol=1e-4, atol=1e-4)


def test_of_some_columns() -> None:
    x = torch.randn(70, 9)
    torch.testing.assert_close(column_sum(x.to(DEVICE)[:, 2:7]).cpu(), x[:, 2:7].sum(0), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("n", "c"), [(0, 3), (1, 1), (70, 5), (200, 130)])
def test_relu_backward(n: int, c: int, kind: torch.dtype) -> None:
    torch.manual_seed(0)
    grad, activated = torch.randn(n, c).to(kind), torch.randn(n, c).relu().to(kind)
    expected = reference.relu_backward(grad, activated)
    masked, sums = (part.cpu() for part in relu_backward(grad.to(DEVICE), activated.to(DEVICE)))
    assert torch.equal(masked, expected[0]) and sums.dtype == torch.float32
    torch.testing.assert_close(sums, expected[1], rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("n", "c", "numbers"), [(0, 3, 2), (1, 1, 1), (70, 5, 2), (200, 130, 3)])
def test_weighted_sums(n: int, c: int, numbers: int, kind: torch.dtype) -> None:
    """Of some rows and columns of a larger table."""
    torch.manual_seed(0)
    table, values = torch.randn(n + 3, c + 4).to(kind), torch.randn(2 * n + 1, numbers)
    rows = torch.randint(len(values), (n,)).int()
    expected = reference.weighted_column_sums(table[3:, 1 : c + 1], values, rows)
    result = weighted_column_sums(table.to(DEVICE)[3:, 1 : c + 1], values.to(DEVICE), rows.to(DEVICE)).cpu()
    torch.testing.assert_close(result, expected, rtol=1e-5, atol=1e-4)
