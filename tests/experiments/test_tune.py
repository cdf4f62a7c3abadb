"""`dynedge tune`: the search, resuming after a kill, failed trials, errors, search spaces of all models."""

import json
import os
import signal
import subprocess
import sys
import time
import tomllib

import pytest
from training import toy_model as toy

from dynedge.config import flatten
from dynedge.experiments.hyperparameter_sampler import tpe_sampler
from dynedge.experiments.search_space import SearchSpace, search_space
from dynedge.experiments.tune import _outcome
from dynedge.models.registry import BUILT_IN as MODELS  # all of them: some tests replace the registry's
from dynedge.models.registry import find_entry, use_only
from dynedge.runs.run_config import recipe_config

SHORT = ["--model", "toy", "--epochs", "2"]
pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("toy_models")]


@pytest.fixture
def log(tmp_path):
    return toy.write_log(tmp_path / "log")


@pytest.fixture
def tune(cli_run, log, tmp_path):
    """Returns a function that runs `dynedge tune LOG --json` and returns its output."""

    def run(*arguments, out=tmp_path / "search", code=0):
        exit_code, stdout, stderr = cli_run("tune", log, "--out", out, *arguments, "--json")
        assert exit_code == code, stderr
        return json.loads(stdout) if stdout else {}

    return run


def without_seconds(output):
    return [{name: value for name, value in trial.items() if name != "seconds"} for trial in output["trials"]]


def test_training_with_the_best_config_reproduces_its_validation_mrr(tune, cli_run, log, tmp_path, monkeypatch):
    output = tune(*SHORT, "--trials", "4")
    by_number = sorted(output["trials"], key=lambda trial: trial["trial"])
    assert [trial["trial"] for trial in by_number] == [0, 1, 2, 3]
    assert by_number[0]["changed"] == {}  # the recipe's settings
    assert output["best"] == output["trials"][0]
    assert output["best"]["valid_mrr"] == max(trial["valid_mrr"] for trial in by_number) > by_number[0]["valid_mrr"]
    code, out, err = cli_run("train", log, "--config", output["config"], "--out", tmp_path / "run", "--json")
    assert code == 0, err
    assert json.loads(out)["valid_mrr"] == output["best"]["valid_mrr"]
    assert not (tmp_path / "search" / "runs").exists()
    more = tune(*SHORT, "--trials", "5")
    assert [trial for trial in without_seconds(more) if trial["trial"] < 4] == without_seconds(output)
    monkeypatch.setattr(
        "dynedge.experiments.tune.train_in_subprocess", lambda *_: pytest.fail("a finished trial was trained again")
    )
    assert tune(*SHORT, "--trials", "5") == more
    assert tune(*SHORT, "--trials", "9", "--minutes", "0.0001") == more
    code, out, _ = cli_run("tune", log, "--out", tmp_path / "search", *SHORT, "--trials", "5")
    assert code == 0
    for line, trial in zip(out.splitlines()[1:6], more["trials"], strict=True):
        shown = [f"{trial['valid_mrr']:.4f}", f"{trial['valid_recall@10']:.4f}", "2"]
        assert line.split()[:4] == [str(trial["trial"] + 1), *shown]
        changed = ", ".join(f"{key}={value}" for key, value in trial["changed"].items())
        assert line.endswith(changed or "defaults")
    assert f"--config {output['config']}" in out.splitlines()[-1]


