"""The training loop: learning, validation, the best epoch, early stopping, seeds, errors and log output."""

import dataclasses
import json
import math

import pytest
import torch
from training.toy_model import MODELS, Toy, ToyConfig, log_in_memory, register

from dynedge.errors import DataError, UsageError
from dynedge.evaluation.metrics import mean
from dynedge.evaluation.protocol import rank_events
from dynedge.models.base import LogShape, Loss
from dynedge.models.registry import use_only
from dynedge.runs.run_config import RunConfig, build_model, recipe_config, resolve_config
from dynedge.training.checkpoint import Checkpoints
from dynedge.training.config import TrainingConfig
from dynedge.training.logging import TrainingLogger
from dynedge.training.loop import SMALL_WINDOW, fit, threads_for
from dynedge.training.optimizer import Adam
from dynedge.training.train_state import TIMINGS, EpochTotals
from dynedge.utils.jsonl import read_jsonl
from dynedge.utils.tensor_io import select_prefix

FAST = TrainingConfig(epochs=4, lr=0.02, row_lr=0.05, split="0.7,0.1,0.2", patience=0)


@pytest.fixture(autouse=True)
def _toys():
    register()


def train(log=None, model=None, **changes):
    log = log or log_in_memory()
    config = resolve_config(RunConfig("toy", model or ToyConfig(), dataclasses.replace(FAST, **changes)), log)
    return fit(build_model(config, log), log, config.training)


def without_timings(history):
    return [{name: value for name, value in record.items() if name not in TIMINGS} for record in history]


def test_training_reduces_the_loss_and_records_each_epoch():
    train_state = train(epochs=8)
    first, last = train_state.history[0], train_state.history[-1]
    assert last["loss"] < first["loss"]
    assert last["valid_mrr"] > 0.5
    assert [record["epoch"] for record in train_state.history] == list(range(1, 9))
    assert {"residual", "ended", "grad_norm", "valid_recall@10", *TIMINGS} <= first.keys()
    assert last["ended"] == 8
    assert first["events"] == 420
    assert len(first["losses"]) == 7, "seven windows: one point per window"
    assert first["seconds"] > 0
    assert train_state.best.valid_mrr == max(record["valid_mrr"] for record in train_state.history)


def test_runs_with_equal_seeds_are_bit_identical_and_other_seeds_differ():
    one, two, other = train(), train(), train(seed=1)
    assert without_timings(one.history) == without_timings(two.history)
    assert all(torch.equal(a, b) for a, b in zip(one.snapshot().values(), two.snapshot().values(), strict=True))
    assert without_timings(one.history) != without_timings(other.history)


def test_the_averaged_parameters_are_validated_and_kept_and_training_goes_on_with_its_own(monkeypatch):
    """Against a plain loop over the values that the parameters had after each window."""
    values, step = [], Adam.step

    def recorded(adam):
        step(adam)
        values.append({name: parameter.detach().clone() for name, parameter in adam.parameters.items()})

    monkeypatch.setattr(Adam, "step", recorded)
    plain = train(epochs=3, lr_decay=1.0)
    values.clear()
    averaged = train(epochs=3, lr_decay=1.0, average=100)
    assert all(
        torch.equal(a, b) for a, b in zip(plain.snapshot().values(), averaged.snapshot().values(), strict=True)
    )
    expected, of_epochs = None, []
    for trained, current in enumerate(values, 1):  # seven windows per epoch, averaged after every second window
        if trained % 2 == 0:
            weight = min(1.0, max(0.02, 18 / (trained + 10)))
            before = expected or current
            expected = {name: before[name] + weight * (current[name] - before[name]) for name in current}
        if trained % 7 == 0:
            of_epochs.append(expected)
    kept = select_prefix(averaged.best.tensors, "model")
    for name, tensor in of_epochs[averaged.best.epoch].items():
        torch.testing.assert_close(kept[name], tensor, rtol=1e-6, atol=1e-7)
    assert averaged.history[-1]["valid_mrr"] != plain.history[-1]["valid_mrr"]


def test_every_window_of_every_epoch_has_random_numbers_of_its_own():
    seeds = []

    class Recording(Toy):
        def loss(self, prepared, state, step):
            seeds.append(torch.initial_seed())
            return super().loss(prepared, state, step)

    log = log_in_memory()
    fit(Recording(ToyConfig(), LogShape.of(log)), log, dataclasses.replace(FAST, epochs=2))
    assert len(set(seeds)) == len(seeds) == 14


