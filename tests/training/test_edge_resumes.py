"""EDGE trained by the command, killed and resumed several times, ends bit-identical to an uninterrupted run."""

import os
import signal
import subprocess
import sys
import time

import pytest

from dynedge.data.synthetic import synthesize
from dynedge.training.train_state import TIMINGS
from dynedge.utils.jsonl import read_jsonl

pytestmark = pytest.mark.slow

SETTINGS = ["--epochs", "3", "--windows", "12", "--dnodes", "8", "--active-users", "60", "--dim", "16"]


def start(log, out, *more):
    command = [sys.executable, "-m", "dynedge", "train", log, "--out", out, *SETTINGS, *more]
    command += ["--set", "training.checkpoint_windows=2", "--set", "model.recurrence.full_softmax_up_to=0"]
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen([str(word) for word in command], **quiet)


def contents(run):
    metrics = read_jsonl(run / "metrics.jsonl")
    for record in metrics:
        for timing in TIMINGS:
            record.pop(timing, None)
    return (run / "model.safetensors").read_bytes(), (run / "state.safetensors").read_bytes(), metrics


@pytest.fixture(scope="module")
def log(tmp_path_factory):
    """A log that was trained on once, so that everything is compiled and a run's duration is representative."""
    folder = tmp_path_factory.mktemp("compiled")
    synthesize("lastfm-like", folder / "log", events=6000, quiet=True)
    process = start(folder / "log", folder / "run")
    _, stderr = process.communicate()
    assert process.returncode == 0, stderr
    return folder / "log"


@pytest.mark.parametrize("solver", ["penalty", "augmented", "refresh"])
def test_a_killed_and_resumed_run_is_bit_identical(tmp_path, log, solver):
    started = time.monotonic()
    whole = start(log, tmp_path / "whole", "--solver", solver)
    _, stderr = whole.communicate()
    assert whole.returncode == 0, stderr
    duration = time.monotonic() - started
    kills = 0
    for at in (0.55, 0.75, 0.9):
        process = start(log, tmp_path / "broken", "--solver", solver, "--resume")
        time.sleep(at * duration)
        if process.poll() is None:
            os.kill(process.pid, signal.SIGKILL)
            kills += 1
        process.communicate()
    last = start(log, tmp_path / "broken", "--solver", solver, "--resume")
    _, stderr = last.communicate()
    assert last.returncode == 0, stderr
    assert kills, "no process was killed"
    assert contents(tmp_path / "broken") == contents(tmp_path / "whole")
