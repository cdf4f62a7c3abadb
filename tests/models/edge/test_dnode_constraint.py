"""D-nodes: losses of a model with d-nodes against one without, and the penalty of each solver."""

import numpy as np
import pytest
import torch
from models.edge.reference_recurrence import STEP, make_log, make_model

from dynedge.models.edge.dnode_constraint import DNodeConstraint

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("solver", ["penalty", "augmented", "refresh", "refresh-penalty"])
def test_dnodes_change_no_loss_where_phi_equals_the_state(solver):
    log = make_log(events=50)
    exact, with_dnodes = make_model(log, windows=3), make_model(log, windows=3, dnodes=6, solver=solver)
    assert sum(map(len, with_dnodes.plan.dnodes)) >= 10
    shared = {name: tensor for name, tensor in exact.state_dict().items() if not name.startswith("dnode_constraint")}
    with_dnodes.load_state_dict(shared, strict=False)
    state = exact.start()
    with torch.no_grad():
        for number, batch in enumerate(exact.batches(log, exact.training_windows(len(log)))):
            _fill_phi(with_dnodes, number, batch, state, exact)
            exact.loss(batch, state, STEP)
    losses = [_losses(model, log) for model in (exact, with_dnodes)]
    assert [loss for loss, _ in losses[1]] == pytest.approx([loss for loss, _ in losses[0]], abs=1e-10)
    assert all(residual < 1e-10 for _, residual in losses[1])


def _fill_phi(with_dnodes, number, batch, state, exact):
    """Sets φ of one window to the states that the model without d-nodes computes."""
    arena = exact.forward_window(batch, state).arena
    row_of, schedule = {}, batch.schedule
    sides = np.repeat(np.arange(len(schedule.blocks) - 1) & 1, np.diff(schedule.blocks))
    for row, (event, side) in enumerate(zip(schedule.event.tolist(), sides.tolist(), strict=True)):
        row_of[2 * event + side] = row
    first_phi, phi = with_dnodes._first_phi[number], with_dnodes.dnode_constraint.phi.data
    for k, node in enumerate(with_dnodes.plan.dnodes[number].tolist()):
        phi[first_phi + k] = arena[schedule.first_written + row_of[node]]


def _losses(model, log):
    """(loss, residual) of each window."""
    state = model.start()
    with torch.no_grad():
        batches = model.batches(log, model.training_windows(len(log)))
        logged = [model.loss(batch, state, STEP).log for batch in batches]
    return [(numbers["loss"], numbers["residual"]) for numbers in logged]


def test_refresh_reaches_the_exact_states_with_constant_parameters():
    log = make_log(events=50)
    model = make_model(log, windows=2, dnodes=5, solver="refresh")
    residuals = [max(residual for _, residual in _losses(model, log)) for _ in range(8)]
    assert residuals[0] > 0.1
    assert residuals[-1] < 1e-12, "after as many epochs as the longest chain of d-nodes, φ is the state"


def test_the_penalty_of_each_solver():
    phi, states = torch.tensor([[1.0, 2.0], [0.0, 0.0]]), torch.tensor([[0.0, 0.0], [3.0, 4.0]])
    rows, gap = torch.tensor([0, 1]), torch.tensor([[1.0, 2.0], [-3.0, -4.0]])
    for solver, expected in [("penalty", 0.5 * 2 * 30.0), ("refresh", 0.0), ("refresh-penalty", 30.0)]:
        constraint = DNodeConstraint(phi, solver, alpha=2.0)
        total, residual = constraint.penalty(rows, constraint.read(rows), states)
        assert total.item() == expected
        assert residual == pytest.approx((5**0.5 + 5) / 2)
        assert torch.equal(constraint.phi, states if solver.startswith("refresh") else phi)
    constraint = DNodeConstraint(phi, "augmented", alpha=2.0)
    assert constraint.penalty(rows, constraint.read(rows), states)[0].item() == 30.0
    assert torch.equal(constraint.multiplier, 2 * gap)
    assert constraint.penalty(rows, constraint.read(rows), states)[0].item() == 30.0 + 60.0


@pytest.mark.parametrize("solver", ["penalty", "augmented", "refresh-penalty"])
def test_in_the_warm_up_phi_is_copied_without_penalty(solver):
    states, rows = torch.tensor([[3.0, 4.0]]), torch.tensor([0])
    constraint = DNodeConstraint(torch.zeros(1, 2), solver, alpha=1.0, warmup=1)
    phi = constraint.read(rows)
    total, residual = constraint.penalty(rows, phi, states)
    assert (total.item(), residual.item()) == (0.0, 5.0)
    assert torch.equal(constraint.phi, states)
    constraint.end_epoch()
    assert constraint.penalty(rows, constraint.read(rows), states + 2.0)[0].item() == 4.0
    assert torch.equal(constraint.phi, states if constraint.learned else states + 2.0)


def test_phi_starts_at_the_initial_state_of_its_side():
    log = make_log(events=50)
    model = make_model(log, windows=3, dnodes_share=0.3, solver="refresh")
    assert {len(dnodes) for dnodes in model.plan.dnodes} <= set(range(1, 6)), "30 % of 17 events"
    sides = np.concatenate(model.plan.dnodes) & 1
    fresh = type(model).create(model.config, log, len(log), 1)
    assert torch.equal(fresh.dnode_constraint.phi, fresh.xi.detach()[sides])
    assert set(sides) == {0, 1}
