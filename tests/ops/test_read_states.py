"""read_states on a CPU against the reference: which entities read a stored state, ψ or ξ, and where gradients go."""

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


@pytest.mark.parametrize("num_extra", [0, 4])
@pytest.mark.parametrize("active", [0, 3])
def test_values_and_gradients(active, num_extra):
    tables = make(0, active=active), make(1, active=active)
    groups = [(tables[0], torch.tensor([1, 4, 7])), (tables[1], torch.arange(8)), (tables[0], torch.tensor([0]))]
    extra = torch.randn(num_extra, 5, dtype=torch.float64, requires_grad=True) if num_extra else None
    inputs = [tensor for table in tables for tensor in table[:2]] + ([extra] if num_extra else [])
    states, expected_states = read_states(groups, extra), reference.read_states(groups, extra)
    assert torch.equal(states, expected_states)
    grad = torch.randn_like(states)
    got, expected = (
        torch.autograd.grad(out, inputs, grad, materialize_grads=True) for out in (states, expected_states)
    )
    for one, other in zip(got, expected, strict=True):
        torch.testing.assert_close(one.to_dense(), other.to_dense(), rtol=1e-12, atol=1e-12)


def test_updates_before_the_backward_pass_do_not_change_gradients():
    table = make()
    states = read_states([(table, torch.arange(8))])
    (before,) = torch.autograd.grad(states.sum(), table.xi, retain_graph=True)
    table.has_stored.fill_(True)
    assert torch.equal(torch.autograd.grad(states.sum(), table.xi)[0], before)
    assert before.abs().sum() > 0
