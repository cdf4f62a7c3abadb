"""The command train: the run folder, resuming, and one sentence for every mistake."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from training import toy_model as toy

from dynedge.data.log import read_log
from dynedge.errors import DataError
from dynedge.runs.folder import RunFolder, load_run, read_coverage

PROGRAM = str(Path(toy.__file__))
FAST = ["--epochs", "2", "--lr", "0.02", "--patience", "0"]
pytestmark = pytest.mark.usefixtures("toy_models")


def start(*arguments):
    environment = {**os.environ, "PYTHONWARNINGS": "error", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, PROGRAM, *map(str, arguments)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)


def finish(process):
    out, err = process.communicate(timeout=60)
    assert "Traceback" not in err, err
    return process.returncode, out, err


@pytest.fixture
def log(tmp_path):
    return toy.write_log(tmp_path / "log")


def metrics(run):
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


@pytest.mark.slow
def test_run_folder_and_printed_summary(tmp_path, log):
    """In a process of its own, where warnings are errors too."""
    run = tmp_path / "run"
    code, out, err = finish(start("train", log, "--out", run, *FAST))
    assert code == 0, err
    assert "model       toy, 2 epochs in" in out
    assert "validation  MRR 0." in out
    assert [line.split(",")[0] for line in err.splitlines()] == ["epoch 1/2", "epoch 2/2"]
    names = [
        "README.md",
        "checkpoints",
        "config.toml",
        "env.json",
        "run_info.json",
        "ids",
        "manifest.json",
        "metrics.jsonl",
    ]
    names += [f"{name}.safetensors" for name in ("coverage", "model", "state")]
    assert sorted(set(os.listdir(run)) - {".lock"}) == sorted(names)
    assert [line["epoch"] for line in metrics(run)] == [1, 2]
    assert {"torch", "numpy"} <= json.loads((run / "env.json").read_text())["packages"].keys()
    assert json.loads((run / "run_info.json").read_text()) == {"parameters": 161, "colour": "red"}
    text = (run / "README.md").read_text()
    assert "600 events, 20 users, 15 items; split 0.7,0.1,0.2" in text
    assert "Best epoch 2: validation MRR" in text
    config = (run / "config.toml").read_text()
    assert 'name = "toy"' in config
    assert "dim = 4           # Width of an embedding." in config


def test_json_flags_set_and_config_file(cli_run, tmp_path, log):
    run = tmp_path / "run"
    more = ["--dim", "6", "--windows", "3", "--seed", "5", "--split", "0.5,0.25,0.25", "--set", "model.negatives=2"]
    code, out, err = cli_run("train", log, "--out", run, *FAST, *more, "--json")
    assert code == 0, err
    summary = json.loads(out)
    assert (summary["epochs"], summary["model"], summary["run"]) == (2, "toy", str(run))
    assert summary["valid_mrr"] == max(line["valid_mrr"] for line in metrics(run))
    config = load_run(run).config
    assert (config.model.dim, config.model.windows, config.model.negatives) == (6, 3, 2)
    assert (config.training.seed, config.training.split) == (5, "0.5,0.25,0.25")
    assert metrics(run)[0]["events"] == 300
    code, out, err = cli_run("train", log, "--out", tmp_path / "two", "--config", run / "config.toml", "--json")
    assert code == 0, err
    assert json.loads(out)["valid_mrr"] == summary["valid_mrr"], "the config file is the whole config"


def test_the_summary_has_the_numbers_of_the_best_epoch(cli_run, tmp_path, log):
    run = tmp_path / "run"
    code, out, _ = cli_run("train", log, "--out", run, "--epochs", "6", "--lr", "5", "--patience", "2", "--json")
    assert code == 0
    summary, history = json.loads(out), metrics(run)
    best = max(history, key=lambda record: record["valid_mrr"])
    assert best["epoch"] < len(history) < 6
    assert {name: summary[name] for name in ("best_epoch", "valid_mrr", "valid_recall@10")} == {
        "best_epoch": best["epoch"],
        "valid_mrr": best["valid_mrr"],
        "valid_recall@10": best["valid_recall@10"],
    }
    assert summary["stopped_early"]
    spent = sum(record["seconds"] + record["valid_seconds"] for record in history)
    assert summary["seconds"] == pytest.approx(spent, abs=1e-3)
    code, out, _ = cli_run("train", log, "--out", run, "--resume")
    assert code == 0
    lines = {line[:12].strip(): line[12:] for line in out.splitlines()}
    assert lines["model"].endswith(", stopped early")
    assert lines["best epoch"] == str(best["epoch"])
    assert lines["validation"] == f"MRR {best['valid_mrr']:.4f}, Recall@10 {best['valid_recall@10']:.4f}"


def test_resuming_a_finished_run_changes_nothing_and_more_epochs_extend_it(cli_run, tmp_path, log):
    run, whole = tmp_path / "run", tmp_path / "whole"
    assert cli_run("train", log, "--out", run, *FAST)[0] == 0
    before = (run / "model.safetensors").read_bytes(), (run / "metrics.jsonl").read_bytes()
    kept = sorted(os.listdir(run / "checkpoints"))
    code, _, err = cli_run("train", log, "--out", run, *FAST, "--resume")
    assert code == 0
    assert "resuming after epoch 2" in err
    assert before == ((run / "model.safetensors").read_bytes(), (run / "metrics.jsonl").read_bytes())
    assert sorted(os.listdir(run / "checkpoints")) == kept
    assert cli_run("train", log, "--out", run, "--resume", "--epochs", "4")[0] == 0, (
        "all other settings are those of the run"
    )
    assert cli_run("train", log, "--out", whole, *FAST, "--epochs", "4")[0] == 0
    assert (run / "model.safetensors").read_bytes() == (whole / "model.safetensors").read_bytes()
    assert len(metrics(run)) == 4


def test_resume_starts_a_missing_run_and_force_starts_over(cli_run, tmp_path, log):
    run = tmp_path / "run"
    assert cli_run("train", log, "--out", run, *FAST, "--resume")[0] == 0
    assert cli_run("train", log, "--out", run, *FAST, "--force", "--dim", "5")[0] == 0
    assert load_file(run / "model.safetensors")["item"].shape == (15, 5)
    assert sorted(os.listdir(tmp_path)) == ["log", "run"]


def test_a_loss_of_nan_stops_and_keeps_the_last_good_checkpoint(cli_run, tmp_path, log):
    run = tmp_path / "run"
    explode = ["--set", "model.explode=3", "--checkpoint-windows", "2"]
    code, _, err = cli_run("train", log, "--out", run, *FAST, *explode)
    assert code == 3
    assert "the loss is nan in epoch 2, window 4 of 7 (events 180 to 239)" in err
    with pytest.raises(DataError, match="has not finished training"):
        load_run(run)
    now = RunFolder(run).checkpoints.load()
    assert (now.metadata["epoch"], now.metadata["window"]) == (1, 3)
    assert all(torch.isfinite(tensor).all() for tensor in now.parts["current"].values())
    code, _, err = cli_run("train", log, "--out", run, "--resume", "--lr", "0.001")
    assert code == 3, "a lower learning rate may be set, but does not help here"
    assert "(now 0.001)" in err


def test_a_damaged_checkpoint_is_reported_and_the_result_is_the_same(cli_run, tmp_path, log):
    run = tmp_path / "run"
    every = [*FAST, "--checkpoint-windows", "3"]
    assert cli_run("train", log, "--out", run, *every)[0] == 0
    before = (run / "model.safetensors").read_bytes()
    newest = max((run / "checkpoints").glob("current-*.safetensors"))
    newest.write_bytes(newest.read_bytes()[:-1])
    code, _, err = cli_run("train", log, "--out", run, *every, "--resume")
    assert code == 0
    assert f"{newest} is damaged: it does not match its SHA-256" in err
    assert (run / "model.safetensors").read_bytes() == before


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A finished run, for tests to copy and damage."""
    folder = tmp_path_factory.mktemp("finished")
    log = toy.write_log(folder / "log")
    code, _, err = finish(start("train", log, "--out", folder / "run", *FAST))
    assert code == 0, err
    return folder


