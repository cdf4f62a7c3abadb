"""gather_rows on a GPU: values and the gradient, summed over repeated rows by Triton."""

from __future__ import annotations

import pytest
import torch
from ops.triton_interpreter import DEVICE

from dynedge.ops.gather_linear import triton

pytestmark = pytest.mark.slow


def test_gather_rows() -> None:
    torch.manual_seed(0)
    x, index = torch.randn(20, 7), torch.randint(15, (100,))
    grad = torch.randn(100, 7)
    table = x.to(DEVICE).requires_grad_()
    gathered = triton.gather_rows(table, index.to(DEVICE))
    assert torch.equal(gathered.detach().cpu(), x[index])
    (got,) = torch.autograd.grad(gathered, table, grad.to(DEVICE))
    torch.testing.assert_close(got.cpu(), torch.zeros(20, 7).index_add(0, index, grad), rtol=1e-5, atol=1e-5)
