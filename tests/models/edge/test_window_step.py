"""A window in a few compiled calls has the bits of the operators and autograd."""

import numpy as np
import pytest
import torch
from models.edge.reference_recurrence import STEP, make_log, make_model
from models.every_model import assert_computes_gradients

from dynedge.models.edge import window_step
from dynedge.training.config import TrainingConfig
from dynedge.training.loop import fit

PLAIN = {
    "time_gaps": False,
    "event_features": False,
    "copy_path": False,
    "history": False,
    "successors": False,
    "popularity": False,
    "candidate_id_up_to": 0,
}
CASES = [
    {"full_softmax_up_to": 0, "negatives": 3},
    {"full_softmax_up_to": 0, "negatives": 3, "active_users": 5, "active_items": 4, "dim": 37},
    {"categories": False, "dim": 16},
    {"item_id": False, "sampling_correction": False, "full_softmax_up_to": 0, "negatives": 20},
]


def leave_nan_in_freed_memory():
    for size in (1 << 8, 1 << 10, 1 << 12, 1 << 14, 1 << 16, 1 << 18):
        arrays = [np.full(size, np.nan) for _ in range(8)]
        del arrays


@pytest.mark.parametrize("settings", CASES)
def test_loss_gradients_and_states_have_the_bits_of_autograd(settings):
    log = make_log(events=290, users=20, items=30)
    train_end = len(log) * 3 // 4
    model = make_model(log, train_end, **PLAIN, **settings).float()
    batch = next(iter(model.batches(log, model.training_windows(train_end))))
    assert window_step.supports(model, batch)
    leave_nan_in_freed_memory()
    assert_computes_gradients(model, log)


@pytest.mark.parametrize(
    "extension", [{"time_gaps": True}, {"copy_path": True}, {"history": True}, {"popularity": True}]
)
@pytest.mark.slow
def test_a_model_with_extensions_is_left_to_autograd(extension):
    log = make_log()
    model = make_model(log, **PLAIN | extension)
    batch = next(iter(model.batches(log, model.training_windows(len(log)))))
    state = model.start()
    assert model.loss_with_gradients(batch, state, STEP) is None
    assert not state["user_moved"].any()
    assert all(parameter.grad is None for parameter in model.parameters())


def test_training_has_the_bits_of_autograd(monkeypatch):
    log = make_log(events=400, users=20, items=30)
    results = []
    for supported in (True, False):
        with monkeypatch.context() as patch:
            if not supported:
                patch.setattr(window_step, "supports", lambda model, index: False)
            model = make_model(log, log.split.bounds(len(log))[0], **PLAIN, **CASES[0]).float()
            fit(model, log, TrainingConfig(epochs=2))
            results.append({name: part.clone() for name, part in model.state_dict().items()})
    assert all(torch.equal(part, results[1][name]) for name, part in results[0].items())