MISTAKES = [
    (["--out", "{new}", "--model", "tox"], 2, "--model knows no 'tox'; did you mean toy? Known: toy, toy-wide"),
    (["--out", "{new}", "--dnodes", "3"], 2, "the model toy has no --dnodes; its settings are: model.dim"),
    (["--out", "{new}", "--dim", "wide"], 2, "--dim: model.dim should be a whole number, not 'wide'"),
    (["--out", "{new}", "--dim", "13"], 2, "bad luck"),
    (["--out", "{new}", "--epochs", "-1"], 2, "--epochs: training.epochs should be at least 0"),
    (["--out", "{new}", "--set", "model.dimm=3"], 2, "did you mean model.dim?"),
    (["--out", "{new}", "--set", "dim"], 2, "KEY=VALUE"),
    (["--out", "{new}", "--split", "1,2,3"], 2, "--split"),
    (["--out", "{new}", "--split", "0,0.5,0.5"], 3, "no events to train on"),
    (["--out", "{new}", "--precision", "float8"], 2, "one of auto, float32, bfloat16, float64"),
    (["--out", "{new}", "--device", "abacus"], 2, "--device 'abacus' must be auto"),
    (["--out", "{new}", "--config", "{tmp}/absent.toml"], 3, "absent.toml: No such file"),
    (["--out", "{new}", "--config", "{tmp}/bad.toml"], 3, "bad.toml is not TOML"),
    (["--out", "{new}", "--config", "{tmp}/key.toml"], 2, "key.toml has no 'training.epoch'; did you mean"),
    (["--out", "{new}", "--config", "{run}/config.toml", "--model", "toy-wide"], 2, "is for the model toy, but"),
    (["--out", "{new}", "--track", "wandb"], 2, "dynedge[wandb]"),
    (["--out", "{new}", "--track", "notebook:mine"], 2, "there is no tracker 'notebook'; choose one of: tensorboard"),
    (["--out", "{tmp}/no/run"], 3, "create it first"),
    (["--out", "{run}"], 3, "already exists; pass --resume"),
    (["--out", "{run}", "--resume", "--force"], 2, "pass one of them"),
    (["--out", "{log}", "--force"], 3, "not a run folder"),
    (["--out", "{run}", "--resume", "--dim", "8"], 2, "was started with model.dim = 4, not 8"),
    (["--out", "{run}", "--resume", "--model", "toy-wide"], 2, "was started with name = toy, not toy-wide"),
    (["--out", "{run}", "--resume", "--seed", "1"], 2, "was started with training.seed = 0, not 1"),
]


