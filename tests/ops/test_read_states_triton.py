"""read_states' Triton kernels against the reference: values and every gradient."""

from __future__ import annotations

import pytest
import torch
from ops.triton_interpreter import DEVICE

from dynedge.ops.read_states import EntityTable, reference, triton

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("d", [5, 64, 100])
def test_values_and_gradients(d: int) -> None:
    """Stored states, ψ and ξ; two groups followed by extra rows."""
    torch.manual_seed(0)
    count, active = 70, 6
    row = torch.full((count,), -1)
    row[torch.randperm(count)[:active]] = torch.arange(active)
    parts = [torch.randn(d), torch.randn(active, d), row, torch.randn(count, d), torch.rand(count) < 0.4]
    groups, extra = [torch.randperm(count)[:50], torch.randperm(count)[:33]], torch.randn(4, d)
    grad = torch.randn(87, d)

    def gradients(operator, device):
        learned = [tensor.clone().to(device).requires_grad_() for tensor in (*parts[:2], extra)]
        table = EntityTable(*learned[:2], *(part.to(device) for part in parts[2:]))
        states = operator([(table, group.to(device)) for group in groups], learned[2])
        return [states.detach(), *torch.autograd.grad(states, learned, grad.to(device))]

    expected = gradients(reference.read_states, "cpu")
    expected[2] = expected[2].to_dense()
    actual = gradients(triton.read_states, DEVICE)
    rows, values = actual[2]._indices()[0], actual[2]._values()
    actual[2] = torch.zeros(active, d).index_add(0, rows[rows >= 0].cpu(), values[rows >= 0].cpu())
    for got, right in zip(actual, expected, strict=True):
        torch.testing.assert_close(got.cpu(), right, rtol=1e-5, atol=1e-5)
