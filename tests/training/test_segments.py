"""Segments: the same bits for any number of processes, after a kill, and resumed by another number of them."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from dynedge.data.synthetic import synthesize
from dynedge.training.segmented_step import pairwise_sum
from dynedge.training.train_state import TIMINGS
from dynedge.utils.jsonl import read_jsonl

PROGRAM = Path(__file__).with_name("group_program.py")
SMALL = ["--segments", "4", "--dim", "8", "--windows", "9", "--set", "training.checkpoint_windows=6"]
EDGE = [*SMALL, "--dnodes", "4", "--set", "model.memory.training_examples=200", "--active-users", "60"]
MODELS = {
    "edge": [*EDGE, "--balanced-windows"],
    "edge-paper-small": [*SMALL, "--min-window-events", "0", "--active-users", "60", "--solver", "augmented"],
    "recurrence": [*SMALL, "--full-softmax-up-to", "0", "--negatives", "16", "--dnodes", "4", "--solver", "penalty"],
}
EPOCHS = {"edge": 2, "edge-paper-small": 1, "recurrence": 1}


def train(model, log, run, *more, epochs=2):
    settings = ["--model", model, *MODELS[model], "--epochs", epochs, *more]
    return [str(argument) for argument in ("train", log, "--out", run, *settings)]


def contents(run):
    metrics = read_jsonl(run / "metrics.jsonl")
    for record in metrics:
        for timing in TIMINGS:
            record.pop(timing, None)
    return (run / "model.safetensors").read_bytes(), (run / "state.safetensors").read_bytes(), metrics


@pytest.fixture(scope="module")
def log(tmp_path_factory):
    folder = tmp_path_factory.mktemp("segments") / "log"
    synthesize("lastfm-like", folder, events=1500, quiet=True)
    return folder


@pytest.fixture(scope="module")
def alone(tmp_path_factory, log):
    """Runs of one process, without torchrun; `half` has the first of two epochs."""
    from dynedge import cli

    folder, threads = tmp_path_factory.mktemp("alone"), torch.get_num_threads()
    torch.set_num_threads(1)
    for model in MODELS:
        assert cli.run(train(model, log, folder / model, epochs=EPOCHS[model])) == 0
    assert cli.run(train("edge", log, folder / "half", epochs=1)) == 0
    yield folder
    torch.set_num_threads(threads)


def launch(folder, commands, *program, processes):
    """Runs the commands in so many processes; returns for each command the results of all processes."""
    (folder / "commands.json").write_text(json.dumps(commands))
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    launched = subprocess.run(
        [sys.executable, *map(str, program)], env=environment, capture_output=True, text=True, check=False
    )
    assert launched.returncode == 0, launched.stderr
    results = [json.loads((folder / f"results-{rank}.json").read_bytes()) for rank in range(processes)]
    return [list(zip(*command, strict=True)) for command in zip(*results, strict=True)]


def test_four_processes_give_the_bits_of_one(tmp_path, log, alone):
    commands = [{"arguments": train(model, log, tmp_path / model, epochs=EPOCHS[model])} for model in MODELS]
    os.rename(alone / "half", tmp_path / "half")
    commands.append({"arguments": train("edge", log, tmp_path / "half", "--resume")})
    for codes, outs, errs in launch(tmp_path, commands, PROGRAM, tmp_path, 4, processes=4):
        assert codes == (0, 0, 0, 0), errs
        assert outs[1:] == errs[1:] == ("", "", "")
    for model in MODELS:
        assert contents(tmp_path / model) == contents(alone / model), model
    assert contents(tmp_path / "half") == contents(alone / "edge")


def test_a_killed_process_is_restarted_to_the_same_bits(tmp_path, log, alone, cli_run):
    commands = [
        {"arguments": train("edge", log, tmp_path / "killed"), "kill": [1, 5]},
        {"arguments": ["evaluate", str(tmp_path / "killed"), "--json"]},
        {"arguments": train("edge", log, tmp_path / "{rank}", "--set", "training.seed={rank}")},
        {"arguments": train("edge", log, tmp_path / "no", "--segments", "3")},
        {"arguments": train("edge", log, tmp_path / "no", "--segments", "1")},
        {"arguments": train("edge", log, tmp_path / "no", "--segments", "10")},
        {"arguments": train("edge", tmp_path / "missing-{rank}", tmp_path / "no")},
    ]
    torchrun = "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "--max-restarts=1"
    killed, evaluated, *refused = launch(tmp_path, commands, *torchrun, PROGRAM, tmp_path, processes=2)
    assert "resuming" in killed[2][0]
    assert contents(tmp_path / "killed") == contents(alone / "edge")
    _, out, _ = cli_run("evaluate", alone / "edge", "--json")
    assert json.loads(out)["test"] == json.loads(evaluated[1][0])["test"]
    reasons = [
        "process 1 has another config than process 0",
        "--segments 3 cannot be shared by 2 processes",
        "2 processes share the segments of an epoch, and there is one",
        "--segments 10 is more than the 9 windows",
        "missing-0",
    ]
    for (codes, _, errs), reason in zip(refused, reasons, strict=True):
        assert codes in ((2, 2), (3, 3))
        assert re.fullmatch(r"dynedge: [^\n]*\n", errs[0]) and reason in errs[0]
        assert errs[1] == ""
    assert not (tmp_path / "no").exists()


def test_a_model_that_cannot_train_segments_says_so(tmp_path, log, cli_run):
    code, _, err = cli_run("train", log, "--out", tmp_path / "run", "--model", "jodie", "--segments", "2")
    assert code == 2
    assert err == (
        "dynedge: --segments 2: the model jodie does not train segments side by side; these do: "
        "edge, recurrence, edge-paper-small, edge-paper-large.\n"
    )


def test_a_process_without_the_others_says_so(tmp_path, log, cli_run, monkeypatch):
    for name, value in {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("DYNEDGE_START_TIMEOUT", "0.3")
    code, _, err = cli_run(*train("edge", log, tmp_path / "run"))
    assert code == 2
    assert re.fullmatch(r"dynedge: process 0 of 2 found no rendezvous with the others at [^\n]*\n", err)


def test_sums_do_not_depend_on_how_segments_are_shared():
    parts = list(torch.randn(12, 1000, generator=torch.Generator().manual_seed(0)) ** 5)
    whole = pairwise_sum(parts)
    for processes in (2, 3, 4, 6, 12):
        own = len(parts) // processes
        run = own & -own
        partial = [pairwise_sum(parts[at : at + run]) for at in range(0, len(parts), run)]
        assert torch.equal(pairwise_sum(partial), whole)
    in_order = parts[0]
    for part in parts[1:]:
        in_order = in_order + part
    assert not torch.equal(in_order, whole)  # the order matters for these numbers
