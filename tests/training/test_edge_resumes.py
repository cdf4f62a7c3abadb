"""EDGE trained by the command, killed and resumed several times, ends bit-identical to an uninterrupted run."""

import pytest
from training.fork_server import ForkServer

from dynedge.data.synthetic import synthesize
from dynedge.training.train_state import TIMINGS
from dynedge.utils.jsonl import read_jsonl

pytestmark = pytest.mark.slow

SETTINGS = ["--epochs", "3", "--windows", "12", "--dnodes", "8", "--active-users", "60", "--dim", "16"]
SETTINGS += ["--set", "training.checkpoint_windows=2", "--set", "model.recurrence.full_softmax_up_to=0"]


@pytest.fixture(scope="module")
def processes():
    server = ForkServer()
    yield server
    assert "Traceback" not in server.close()


def contents(run):
    metrics = read_jsonl(run / "metrics.jsonl")
    for record in metrics:
        for timing in TIMINGS:
            record.pop(timing, None)
    return (run / "model.safetensors").read_bytes(), (run / "state.safetensors").read_bytes(), metrics


@pytest.fixture(scope="module")
def log(tmp_path_factory, processes):
    """A log that was trained on once, so that most kernels are compiled."""
    folder = tmp_path_factory.mktemp("compiled")
    synthesize("lastfm-like", folder / "log", events=6000, quiet=True)
    assert processes.run("train", folder / "log", "--out", folder / "run", *SETTINGS) == 0
    return folder / "log"


@pytest.mark.parametrize("solver", ["penalty", "augmented", "refresh"])
def test_a_killed_and_resumed_run_is_bit_identical(processes, tmp_path, log, solver):
    def train(out, *more, **kill):
        return processes.run("train", log, "--out", tmp_path / out, *SETTINGS, "--solver", solver, *more, **kill)

    assert train("whole") == 0
    saved = str(tmp_path / "broken" / "checkpoints")
    for after in (0.0, 0.05):  # seconds after a new checkpoint
        assert train("broken", "--resume", signal=9, new_in=saved, after=after) == -9
    assert train("broken", "--resume") == 0
    assert contents(tmp_path / "broken") == contents(tmp_path / "whole")
