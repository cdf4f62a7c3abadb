"""`dynedge compare LOG`: every model is trained, evaluated and listed, also after failures and kills."""

import json
import os
import pickle
import re
import signal
import subprocess
import sys
import time
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from training import toy_model as toy

from dynedge.evaluation.bootstrap import confidence_intervals
from dynedge.experiments.compare_models import BenchmarkRun, _seconds_left
from dynedge.models.registry import BUILT_IN as MODELS  # all of them: tests here register toys instead
from dynedge.utils.jsonl import read_jsonl
from dynedge.utils.subprocess_worker import SubprocessError, run_in_subprocess

KEYS = {"model", "mrr", "recall@10", "ci95", "seconds_per_epoch", "peak_mib", "parameters", "error"}
SHORT = ["--seeds", "1", "--epochs", "2"]
pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("toy_models")]


@pytest.fixture
def log(tmp_path):
    return toy.write_log(tmp_path / "log")


@pytest.fixture
def recipe(tmp_path):
    """recipe("slow", pause=0.1) returns a config file of the toy model with that setting."""

    def write(name, **settings):
        path = tmp_path / f"{name}.toml"
        lines = "\n".join(f"{key} = {json.dumps(value)}" for key, value in settings.items())
        path.write_text(f'name = "toy"\n[model]\n{lines}\n')
        return path

    return write


def rows_of(cli_run, *arguments):
    code, out, err = cli_run("compare", *arguments, "--json")
    assert code == 0, err
    return {row["model"]: row for row in json.loads(out)["rows"]}


def test_the_rules_of_tgb_train_on_their_own_split(cli_run, log, tmp_path):
    rows = rows_of(cli_run, log, "--models", "toy", *SHORT, "--protocol", "tgb")
    assert rows["toy"]["error"] is None
    config = (tmp_path / "log-tgb-runs" / "toy-0" / "config.toml").read_text()
    assert 'split = "time:0.7,0.15,0.15"' in config


def test_leaderboard_rows_summarize_the_runs(cli_run, log, tmp_path):
    rows = rows_of(cli_run, log, "--models", "toy,toy-wide", "--seeds", "2", "--epochs", "2")
    assert list(rows) == ["toy-wide", "toy"]  # by MRR
    runs = tmp_path / "log-runs"
    user = np.load(log / "user.npy")[480:]
    for name, row in rows.items():
        assert row.keys() >= KEYS
        ranks = [np.load(runs / f"{name}-{seed}" / "ranks" / "full.npy")[60:] for seed in range(2)]
        assert not np.array_equal(*ranks)
        both = np.mean([1 / one for one in ranks], 0)
        assert row["mrr"] == pytest.approx(both.mean(), abs=1e-12)
        assert row["ci95"] == pytest.approx(confidence_intervals(both[:, None], user)[0].tolist(), abs=1e-12)
        history = read_jsonl(runs / f"{name}-0" / "metrics.jsonl")
        assert row["seeds"][0]["valid"] == [record["valid_mrr"] for record in history]
        assert len(history) == 2
        assert row["error"] is None
    assert rows["toy"]["parameters"] == 161
    assert rows["toy"]["difference_to_best"]["mrr"] == pytest.approx(
        rows["toy"]["mrr"] - rows["toy-wide"]["mrr"], abs=1e-12
    )


def test_finished_runs_are_not_trained_again(cli_run, log, tmp_path):
    first = rows_of(cli_run, log, "--models", "toy", *SHORT)
    written = (tmp_path / "log-runs" / "toy-0" / "model.safetensors").stat().st_mtime_ns
    assert rows_of(cli_run, log, "--models", "toy", *SHORT) == first
    other = rows_of(cli_run, log, "--models", "toy", *SHORT, "--protocol", "sampled-499")
    assert other["toy"]["mrr"] is not None
    assert (tmp_path / "log-runs" / "toy-0" / "model.safetensors").stat().st_mtime_ns == written
    longer = rows_of(cli_run, log, "--models", "toy", "--seeds", "1", "--epochs", "3")  # resumes
    assert longer["toy"]["seeds"][0]["valid"][:2] == first["toy"]["seeds"][0]["valid"]
    assert len(longer["toy"]["seeds"][0]["valid"]) == 3
    code, out, err = cli_run("compare", log, "--models", "toy", *SHORT)
    assert (code, out) == (2, "")
    assert "was trained with training.epochs = 3, not 2: choose another folder" in err


def test_a_run_trained_on_another_machine_is_accepted(cli_run, log, tmp_path):
    first = rows_of(cli_run, log, "--models", "toy", *SHORT)
    config = tmp_path / "log-runs" / "toy-0" / "config.toml"
    config.write_text(config.read_text().replace('"cpu"', '"cuda:7"').replace('"float32"', '"bfloat16"'))
    again = rows_of(cli_run, log, "--models", "toy", *SHORT)
    assert again["toy"] == {**first["toy"], "device": "cuda:7"}
    code, _, err = cli_run("compare", log, "--models", "toy", "--seeds", "1", "--epochs", "3")
    assert code == 2
    assert "toy-0 was trained with training." in err


