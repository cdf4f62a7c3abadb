"""squared_gap's Triton kernels against the reference: both numbers and the gradients."""

from __future__ import annotations

import pytest
import torch
from ops.triton_interpreter import DEVICE

from dynedge.ops.squared_gap import reference
from dynedge.ops.squared_gap.triton import squared_gap

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("poisoned_anywhere")]


@pytest.mark.parametrize(("count", "d"), [(0, 4), (1, 1), (70, 5), (33, 130), (64, 64)])
def test_numbers_and_gradients(count: int, d: int) -> None:
    torch.manual_seed(0)
    inputs = [torch.randn(count, d) for _ in range(2)]
    results = []
    for compute, device in ((reference.squared_gap, "cpu"), (squared_gap, DEVICE)):
        a, b = (part.clone().to(device).requires_grad_() for part in inputs)
        total, mean = compute(a, b, 0.3)
        assert not mean.requires_grad
        grads = torch.autograd.grad(1.7 * total, (a, b))
        results.append([part.detach().cpu() for part in (total, mean, *grads)])
    for right, got in zip(*results, strict=True):
        torch.testing.assert_close(got, right, rtol=1e-5, atol=1e-5)
