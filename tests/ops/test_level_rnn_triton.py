"""level_rnn by the Triton kernels of level_gru against the reference: states and every gradient."""

from __future__ import annotations

import pytest
import torch
from ops.test_level_rnn import inputs, make_window
from ops.triton_interpreter import DEVICE

from dynedge.ops.level_gru.triton import Levels
from dynedge.ops.level_rnn import reference, triton

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("poisoned_anywhere")]


@pytest.mark.parametrize(("n", "users", "items", "d"), [(1, 1, 1, 1), (40, 5, 3, 7), (60, 9, 30, 40), (0, 1, 1, 4)])
def test_values_and_gradients(n: int, users: int, items: int, d: int) -> None:
    *_, schedule = make_window(n, users, items)
    expected_inputs = inputs(schedule, d)
    actual_inputs = [tensor.detach().float().to(DEVICE).requires_grad_() for tensor in expected_inputs]
    roots, pre, *weights = actual_inputs
    source = torch.arange(len(pre), dtype=torch.int32, device=DEVICE).flip(0)  # in another order
    arena = triton.level_rnn(roots, pre.flip(0), source, *weights, Levels.of(schedule, DEVICE))
    written = reference.level_rnn(*expected_inputs, schedule)
    expected = torch.cat([expected_inputs[0], written])
    torch.testing.assert_close(arena.cpu().double(), expected, rtol=1e-5, atol=1e-5)
    grad = torch.randn(expected.shape, generator=torch.Generator().manual_seed(1), dtype=expected.dtype)
    (arena * grad.float().to(DEVICE)).sum().backward()
    (expected * grad).sum().backward()
    for one, other in zip(actual_inputs, expected_inputs, strict=True):
        expected_grad = torch.zeros_like(other) if other.grad is None else other.grad
        torch.testing.assert_close(one.grad.cpu().double(), expected_grad, rtol=1e-4, atol=1e-4)