def test_a_failed_model_is_a_row_and_the_others_continue(cli_run, log, recipe, tmp_path):
    refused, huge, wild = recipe("refused", dim=13), recipe("huge", dim=10**12), recipe("wild", explode=3)
    large = recipe("large", dim=3000)
    models = ",".join(map(str, (refused, huge, wild, large, "toy")))
    code, out, err = cli_run("compare", log, "--models", models, *SHORT, "--report", tmp_path / "page")
    assert code == 0, err
    lines = {line.split()[0].rstrip(":"): line for line in out.splitlines() if line.strip()}
    assert "--dim 13 brings bad luck." in lines[str(refused)]
    assert f"{huge}: -oom- not enough memory" in lines[str(huge)]
    assert "the loss is nan in epoch 2, window 4 of 7" in lines[str(wild)]
    rows = rows_of(cli_run, log, "--models", f"{large},toy,{refused}", *SHORT)
    assert rows[str(refused)] == {**rows[str(refused)], "mrr": None, "error": "--dim 13 brings bad luck."}
    # Each in its own subprocess: toy's memory does not include the 4 × 9 million numbers of the large model.
    assert rows[f"{large} (toy)"]["peak_mib"] > rows["toy"]["peak_mib"] + 4 * 9e6 * 4 / 2**20
    check_page((tmp_path / "page" / "index.html").read_text(), "toy", "--dim 13 brings bad luck.", "-oom-")


def check_page(text, *words):
    """The page is well-formed and loads nothing from elsewhere."""
    assert not re.search(r"https?:|//|src=|url\(|@import|<script|<link", text)
    assert 'name="viewport"' in text
    assert "prefers-color-scheme: dark" in text
    open_tags, seen = [], []

    class Reader(HTMLParser):
        def handle_starttag(self, tag, attributes):
            seen.append(tag)
            if tag != "meta":
                open_tags.append(tag)

        def handle_startendtag(self, tag, attributes):
            seen.append(tag)

        def handle_endtag(self, tag):
            assert open_tags.pop() == tag

    Reader().feed(text)
    assert not open_tags
    assert {"table", "svg", "circle", "polyline", "figure"} <= set(seen)
    for word in words:
        assert word in text


def test_names_in_the_page_are_escaped(cli_run, log, recipe, tmp_path):
    name = recipe("<b>&amp;", dim=3)
    code, _, err = cli_run("compare", log, "--models", name, *SHORT, "--report", tmp_path / "page")
    assert code == 0, err
    text = (tmp_path / "page" / "index.html").read_text()
    assert "<b>" not in text
    assert "&lt;b&gt;&amp;amp;.toml (toy)" in text


def test_of_a_group_of_heuristics_the_best_by_validation_is_shown(cli_run, log, tmp_path):
    from dynedge.models import registry

    all_heuristics = MODELS["heuristic"]
    heuristic = replace(
        all_heuristics, recipes={name: all_heuristics.recipes[name] for name in ("recent", "popular-unseen")}
    )
    registry.use_only({**toy.MODELS, "heuristic": heuristic})
    rows = rows_of(cli_run, log, "--models", "all", "--seeds", "2", "--epochs", "2")
    assert set(rows) == {"toy", "toy-wide", "best heuristic (recent)"}
    best = rows["best heuristic (recent)"]
    assert (best["recipe"], len(best["seeds"]), len(best["seeds"][0]["valid"])) == ("recent", 1, 1)
    folders = {path.name for path in (tmp_path / "log-runs").iterdir()}
    assert folders == {"toy-0", "toy-1", "toy-wide-0", "toy-wide-1", "recent-0", "popular-unseen-0"}
    ranks = {name: np.load(tmp_path / "log-runs" / f"{name}-0" / "ranks" / "full.npy") for name in heuristic.recipes}
    assert np.mean(1 / ranks["recent"][:60]) > np.mean(1 / ranks["popular-unseen"][:60])


def test_the_time_left_is_that_of_the_missing_runs():
    missing = [BenchmarkRun(recipe, 0, None, None) for recipe in ("slow", "quick", "new")]
    assert _seconds_left(missing, {}) is None
    assert _seconds_left(missing, {"slow": 9.0, "quick": 3.0}) == 9.0 + 3.0 + 6.0, "an unknown recipe takes the mean"