def test_a_killed_search_resumes_to_the_same_result(tune, log, tmp_path):
    out = tmp_path / "search"
    words = [sys.executable, toy.__file__, "tune", log, "--out", out, *SHORT, "--trials", "4"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    with subprocess.Popen([*map(str, words)], stderr=subprocess.PIPE, text=True, env=environment) as process:
        while not ((out / "trials.jsonl").exists() and list((out / "runs").glob("*/metrics.jsonl"))):
            assert process.poll() is None, process.stderr.read()
            time.sleep(0.005)
        process.send_signal(signal.SIGKILL)
        assert "Traceback" not in process.communicate(timeout=60)[1]
    before = (out / "trials.jsonl").read_text()
    assert 1 <= before.count("\n") < 4
    output = tune(*SHORT, "--trials", "4")
    assert (out / "trials.jsonl").read_text().startswith(before)
    assert without_seconds(output) == without_seconds(tune(*SHORT, "--trials", "4", out=tmp_path / "whole"))


def test_a_search_goes_on_after_options_and_their_descriptions_have_changed(tune, tmp_path):
    tune(*SHORT, "--trials", "1")
    search = tmp_path / "search" / "search.json"
    stored = json.loads(search.read_text())
    kept = [line.partition("#")[0] for line in stored["config"] if not line.startswith("patience")]
    assert len(kept) == len(stored["config"]) - 1
    search.write_text(json.dumps({**stored, "config": kept}))
    assert len(tune(*SHORT, "--trials", "2")["trials"]) == 2
    tune(*SHORT, "--trials", "3", "--set", "training.patience=2", code=2)  # not the default, which the trials had
    for changed in ([*kept, "removed_since = 3"], [line.replace("epochs = 2", "epochs = 5") for line in kept], None):
        search.write_text(json.dumps({**stored, "config": changed}))
        tune(*SHORT, "--trials", "3", code=2)


def test_failed_trials_are_reported_and_repeated_settings_are_not_trained(tune, tmp_path):
    from dynedge.models import registry

    config = toy.ToyConfig
    registry.use_only({"toy": registry.Entry(toy.Toy, config, search={"model.dim": (13,)})})
    output = tune("--epochs", "1", "--model", "toy", "--trials", "6")
    by_dim = {trial["settings"]["model.dim"]: trial for trial in output["trials"]}
    assert by_dim.keys() == {4, 13}
    assert by_dim[13]["error"] == "--dim 13 brings bad luck."
    assert sum(trial["seconds"] > 0 for trial in output["trials"]) == 2
    assert output["best"]["settings"] == {"model.dim": 4}
    unlucky = registry.Entry(toy.Toy, config, {"toy": config(dim=13)}, search={"model.dim": ()})
    registry.use_only({"toy": unlucky})
    assert tune("--epochs", "1", "--model", "toy", "--trials", "1", out=tmp_path / "none", code=3)["config"] is None
    assert not (tmp_path / "none" / "config.toml").exists()


def test_settings_given_by_set_are_those_of_every_trial(tune, tmp_path):
    output = tune(*SHORT, "--set", "training.precision=float64", "--trials", "2")
    config = tomllib.loads((tmp_path / "search" / "config.toml").read_text())
    assert config["training"]["precision"] == "float64"
    assert all("training.precision" not in trial["changed"] for trial in output["trials"])


def test_the_result_of_a_trial_is_that_of_its_best_epoch(tmp_path):
    records = [{"valid_mrr": mrr, "valid_recall@10": 1 - mrr} for mrr in (0.25, 0.75, 0.5)]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    assert _outcome(tmp_path) == {"valid_mrr": 0.75, "valid_recall@10": 0.25, "epochs": 3, "error": None} | {
        "early_mrr": 0.75
    }


def test_a_trial_that_is_worse_than_half_of_the_others_ends_early(tune, monkeypatch):
    from dynedge.experiments import tune as module
    from dynedge.models import registry

    registry.use_only({"toy": registry.Entry(toy.Toy, toy.ToyConfig, search={"model.dim": range(4, 14)})})
    trained = []

    def train(title, config, run, log, *, quiet):
        """Writes the learning curve of a setting instead of training it."""
        trained.append((config.model.dim, config.training.epochs))
        run.mkdir(exist_ok=True)
        level = {dim: k / 100 for k, dim in enumerate(range(4, 14))}[config.model.dim]
        records = [
            {"valid_mrr": level + epoch / 1000, "valid_recall@10": 0.5} for epoch in range(config.training.epochs)
        ]
        (run / "metrics.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
        return module.TrainingResult(1.0, None)

    order = iter([8, 9, 10, 11, 12, 4, 13])  # the first five are trained in full, then one is hopeless and one is not
    monkeypatch.setattr(module, "train_in_subprocess", train)
    monkeypatch.setattr(module, "tpe_sampler", lambda space: lambda done: {"model.dim": next(order)})
    output = tune("--model", "toy", "--epochs", "5", "--trials", "7")
    epochs = {trial["settings"]["model.dim"]: trial["epochs"] for trial in output["trials"]}
    assert epochs == {8: 5, 9: 5, 10: 5, 11: 5, 12: 5, 4: 2, 13: 5}
    assert trained[-3:] == [(4, 2), (13, 2), (13, 5)]
    assert output["best"]["settings"] == {"model.dim": 13}


def test_better_settings_are_tried_more_often():
    recipe = recipe_config("toy")
    space = SearchSpace(recipe, {"model.dim": (4, 5, 6, 7)})
    next_settings, trials = tpe_sampler(space), []
    for _ in range(40):
        settings = next_settings(trials)
        trials.append({"settings": settings, "valid_mrr": {4: 0.2, 5: 0.1, 6: 0.9, 7: None}[settings["model.dim"]]})
    assert trials[0]["settings"] == space.start
    tried = [trial["settings"]["model.dim"] for trial in trials]
    assert set(tried) == {4, 5, 6, 7}
    assert tried[20:].count(6) > 10


def test_usage_errors(tune, cli_run, log, tmp_path):
    from dynedge.models import registry

    def refused(code, words, *arguments):
        exit_code, out, err = cli_run("tune", log, *arguments)
        assert (exit_code, out) == (code, ""), err
        assert words in err
        assert len(err.strip().splitlines()) == 1

    search, run = tmp_path / "search", tmp_path / "run"
    assert cli_run("train", log, "--out", run, "--epochs", "1")[0] == 0
    tune(*SHORT, "--trials", "1")
    refused(2, "--model knows no 'toi'; did you mean toy?", "--out", search, "--model", "toi")
    refused(2, "another model (toy, not toy-wide)", "--out", search, "--model", "toy-wide")
    refused(2, "another config", "--out", search, "--model", "toy", "--epochs", "3")
    refused(2, "another config", "--out", search, *SHORT, "--set", "training.seed=1")
    refused(2, "has no 'training.sed'", "--out", search, *SHORT, "--set", "training.sed=1")
    refused(3, "is not the folder of a search", "--out", run, "--model", "toy")
    refused(3, "is not a folder", "--out", tmp_path / "not" / "there", "--model", "toy")
    registry.use_only({"toy": registry.Entry(toy.Toy, toy.ToyConfig, heuristic=True)})
    refused(2, "toy has no trainable parameters", "--out", tmp_path / "new", "--model", "toy")


def test_the_search_space_of_every_model_is_valid():
    use_only(MODELS)
    assert len(MODELS) > 3
    for model, entry in MODELS.items():
        for name in entry.names(model):
            recipe = recipe_config(name)
            space = search_space(entry, recipe, num_items=100_000)
            assert entry.heuristic or space.values
            for key, values in space.values.items():
                assert values[0] == flatten(recipe)[key]
                assert all(flatten(space.config({key: value}))[key] == value for value in values)


def test_negatives_are_not_searched_with_a_full_softmax():
    use_only(MODELS)
    entry, recipe = find_entry("recurrence"), recipe_config("recurrence")
    few, many = (search_space(entry, recipe, items).values for items in (4096, 4097))
    assert many.keys() - few.keys() == {"model.negatives"}


def test_trials_that_run_at_the_same_time_have_different_settings():
    from dynedge.experiments.tune import _proposals

    def next_settings(trials):
        return {"seen": [trial["valid_mrr"] for trial in trials]}

    done = [{"settings": {}, "valid_mrr": mrr} for mrr in (0.3, 0.1)]
    assert _proposals(next_settings, done, 3) == [{"seen": [0.3, 0.1, *[0.1] * k]} for k in range(3)]
    assert _proposals(next_settings, [], 2) == [{"seen": []}, {"seen": [0.0]}]
