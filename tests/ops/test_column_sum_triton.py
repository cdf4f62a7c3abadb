"""column_sum's Triton kernel against the reference."""

from __future__ import annotations

import pytest
import torch
from ops.triton_interpreter import DEVICE

from dynedge.ops.column_sum import reference
from dynedge.ops.column_sum.triton import column_sum

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("shape", [(0, 3), (1, 1), (5, 0), (130, 65), (64 * 300, 3)])
def test_sums(shape: tuple[int, int]) -> None:
    torch.manual_seed(0)
    x = torch.randn(shape)
    torch.testing.assert_close(column_sum(x.to(DEVICE)).cpu(), reference.column_sum(x), rtol=1e-4, atol=1e-4)


def test_of_some_columns() -> None:
    x = torch.randn(70, 9)
    torch.testing.assert_close(column_sum(x.to(DEVICE)[:, 2:7]).cpu(), x[:, 2:7].sum(0), rtol=1e-5, atol=1e-5)
