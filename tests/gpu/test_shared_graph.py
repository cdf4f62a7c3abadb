"""Training steps of sequence models replayed from one CUDA graph, against the same steps launched one by one."""

from __future__ import annotations

import pytest
import torch

from dynedge.config import override
from dynedge.data.synthetic import synthesize
from dynedge.models.base import Step
from dynedge.ops.dispatch import warn_once
from dynedge.runs.run_config import build_model, recipe_config, resolve_config
from dynedge.training.optimizer import Adam
from dynedge.training.step import TrainingStep

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")

WINDOWS = 12


@pytest.fixture(scope="module")
def log(tmp_path_factory):
    return synthesize("lastfm-like", tmp_path_factory.mktemp("log") / "log", events=8_000, quiet=True)


def make_step(log, name, **settings):
    changes = [f"model.{field}={value}" for field, value in settings.items()]
    config = resolve_config(override(recipe_config(name), [*changes, "training.device=cuda"]), log)
    model = build_model(config, log).train()
    rates = config.training.lr, config.training.row_lr
    return model, TrainingStep(model, Adam(model.named_parameters(), *rates), config.training)


def losses(model, step, log, replayed):
    if not replayed:
        step._sharing = None
    state, out = model.start(), []
    batches = model.batches(log, model.training_windows(len(log)))
    for window, batch in zip(range(WINDOWS), batches, strict=False):
        torch.manual_seed(window)
        loss, _ = step.run(batch, state, Step(0, 0, window))
        out.append(loss.total)
    assert bool(step._captured) == replayed
    return torch.stack(out).double().cpu()


@pytest.mark.parametrize("name", ["sasrec", "gru4rec", "sum-pooling", "dien", "mimn"])
@pytest.mark.parametrize("full_softmax_up_to", [0, 4096])
def test_replayed_steps_equal_launched_ones(log, name, full_softmax_up_to):
    settings = {"dropout": 0.0, "full_softmax_up_to": full_softmax_up_to, "window_events": 500}
    replayed, launched = (losses(*make_step(log, name, **settings), log, how) for how in (True, False))
    torch.testing.assert_close(replayed, launched, rtol=5e-3, atol=0)
    assert replayed[-1] < replayed[0]


def test_a_replay_draws_its_own_dropout(log):
    model, step = make_step(log, "sum-pooling", dropout=0.5, window_events=500)
    step.optimizer.step = lambda: None  # the same parameters in every step
    batch, state = next(iter(model.batches(log, model.training_windows(len(log))))), model.start()

    def loss(seed):
        torch.manual_seed(seed)
        return float(step.run(batch, state, Step(0, 0, 0))[0].total)

    launched, captured, other, again = loss(1), loss(1), loss(2), loss(1)
    assert step._captured and captured == again != other
    assert captured == pytest.approx(launched, rel=1e-5)


def test_training_goes_on_when_a_capture_fails(log, capsys):
    """Also with dropout, whose random numbers a failed capture had made unusable for the rest of the process."""
    model, step = make_step(log, "sum-pooling", dropout=0.5, window_events=500)
    encode = model.encode_history

    def waits_when_captured(*inputs):
        encoding = encode(*inputs)
        if torch.cuda.is_current_stream_capturing():
            float(encoding.sum())
        return encoding

    model.encode_history = waits_when_captured
    warn_once.cache_clear()
    state, batches = model.start(), model.batches(log, model.training_windows(len(log)))
    found = [
        step.run(batch, state, Step(0, 0, k))[0].total for k, batch in zip(range(WINDOWS), batches, strict=False)
    ]
    assert not step._captured and "CUDA graphs are not used" in capsys.readouterr().err
    assert torch.isfinite(torch.stack(found)).all() and found[-1] < found[0]
