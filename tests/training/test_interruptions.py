"""Killed, stopped or interrupted at any moment and gone on with, a run ends bit for bit as one that never was."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from training import toy_model as toy

from dynedge.runs.run_config import RunConfig, build_model
from dynedge.training.config import TrainingConfig
from dynedge.training.train_state import TIMINGS

COMMON = ["--lr", "0.02", "--set", "training.patience=0", "--set", "model.windows=8", "--resume"]
EVERY = ["--set", "training.checkpoint_windows=3", *COMMON]


class Nursery:
    """Processes of a program that has torch loaded already, so that a life may be short."""

    def __init__(self):
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        command = [sys.executable, str(Path(toy.__file__)), "nursery"]
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
        )

    def run(self, *arguments, **order):
        """The exit code; -9 where it was killed."""
        self.process.stdin.write(json.dumps({"arguments": [*map(str, arguments), "--json"], **order}) + "\n")
        self.process.stdin.flush()
        while not (line := self.process.stdout.readline().strip()).lstrip("-").isdigit():
            assert line.startswith("{"), self.process.stderr.read()
        return int(line)

    def end(self):
        self.process.stdin.close()
        told = self.process.stderr.read()
        assert self.process.wait() == 0, told
        for pipe in (self.process.stdout, self.process.stderr):
            pipe.close()
        return told


@pytest.fixture
def nursery():
    one = Nursery()
    yield one
    assert "Traceback" not in one.end()


@pytest.fixture
def log(tmp_path):
    return toy.write_log(tmp_path / "log")


def result(run):
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    for line in lines:
        assert all(line.pop(name) > 0 for name in TIMINGS)
    return lines, (run / "model.safetensors").read_bytes(), (run / "state.safetensors").read_bytes()


def newest_position(run):
    manifests = sorted((run / "checkpoints").glob("*.json")) if run.exists() else []
    if not manifests:
        return (-1, 0)
    notes = json.loads(manifests[-1].read_text())["metadata"]
    return notes["epoch"], notes["window"]


def test_killed_at_random_moments_it_ends_the_same(nursery, tmp_path, log):
    """24 SIGKILLs, from before the run folder is there to the last epochs; of as many runs as that takes.

    More of them where others keep the machine so busy that they all fell alike.
    """
    whole = tmp_path / "whole"
    shape = ["--epochs", "12", "--set", "model.pause=0.02", *EVERY]
    assert nursery.run("train", log, "--out", whole, *shape) == 0  # torch is loaded now: the next is timed
    began = time.monotonic()
    assert nursery.run("train", log, "--out", whole, *(word for word in shape if word != "--resume"), "--force") == 0
    took = time.monotonic() - began
    rng, kills, runs, everywhere, most = random.Random(3), 0, 0, set(), 24
    while kills < most:
        killed, positions, runs = tmp_path / f"killed{runs}", [], runs + 1
        while nursery.run("train", log, "--out", killed, *shape, **_deadly(rng, took, kills < most)) != 0:
            positions.append(newest_position(killed))
            kills += 1
        assert positions == sorted(positions), "it never falls back"
        everywhere |= set(positions)
        assert result(killed) == result(whole)
        assert not list(killed.rglob("*.partial"))
        most += 24 if kills == most < 96 and len(everywhere) < 3 else 0
    assert len(everywhere) >= 3, "kills fell before, in the middle and late"
    assert len(os.listdir(tmp_path)) == 2 + runs, "nothing of the killed ones is left"


def _deadly(rng, took, more):
    return {"signal": 9, "after": rng.uniform(0.0, 0.25) * took} if more else {}


@pytest.mark.parametrize(("signum", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_signal_saves_and_ends_cleanly(nursery, tmp_path, log, signum, code):
    """No checkpoint is due by itself here: what is there after the signal, the signal saved."""
    whole, stopped = tmp_path / "whole", tmp_path / "stopped"
    shape = ["--epochs", "5", "--set", "model.pause=0.04", *COMMON]
    assert nursery.run("train", log, "--out", whole, *shape) == 0
    order = {"signal": signum, "when": str(stopped / "metrics.jsonl"), "after": 0.6}
    assert nursery.run("train", log, "--out", stopped, *shape, **order) == code
    assert newest_position(stopped) > (0, 0)
    assert newest_position(stopped) < (5, 0)
    assert nursery.run("train", log, "--out", stopped, *shape) == 0
    assert result(stopped) == result(whole)
    assert f"stopped by {signum.name}; run the same command again to continue." in nursery_told(nursery)


def nursery_told(nursery):
    """What its processes said on stderr so far."""
    os.set_blocking(nursery.process.stderr.fileno(), False)
    told = nursery.process.stderr.read()
    os.set_blocking(nursery.process.stderr.fileno(), True)
    return told


def test_a_signal_before_training_began_ends_at_once():
    """While the model is made (planning may take minutes) nothing is there to be saved."""
    from dynedge.utils.signals import StoppedBySignal, StopSignal

    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(StoppedBySignal) as caught, StopSignal():
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(5)
    assert caught.value.exit_code == 143
    assert signal.getsignal(signal.SIGTERM) is before


def test_the_second_signal_does_not_wait():
    from dynedge.utils.signals import StoppedBySignal, StopSignal

    with StopSignal() as stop, stop.deferred():
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0.01)
        assert stop.received == signal.SIGINT
        with pytest.raises(StoppedBySignal):
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(5)


def test_stopped_within_validation_the_epoch_is_not_ended_twice(tmp_path, monkeypatch):
    """The toy counts its end_epochs in a buffer: bit-identity would miss nothing of it."""
    import torch

    from dynedge.evaluation import protocol
    from dynedge.training import loop
    from dynedge.training.checkpoint import Checkpoints
    from dynedge.utils.signals import StoppedBySignal, StopSignal

    toy.register()
    log = toy.log_in_memory()
    config = TrainingConfig(epochs=3, patience=0, split="0.7,0.2,0.1", device="cpu")
    monkeypatch.setattr(protocol, "CHUNK_SCORES", 50 * log.num_items)

    def model():
        return build_model(RunConfig("toy", toy.ToyConfig(), config), log)

    whole = loop.fit(model(), log, config)
    stop, real = StopSignal(), loop.walk

    def walk(*arguments, **more):
        stop.received = signal.SIGTERM
        return real(*arguments, **more)

    monkeypatch.setattr(loop, "walk", walk)
    with pytest.raises(StoppedBySignal):
        loop.fit(model(), log, config, checkpoints=Checkpoints(tmp_path), stop=stop)
    monkeypatch.setattr(loop, "walk", real)
    notes = Checkpoints(tmp_path).load().metadata
    assert (notes["epoch"], notes["window"], notes["totals"]["end_epoch_metrics"]) == (0, 7, {"ended": 1.0})
    course = loop.fit(model(), log, config, checkpoints=Checkpoints(tmp_path))
    for name, tensor in whole.snapshot().items():
        assert torch.equal(tensor, course.snapshot()[name]), name
    assert [record["valid_mrr"] for record in course.history] == [record["valid_mrr"] for record in whole.history]