@pytest.mark.parametrize(("arguments", "code", "words"), MISTAKES)
def test_mistakes_are_one_sentence_with_the_right_exit_code(cli_run, finished, tmp_path, arguments, code, words):
    (tmp_path / "bad.toml").write_text("][")
    (tmp_path / "key.toml").write_text("[training]\nepoch = 3\n")
    places = {"tmp": tmp_path, "new": tmp_path / "new", "run": finished / "run", "log": finished / "log"}
    before = sorted(os.listdir(tmp_path))
    exit_code, out, err = cli_run("train", finished / "log", *[word.format(**places) for word in arguments])
    assert exit_code == code, err
    assert words in err
    assert len(err.strip().splitlines()) == 1, err
    assert out == ""
    assert sorted(os.listdir(tmp_path)) == before, "no folder is left behind"


@pytest.mark.parametrize(
    ("shape", "words"),
    [
        ({"users": 21}, "it has 21 users, and the run's log has 20"),
        ({"items": 16}, "it has 16 items, and the run's log has 15"),
        ({"features": 2}, "it has 2 features, and the run's log has 0"),
        ({"count": 601}, "it has 601 events, and the run's log has 600"),
        ({"seed": 1}, "it has the same number of events, but different ones"),
    ],
)
def test_resuming_on_a_different_log_is_refused(cli_run, finished, tmp_path, shape, words):
    log = toy.write_log(tmp_path / "other", **shape)
    code, _, err = cli_run("train", log, "--out", finished / "run", "--resume")
    assert code == 3
    assert f"{log} is not the log of {finished / 'run'}: {words}" in err


@pytest.mark.slow
def test_a_run_in_use_by_another_process_is_refused(cli_run, tmp_path, log):
    run = tmp_path / "run"
    first = start("train", log, "--out", run, "--set", "model.pause=0.2", "--epochs", "100")
    try:
        wait_for(run / "metrics.jsonl", first)
        for again in ("--resume", "--force"):
            code, _, err = cli_run("train", log, "--out", run, again)
            assert code == 3
            assert f"{run} is in use by another process ({first.pid}); wait for it, or stop it." in err
    finally:
        first.kill()
        first.communicate()
    assert cli_run("train", log, "--out", run, "--force", *FAST)[0] == 0, "the lock ends with its process"


def wait_for(path, process):
    deadline = time.monotonic() + 60
    while not path.exists():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_resuming_with_another_number_of_threads_is_reported(cli_run, tmp_path, log):
    run = tmp_path / "run"
    assert cli_run("train", log, "--out", run, *FAST)[0] == 0
    env = json.loads((run / "env.json").read_text())
    (run / "env.json").write_text(json.dumps({**env, "threads": 77}))
    code, _, err = cli_run("train", log, "--out", run, *FAST, "--resume")
    assert code == 0
    assert "was started with 77 threads and resumes with" in err


def test_one_epoch_is_singular(cli_run, tmp_path, log):
    assert "toy, 1 epoch in" in cli_run("train", log, "--out", tmp_path / "run", "--epochs", "1")[1]


def test_final_trains_on_all_events_and_keeps_the_last_epoch(cli_run, tmp_path, log):
    code, out, err = cli_run("train", log, "--out", tmp_path / "final", *FAST, "--final", "--json")
    assert code == 0, err
    summary = json.loads(out)
    assert (summary["epochs"], summary["best_epoch"], summary["valid_mrr"]) == (2, 2, None)
    events = len(read_log(log))
    assert read_coverage(tmp_path / "final", read_log(log).num_items).events == events
    same = cli_run("train", log, "--out", tmp_path / "split", *FAST, "--split", "1,0,0")
    assert same[0] == 0
    files = [(tmp_path / name / "model.safetensors").read_bytes() for name in ("final", "split")]
    assert files[0] == files[1]
    code, _, err = cli_run("train", log, "--out", tmp_path / "x", *FAST, "--final", "--split", "0.8,0.1,0.1")
    assert (code, "--final trains on all events: leave out --split" in err) == (2, True)