def test_learning_rates_decay_after_each_epoch_without_improvement(monkeypatch):
    factors = []
    monkeypatch.setattr(
        "dynedge.training.optimizer.Adam.scale_learning_rate", lambda adam, factor: factors.append(factor)
    )
    train_state = train(epochs=6, lr=0.0, row_lr=0.0, lr_decay=0.5)
    assert factors == [1.0, 1.0, 0.5, 0.25, 0.125, 0.0625], "the first epoch is the best, all others equal it"
    train_state.history = [{"valid_mrr": mrr} for mrr in (0.1, 0.3, 0.2, 0.25, 0.4, 0.4)]
    assert train_state.non_improving_epochs == 3
    train_state.history = [{"valid_mrr": None}] * 3
    assert train_state.non_improving_epochs == 0


def test_validation_starts_from_the_state_after_training_and_does_not_change_it():
    log = log_in_memory()
    train_state = train(log, epochs=1)
    state = Toy(ToyConfig(), LogShape.of(log)).start()
    stored = select_prefix(train_state.best.tensors, "state")
    assert stored["seen"].sum() == 420, "the stored state is that after the training events"
    for name in state:
        state[name].copy_(stored[name])
    model = train_state.model.eval()
    assert mean("mrr", rank_events(model, log, range(420, 480), state)) == train_state.best.valid_mrr
    assert train(log, epochs=1, validation_events=10).history[0]["valid_mrr"] != train_state.best.valid_mrr


def test_training_stops_early_and_returns_the_best_epoch():
    train_state = train(epochs=50, patience=2, lr=0.0, row_lr=0.0)
    assert len(train_state.history) == 3, "equal is not better"
    assert train_state.best.epoch == 0
    assert select_prefix(train_state.best.tensors, "model")["ended"] == 1


def test_without_validation_events_the_last_epoch_is_the_best():
    train_state = train(split="0.9,0,0.1", patience=1)
    assert train_state.history[0]["valid_mrr"] is None
    assert (len(train_state.history), train_state.best.epoch) == (4, 3)


@pytest.mark.parametrize(
    "changes", [{"max_grad_norm": math.inf}, {"precision": "float64"}, {"precision": "bfloat16"}]
)
def test_precision_and_clipping_settings(changes):
    train_state = train(**changes)
    assert train_state.model.item.dtype == (torch.float64 if "float64" in changes.values() else torch.float32)
    assert train_state.history[-1]["loss"] < train_state.history[0]["loss"]


def test_a_model_without_parameters_to_learn_is_validated():
    class Counts(Toy):
        def loss(self, prepared, state, step):
            self._advance(*prepared, state)
            return Loss(torch.zeros(()), {})

    log = log_in_memory()
    train_state = fit(Counts(ToyConfig(), LogShape.of(log)), log, FAST)
    assert train_state.history[0]["loss"] == 0
    assert train_state.history[0]["valid_mrr"] > 0


def test_a_loss_of_nan_is_reported_with_its_window_and_events():
    with pytest.raises(DataError) as caught:
        train(model=ToyConfig(explode=3))
    message = str(caught.value)
    assert "loss is nan in epoch 2, window 4 of 7 (events 180 to 239)" in message
    assert "lower --lr (now 0.02)" in message


def test_an_infinite_gradient_stops_training_before_the_parameters_change():
    class Steep(Toy):
        def loss(self, prepared, state, step):
            loss = super().loss(prepared, state, step)
            return Loss(loss.total + (self.repeat.detach() - self.repeat).abs().sqrt(), loss.log)

    log = log_in_memory()
    model = Steep(ToyConfig(), LogShape.of(log))
    with pytest.raises(DataError, match="gradient is not finite in epoch 1, window 1"):
        fit(model, log, FAST)
    assert all(torch.isfinite(parameter).all() for parameter in model.parameters())


def test_a_split_without_training_events_is_an_error():
    with pytest.raises(DataError, match="no events to train on"):
        train(split="0,0.5,0.5")


def test_more_windows_than_events_are_allowed():
    train_state = train(log_in_memory(count=30, users=3, items=4), ToyConfig(windows=40), split="1,0,0", epochs=2)
    assert train_state.history[0]["events"] == 30


def test_zero_epochs_leave_an_empty_history():
    train_state = train(epochs=0)
    assert (train_state.history, train_state.best) == ([], None)