def test_usage_errors(cli_run, log, tmp_path):
    def refused(code, words, *arguments):
        exit_code, out, err = cli_run("compare", *arguments)
        assert (exit_code, out) == (code, ""), err
        assert words in err
        assert len(err.strip().splitlines()) == 1

    run = tmp_path / "run"
    assert cli_run("train", log, "--out", run, "--epochs", "1")[0] == 0
    refused(2, "--models knows no 'toi'; did you mean toy? Known: toy, toy-wide.", log, "--models", "toy,toi")
    refused(2, "--models is empty", log, "--models", ",")
    refused(2, "is a log; compare takes runs, or a single log", log, run)
    refused(2, "is a log; compare takes runs, or a single log", log, log)
    refused(2, "--models is for a log", run, run, "--models", "toy")
    refused(2, "--report DIR writes a page", log, "--plot", tmp_path / "x.png")
    refused(2, "does not exist", log, "--report", tmp_path / "not" / "there")
    refused(2, "must be one of: full, sampled-499, sampled-9999", log, "--protocol", "half")
    refused(3, "none.toml: No such file", log, "--models", tmp_path / "none.toml")
    (tmp_path / "runs" / "toy-0").mkdir(parents=True)
    refused(3, "toy-0 exists and is not a run folder", log, "--runs", tmp_path / "runs")
    assert cli_run("train", toy.write_log(tmp_path / "two", seed=1), "--out", tmp_path / "other" / "toy-0")[0] == 3
    (tmp_path / "other").mkdir()
    assert cli_run("train", tmp_path / "two", "--out", tmp_path / "other" / "toy-0", "--epochs", "1")[0] == 0
    refused(3, "the same number of events, but different ones", log, "--runs", tmp_path / "other")


def test_exit_code_3_if_every_model_failed(cli_run, log, recipe):
    code, out, err = cli_run("compare", log, "--models", recipe("refused", dim=13), *SHORT)
    assert code == 3, err
    assert "brings bad luck" in out


def test_a_killed_or_stopped_benchmark_resumes_to_the_same_leaderboard(cli_run, log, recipe, tmp_path):
    slow = recipe("slow", pause=0.15)
    command = [log, "--models", f"toy,{slow},toy-wide", *SHORT, "--runs", tmp_path / "runs"]
    toy_run, slow_run = (tmp_path / "runs" / f"{name}-0" for name in ("toy", _slug(slow)))
    _stop_during_training(command, slow_run, signal.SIGKILL, -9)
    done = (toy_run / "model.safetensors").stat().st_mtime_ns
    assert not list((slow_run / "checkpoints").iterdir())
    _stop_during_training(command, slow_run, signal.SIGTERM, 143)
    assert list((slow_run / "checkpoints").iterdir())  # the signal made it write a checkpoint
    rows = rows_of(cli_run, *command)
    assert (toy_run / "model.safetensors").stat().st_mtime_ns == done
    whole = rows_of(cli_run, *command[:-1], tmp_path / "whole")
    for name, row in whole.items():
        assert row["error"] is None
        for key in ("mrr", "recall@10", "ci95", "valid_mrr", "parameters", "difference_to_best"):
            assert rows[name][key] == row[key]


def _slug(path):
    return re.sub(r"[^\w.-]+", "_", str(path).removesuffix(".toml"))


def _stop_during_training(command, run, signum, code):
    """Starts the benchmark and sends it a signal when the run has finished an epoch; its subprocess ends too."""
    (run / "metrics.jsonl").unlink(missing_ok=True)
    words = [sys.executable, str(Path(toy.__file__)), "compare", *map(str, command)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    with subprocess.Popen(
        words, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, env=environment
    ) as process:
        while not ((run / "metrics.jsonl").exists() and (run / "metrics.jsonl").read_text()):
            assert process.poll() is None, process.stderr.read()
            time.sleep(0.01)
        process.send_signal(signum)
        stderr = process.communicate(timeout=60)[1]  # ends only when the subprocess, which holds the pipe, has ended
        assert process.returncode == code, stderr
        assert "Traceback" not in stderr
    assert not (run / "state.safetensors").exists()


def test_failures_in_a_subprocess_are_one_sentence():
    with pytest.raises(SubprocessError, match=r"^-oom- its process was killed"):
        run_in_subprocess(signal.raise_signal, signal.SIGKILL)
    with pytest.raises(SubprocessError, match="ended with SIGTERM"):
        run_in_subprocess(signal.raise_signal, signal.SIGTERM)
    with pytest.raises(SubprocessError, match=r"bug in dynedge \(ZeroDivisionError"):
        run_in_subprocess(divmod, 1, 0)


def test_the_registry_can_be_sent_to_a_subprocess():
    assert len(MODELS) > 3
    assert pickle.loads(pickle.dumps(MODELS)).keys() == MODELS.keys()


def test_processes_share_the_runs(log, tmp_path, monkeypatch):
    from dynedge.data.log import read_log
    from dynedge.experiments import compare_models
    from dynedge.experiments.subprocess_training import TrainingResult
    from dynedge.utils.process_group import ProcessGroup

    class OneOfTwo(ProcessGroup):
        gather_json = staticmethod(lambda value: [value])

    trained = []

    def train(title, config, folder, *rest, lists, quiet):
        trained.append((folder.name, quiet))
        return TrainingResult(0.0, "not today")

    monkeypatch.setattr(compare_models, "train_in_subprocess", train)
    for rank in (0, 1):
        result = compare_models.run_benchmark(
            read_log(log), ["toy", "toy-wide"], tmp_path / "runs", seeds=1, group=OneOfTwo(rank, 2)
        )
        assert [row["error"] for row in result["rows"]].count("not today") == 1
    assert trained == [("toy-0", False), ("toy-wide-0", True)]
