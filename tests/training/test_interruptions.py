"""A run that is killed, stopped or interrupted at any time and resumed is bit-identical to an uninterrupted run."""

import json
import os
import random
import signal
import time

import pytest
from training import toy_model as toy
from training.fork_server import ForkServer

from dynedge.runs.run_config import RunConfig, build_model
from dynedge.training.config import TrainingConfig
from dynedge.training.train_state import TIMINGS
from dynedge.utils.jsonl import read_jsonl

pytestmark = pytest.mark.slow

COMMON = ["--lr", "0.02", "--set", "training.patience=0", "--set", "model.windows=8", "--resume"]
EVERY = ["--set", "training.checkpoint_windows=3", *COMMON]


@pytest.fixture
def processes():
    pool = ForkServer(toys=True)
    yield pool
    assert "Traceback" not in pool.close()


@pytest.fixture
def log(tmp_path):
    return toy.write_log(tmp_path / "log")


def result(run):
    lines = read_jsonl(run / "metrics.jsonl")
    for line in lines:
        assert all(line.pop(name) > 0 for name in TIMINGS)
    return lines, (run / "model.safetensors").read_bytes(), (run / "state.safetensors").read_bytes()


def checkpoint_position(run):
    manifests = sorted((run / "checkpoints").glob("*.json")) if run.exists() else []
    if not manifests:
        return (-1, 0)
    metadata = json.loads(manifests[-1].read_text())["metadata"]
    return metadata["epoch"], metadata["window"]


def test_a_run_killed_at_random_times_is_bit_identical(processes, tmp_path, log):
    """16 SIGKILLs, from before the run folder exists to the last epochs, over as many runs as that takes.

    Every other one comes soon after a new checkpoint, so that kills reach late epochs on a busy machine too.
    """
    whole = tmp_path / "whole"
    shape = ["--epochs", "12", "--set", "model.pause=0.02", *EVERY]
    assert processes.run("train", log, "--out", whole, *shape) == 0  # torch is imported now: the next run is timed
    started = time.monotonic()
    assert (
        processes.run("train", log, "--out", whole, *(word for word in shape if word != "--resume"), "--force") == 0
    )
    duration = time.monotonic() - started
    rng, kills, runs, all_positions = random.Random(3), 0, 0, set()
    while kills < 16:
        killed, positions, runs = tmp_path / f"killed{runs}", [], runs + 1
        while processes.run("train", log, "--out", killed, *shape, **_kill(rng, duration, kills, killed)) != 0:
            positions.append(checkpoint_position(killed))
            kills += 1
        assert positions == sorted(positions), "progress is never lost"
        all_positions |= set(positions)
        assert result(killed) == result(whole)
        assert not list(killed.rglob("*.partial"))
    assert len(all_positions) >= 3, "kills hit the start, the middle and the end"
    assert len(os.listdir(tmp_path)) == 2 + runs, "killed processes leave nothing behind"


def _kill(rng, duration, kills, run):
    """Where the next SIGKILL comes; none after the 16th."""
    if kills >= 16:
        return {}
    if kills % 2:
        return {"signal": 9, "new_in": str(run / "checkpoints"), "after": rng.uniform(0.0, 0.1) * duration}
    return {"signal": 9, "after": rng.uniform(0.0, 0.25) * duration}


@pytest.mark.parametrize(("signum", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_signal_saves_a_checkpoint_and_exits(processes, tmp_path, log, signum, code):
    """No checkpoint is due here, so the one after the signal was written because of it."""
    whole, stopped = tmp_path / "whole", tmp_path / "stopped"
    shape = ["--epochs", "5", "--set", "model.pause=0.04", *COMMON]
    assert processes.run("train", log, "--out", whole, *shape) == 0
    kill = {"signal": signum, "when": str(stopped / "metrics.jsonl"), "after": 0.6}
    assert processes.run("train", log, "--out", stopped, *shape, **kill) == code
    assert checkpoint_position(stopped) > (0, 0)
    assert checkpoint_position(stopped) < (5, 0)
    assert processes.run("train", log, "--out", stopped, *shape) == 0
    assert result(stopped) == result(whole)
    assert f"stopped by {signum.name}; run the same command again to continue." in stderr_so_far(processes)


def stderr_so_far(processes):
    """Returns what the commands have written to stderr."""
    os.set_blocking(processes.process.stderr.fileno(), False)
    stderr = processes.process.stderr.read()
    os.set_blocking(processes.process.stderr.fileno(), True)
    return stderr


def test_a_signal_before_training_raises_immediately():
    """While the model is built (planning may take minutes) there is nothing to save."""
    from dynedge.utils.signals import StoppedBySignal, StopSignal

    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(StoppedBySignal) as caught, StopSignal():
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(5)
    assert caught.value.exit_code == 143
    assert signal.getsignal(signal.SIGTERM) is before


def test_a_second_signal_raises_immediately():
    from dynedge.utils.signals import StoppedBySignal, StopSignal

    with StopSignal() as stop, stop.deferred():
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0.01)
        assert stop.received == signal.SIGINT
        with pytest.raises(StoppedBySignal):
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(5)


@pytest.mark.parametrize("average", [0, 5])
def test_a_stop_during_validation_does_not_end_the_epoch_twice(average, tmp_path, monkeypatch):
    """The toy model counts end_epoch calls in a buffer, so a second call would change its bits. Validation is of
    the averaged parameters, and what is saved meanwhile are the trained ones."""
    import torch

    from dynedge.evaluation import protocol
    from dynedge.training import loop
    from dynedge.training.checkpoint import Checkpoints
    from dynedge.utils.signals import StoppedBySignal, StopSignal

    toy.register()
    log = toy.log_in_memory()
    config = TrainingConfig(epochs=3, patience=0, split="0.7,0.2,0.1", device="cpu", average=average)
    monkeypatch.setattr(protocol, "CHUNK_SCORES", 50 * log.num_items)

    def model():
        return build_model(RunConfig("toy", toy.ToyConfig(), config), log)

    whole = loop.fit(model(), log, config)
    stop, real = StopSignal(), loop.rank_events

    def rank_events(*arguments, **more):
        stop.received = signal.SIGTERM
        return real(*arguments, **more)

    monkeypatch.setattr(loop, "rank_events", rank_events)
    with pytest.raises(StoppedBySignal):
        loop.fit(model(), log, config, checkpoints=Checkpoints(tmp_path), stop=stop)
    monkeypatch.setattr(loop, "rank_events", real)
    metadata = Checkpoints(tmp_path).load().metadata
    position = metadata["epoch"], metadata["window"]
    assert (*position, metadata["totals"]["end_epoch_metrics"]) == (0, 7, {"ended": 1.0})
    resumed = loop.fit(model(), log, config, checkpoints=Checkpoints(tmp_path))
    for name, tensor in whole.snapshot().items():
        assert torch.equal(tensor, resumed.snapshot()[name]), name
    for name, tensor in whole.best.tensors.items():
        assert torch.equal(tensor, resumed.best.tensors[name]), name
    assert [record["valid_mrr"] for record in resumed.history] == [record["valid_mrr"] for record in whole.history]