def test_a_window_without_a_metric_does_not_count_in_its_mean():
    totals = EpochTotals()
    totals.add(10, 1.0, {"loss": 2.0, "residual": 4.0})
    totals.add(30, 1.0, {"loss": 6.0})
    assert totals.means() == {"loss": 5.0, "residual": 4.0}
    assert totals.loss_curve() == [2.0, 6.0]
    for _ in range(98):
        totals.add(1, 0, {"loss": 1.0})
    assert len(totals.loss_curve()) == 10


def test_an_epoch_resumed_in_its_middle_has_the_record_of_an_uninterrupted_one(tmp_path):
    log = log_in_memory()
    config = dataclasses.replace(FAST, epochs=2, checkpoint_windows=2, device="cpu")
    whole, interrupted, resumed = (build_model(RunConfig("toy", ToyConfig(), config), log) for _ in range(3))

    def interrupt(batch, state):
        if interrupted.ended == 1 and state["seen"].sum() > 240:
            raise KeyboardInterrupt

    interrupted.after_step = interrupt
    with pytest.raises(KeyboardInterrupt):
        fit(interrupted, log, config, checkpoints=Checkpoints(tmp_path))
    metadata = Checkpoints(tmp_path).load().metadata
    assert (metadata["epoch"], metadata["window"]) == (1, 3)
    history = fit(resumed, log, config, checkpoints=Checkpoints(tmp_path)).history
    assert without_timings(history) == without_timings(fit(whole, log, config).history)
    assert all(record["seconds"] > 0 for record in history)


def test_recipe_configs_and_unknown_model_names():
    assert recipe_config("toy").model == ToyConfig()
    wide = recipe_config("toy-wide")
    assert (wide.model.dim, wide.training.lr) == (8, 0.5)
    with pytest.raises(UsageError, match=r"--model knows no 'toyy'; did you mean toy\? Known: toy, toy-wide"):
        recipe_config("toyy")


@pytest.mark.parametrize("device", ["tpu!", "meta", "cuda"])
def test_an_unavailable_device_is_a_usage_error(device):
    if device == "cuda" and torch.cuda.is_available():
        pytest.skip("a GPU is available")
    with pytest.raises(UsageError, match="--device"):
        resolve_config(RunConfig("toy", ToyConfig(), TrainingConfig(device=device)), log_in_memory())


def test_epoch_lines_on_stderr_and_strict_json_in_metrics(tmp_path, capsys):
    logger = TrainingLogger(tmp_path)
    logger.start([], 1, 100)
    logger.log_window(0, 50, {"loss": 2.0})
    record = {"epoch": 1, "loss": 1.5, "residual": math.nan, "valid_mrr": 0.25, "valid_recall@10": 0.5}
    logger.log_epoch({**record, "events_per_s": 1234.0, "seconds": 2.0, "valid_seconds": 0.5})
    logger.close()
    assert capsys.readouterr().err == (
        "epoch 1/1, loss 1.5000, residual nan, valid MRR 0.2500, Recall@10 0.5000, 1.23 k events/s, "
        "2.0 s + 0.5 s validation\n"
    )
    assert json.loads((tmp_path / "metrics.jsonl").read_text())["residual"] is None


def test_a_resumed_run_drops_the_records_after_its_checkpoint(tmp_path, capsys):
    (tmp_path / "metrics.jsonl").write_text('{"epoch": 1}\n{"epoch": 2}\n{"epoch": 3')
    logger = TrainingLogger(tmp_path)
    logger.start([{"epoch": 1}], 4, 100)
    assert "resuming after epoch 1" in capsys.readouterr().err
    logger.close()
    assert read_jsonl(tmp_path / "metrics.jsonl") == [{"epoch": 1}]


def test_device_auto_is_the_first_device_a_model_supports(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    config = RunConfig("toy", ToyConfig(), TrainingConfig())
    for devices in (("cuda", "cpu"), ("cpu", "cuda"), ("cpu",)):
        use_only({"toy": dataclasses.replace(MODELS["toy"], devices=devices)})
        assert resolve_config(config, log_in_memory()).training.device == devices[0], (
            "models list the faster device first"
        )
    on_gpu = dataclasses.replace(config, training=TrainingConfig(device="cuda"))
    with pytest.raises(UsageError, match="the model toy runs on cpu only"):
        resolve_config(on_gpu, log_in_memory())


def test_small_windows_use_one_thread_and_large_windows_use_all():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        for size, threads in ((SMALL_WINDOW - 1, 1), (SMALL_WINDOW, 2)):
            with threads_for([range(size)]):
                assert torch.get_num_threads() == threads
            assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
