"""The recurrence by Triton kernels, in the Triton interpreter without a GPU, against the recurrence on the CPU."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
import torch
from ops.triton_interpreter import DEVICE
from torch import Tensor

from dynedge.data.log import EventLog
from dynedge.data.windows import Window
from dynedge.models import window_index
from dynedge.models.base import Step
from dynedge.models.edge import recurrence
from dynedge.models.edge.config import PAPER_LARGE, RecurrenceConfig
from dynedge.models.edge.recurrence import Recurrence
from dynedge.ops import (
    adam,
    bucket_values,
    decayed_counts,
    embedding_bag,
    gather_linear,
    list_log_sum,
    list_values,
    read_states,
    rows_before,
    squared_gap,
    time_gaps,
)
from dynedge.training.optimizer import Adam

pytestmark = pytest.mark.slow

CONFIGS = {
    "paper": {
        "active_users": 12,
        "active_items": 12,
        "dnodes_share": 0.07,
        "negatives": 4,
        "solver": "penalty",
        "negatives_per_event": False,
    },
    "paper, none active": {
        "active_users": None,
        "active_items": None,
        "dnodes_share": 0.1,
        "negatives": 4,
        "solver": "penalty",
        "negatives_per_event": False,
    },
    "paper, own negatives": {"active_users": 12, "active_items": 12, "dnodes_share": 0.07, "negatives": 4},
    "edge": {"depth": 4},
    "edge, no ids": {"depth": 4, "candidate_id_up_to": 0},
    "edge, sampled": {"full_softmax_up_to": 0, "negatives": 6, "active_items": 12, "depth": 5},
    "edge, no event features": {"event_features": False, "active_items": 12, "depth": 3},
    "edge, sampled, no event features": {
        "event_features": False,
        "full_softmax_up_to": 0,
        "candidate_id_up_to": 0,
        "negatives": 6,
        "active_users": 12,
        "depth": 5,
    },
    "edge, shared": {"candidate_id_up_to": 0, "full_softmax_up_to": 0, "negatives": 6, "windows": 1},
}


LR, ROW_LR = 1e-3, 1e-2


def make_log() -> EventLog:
    """150 events of 20 users and 15 items, with two features each."""
    rng = np.random.default_rng(0)
    users, items = rng.zipf(1.5, 150) % 20, rng.integers(0, 15, 150)
    times, features = np.sort(rng.random(150) * 1e6), rng.standard_normal((150, 2))
    return EventLog.from_arrays(users, items, times, features=features, num_users=20, num_items=15)


def make_model(name: str, log: EventLog) -> Recurrence:
    base = PAPER_LARGE if name.startswith("paper") else RecurrenceConfig(dropout=0.0, profile_dropout=0.0)
    config = base.__class__(**{**base.__dict__, "dim": 16, "windows": 2, **CONFIGS[name]})
    return Recurrence.create(config, log, len(log), 0)


def train_two_windows(
    model: Recurrence, log: EventLog, by_triton: bool
) -> tuple[list[float], dict[str, Tensor], dict[str, Tensor], dict[str, Tensor]]:
    """(losses, gradients of the last window, all parameters after it, smallest size of each gradient)."""
    smallest: dict[str, Tensor] = {}
    state, optimizer, losses = model.start(), Adam(model.named_parameters(), LR, ROW_LR), []
    last_lists = model.lists.start(*model.sizes)
    for number, planned in enumerate(model.plan):
        window = Window(log, planned.events)
        lists = None
        if model.bonus is not None:
            lists = model.lists.before_events(window, last_lists)
        index = model._index(window, planned.schedule, model._past(window), number, lists)
        assert index.uses_triton == by_triton
        loss = model.loss(index, state, Step(0, 0, number))
        losses.append(float(loss.log["loss"]))
        optimizer.zero_grad()
        loss.total.backward()
        optimizer.clip(1.0)
        grads = {name: dense(p.grad) for name, p in model.named_parameters() if p.grad is not None}
        smallest |= {name: torch.minimum(smallest.get(name, grad.abs()), grad.abs()) for name, grad in grads.items()}
        optimizer.step()
    return losses, grads, {name: p.detach() for name, p in model.named_parameters()} | dict(state), smallest


def dense(grad: Tensor) -> Tensor:
    if not grad.is_sparse:
        return grad.clone()
    rows, values = grad._indices()[0], grad._values()
    return values.new_zeros(grad.shape).index_add(0, rows[rows >= 0], values[rows >= 0])


@pytest.mark.skipif(DEVICE == "cuda", reason="tests/gpu trains on the GPU itself")
@pytest.mark.parametrize("name", CONFIGS)
def test_losses_gradients_and_states_equal_those_on_the_cpu(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    log = make_log()
    if name == "edge, shared":
        monkeypatch.setattr(recurrence, "MAX_NEGATIVES", 6)  # of two chunks
    expected = train_two_windows(make_model(name, log), log, False)
    for module in (window_index, recurrence):
        monkeypatch.setattr(module, "uses_triton", lambda tensor: True)
    for package, table, function in (
        (read_states, "BY_DEVICE", "read_states"),
        (read_states, "REPLACE_BY_DEVICE", "replace_rows"),
        (read_states, "STORE_BY_DEVICE", "store_states"),
        (gather_linear, "LINEAR_BY_DEVICE", "gather_linear"),
        (gather_linear, "ROWS_BY_DEVICE", "gather_rows"),
        (gather_linear, "TABLES_BY_DEVICE", "embed"),
        (bucket_values, "BY_DEVICE", "bucket_values"),
        (rows_before, "BY_DEVICE", "rows_before"),
        (squared_gap, "BY_DEVICE", "squared_gap"),
        (time_gaps, "BY_DEVICE", "time_gaps"),
        (decayed_counts, "BY_DEVICE", "decayed_counts"),
        (list_log_sum, "BY_DEVICE", "list_log_sum"),
        (adam, "ROWS_BY_DEVICE", "row_step"),
        (adam, "DENSE_BY_DEVICE", "dense_steps"),
        (adam, "COALESCE_BY_DEVICE", "coalesce"),
        (adam, "COALESCE_ALL_BY_DEVICE", "coalesce_all"),
        (adam, "CLIP_BY_DEVICE", "clip_scale"),
    ):
        triton = __import__(f"{package.__name__}.triton", fromlist=[function])
        monkeypatch.setitem(getattr(package, table), "cpu", getattr(triton, function))
    for package, function in ((embedding_bag, "embedding_bag"), (list_values, "list_values")):  # as on a GPU
        monkeypatch.setitem(package.BY_DEVICE, "cpu", getattr(package.reference, function))
    result = train_two_windows(make_model(name, log), log, True)
    assert result[0] == pytest.approx(expected[0], rel=1e-4)
    for tensors, expected_tensors in zip(result[1:3], expected[1:3], strict=True):
        assert tensors.keys() == expected_tensors.keys()
        for key, right in expected_tensors.items():
            bound = 3e-4 * float(right.double().abs().max()) if right.numel() else 0
            if tensors is result[2] and key in expected[1]:
                assert torch.all(
                    (tensors[key] - right).abs() <= bound + by_adam(expected[1][key], expected[3][key])
                ), key
            else:
                message = partial("{}: {}".format, key)
                torch.testing.assert_close(tensors[key], right, rtol=0, atol=bound, msg=message)


def by_adam(grad: Tensor, smallest: Tensor) -> Tensor:
    """By how much two steps of Adam may differ where rounding changes a gradient by 1e-6 of the greatest one.

    Adam divides by the size of a gradient, so that of a tiny one its rounding decides.
    """
    return 2 * LR * (1e-6 * grad.abs().max() / smallest.clamp_min(1e-30)).clamp_max(1)
