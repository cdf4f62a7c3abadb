"""read_states on a CPU against plain torch: who reads a state of its own, ψ or ξ, and where gradients go."""

import pytest
import torch

from dynedge.ops.read_states import EntityTable, read_states, reference


def make(seed=0, users=8, active=3, d=5):
    torch.manual_seed(seed)
    psi_row = torch.full((users,), -1)
    psi_row[torch.randperm(users)[:active]] = torch.arange(active)
    return EntityTable(
        torch.randn(d, dtype=torch.float64, requires_grad=True),
        torch.randn(active, d, dtype=torch.float64, requires_grad=True),
        psi_row,
        torch.randn(users, d, dtype=torch.float64),
        torch.rand(users) < 0.4,
    )


@pytest.mark.parametrize("more", [0, 4])
@pytest.mark.parametrize("active", [0, 3])
def test_values_and_gradients(active, more):
    sides = make(0, active=active), make(1, active=active)
    groups = [(sides[0], torch.tensor([1, 4, 7])), (sides[1], torch.arange(8)), (sides[0], torch.tensor([0]))]
    below = torch.randn(more, 5, dtype=torch.float64, requires_grad=True) if more else None
    inputs = [tensor for side in sides for tensor in side[:2]] + ([below] if more else [])
    found, right = read_states(groups, below), reference.read_states(groups, below)
    assert torch.equal(found, right)
    grad = torch.randn_like(found)
    got, expected = (torch.autograd.grad(out, inputs, grad, materialize_grads=True) for out in (found, right))
    for one, other in zip(got, expected, strict=True):
        torch.testing.assert_close(one.to_dense(), other.to_dense(), rtol=1e-12, atol=1e-12)


def test_a_state_that_moves_before_the_backward_pass_changes_no_gradient():
    side = make()
    found = read_states([(side, torch.arange(8))])
    (before,) = torch.autograd.grad(found.sum(), side.xi, retain_graph=True)
    side.has_stored.fill_(True)
    assert torch.equal(torch.autograd.grad(found.sum(), side.xi)[0], before)
    assert before.abs().sum() > 0
