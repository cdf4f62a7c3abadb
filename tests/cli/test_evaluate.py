"""The commands evaluate and compare, with a toy model that trains in a moment."""

import json
import re
import shutil

import numpy as np
import pytest
import torch
from training import toy_model as toy

from dynedge.data.log import read_log
from dynedge.data.stored_negatives import StoredNegatives, write_negatives
from dynedge.evaluation.bootstrap import confidence_intervals
from dynedge.evaluation.list_metrics import TITLES as LIST_TITLES
from dynedge.evaluation.metrics import METRICS, mean, per_event
from dynedge.evaluation.protocol import PROTOCOLS, rank_events
from dynedge.runs.folder import load_run
from dynedge.utils.tensor_io import load_tensors, save_tensors

FAST = ["--epochs", "2", "--lr", "0.02"]
TITLES = {
    **{"mrr": "MRR", "recall@1": "Recall@1", "recall@5": "Recall@5", "recall@10": "Recall@10"},
    **{"recall@20": "Recall@20", "ndcg@10": "NDCG@10", "mean_rank": "mean rank"},
}
pytestmark = pytest.mark.usefixtures("toy_models")


@pytest.fixture
def log(tmp_path):
    return toy.write_log(tmp_path / "log")


@pytest.fixture
def run(cli_run, tmp_path, log):
    assert cli_run("train", log, "--out", tmp_path / "run", *FAST)[0] == 0
    return tmp_path / "run"


def evaluated(cli_run, *arguments):
    code, out, err = cli_run("evaluate", *arguments, "--json")
    assert code == 0, err
    return json.loads(out)


def ranks_of(run, log, protocol="full"):
    trained = load_run(run)
    return rank_events(trained.model, read_log(log), range(420, 600), trained.state, protocol=protocol)


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_metrics_are_those_of_the_ranks_from_the_end_of_training_on(cli_run, run, log, protocol):
    metrics = evaluated(cli_run, run, "--protocol", protocol)
    ranks = ranks_of(run, log, protocol)
    user = read_log(log).user[420:]
    for part, these, users in (("valid", ranks[:60], user[:60]), ("test", ranks[60:], user[60:])):
        assert (metrics[part]["events"], metrics[part]["users"]) == (len(these), len(np.unique(users)))
        bounds = confidence_intervals(per_event(these), users)
        assert np.allclose(list(metrics[part]["intervals"].values()), bounds)
        for name in METRICS:
            assert metrics[part][name] == pytest.approx(mean(name, these), abs=1e-12)
            low, high = metrics[part]["intervals"][name]
            assert low <= metrics[part][name] <= high
        assert metrics[part]["ci95"] == metrics[part]["intervals"]["mrr"]
        groups = metrics[part]["breakdown"]
        assert sum(groups[name]["events"] for name in ("repeat item", "new item")) == len(these)
        assert sum(groups[name]["events"] for name in ("known user", "new user")) == len(these)
    assert metrics["valid"]["mrr"] == max(
        json.loads(line)["valid_mrr"] for line in (run / "metrics.jsonl").read_text().splitlines()
    )


def test_the_rules_of_tgb_need_a_split_by_time(cli_run, run, log, tmp_path):
    code, _, err = cli_run("evaluate", run, "--protocol", "tgb")
    assert code == 2
    assert "dynedge train" in err and "--split time:0.7,0.15,0.15" in err
    by_time = tmp_path / "by-time"
    assert cli_run("train", log, "--split", "time:0.7,0.15,0.15", "--out", by_time, *FAST)[0] == 0
    metrics, trained, opened = evaluated(cli_run, by_time, "--protocol", "tgb"), load_run(by_time), read_log(log)
    end = int((opened.time <= np.quantile(opened.time, 0.7)).sum())
    ranks = rank_events(trained.model, opened, range(end, len(opened)), trained.state, protocol="tgb")
    assert metrics["valid"]["events"] + metrics["test"]["events"] == len(ranks)
    assert metrics["test"]["mrr"] == pytest.approx(mean("mrr", ranks[metrics["valid"]["events"] :]), abs=1e-12)
    code, out, err = cli_run("compare", by_time, by_time, "--protocol", "tgb")
    assert code == 0, err
    assert "the candidates of the Temporal Graph Benchmark's rules" in out


def test_negatives_of_a_board_need_its_split(cli_run, log, tmp_path):
    shutil.copytree(log, tmp_path / "board")
    board = read_log(tmp_path / "board")
    one_each = StoredNegatives(0, np.arange(len(board) + 1), np.zeros(len(board)))
    write_negatives(board, one_each)
    for split, code in (("0.6,0.2,0.2", 2), ("time:0.6,0.2,0.2", 2), ("", 0)):
        run = tmp_path / f"run{code}{len(split)}"
        assert cli_run("train", board.path, "--split", split, "--out", run, *FAST)[0] == 0
        found, _, err = cli_run("evaluate", run, "--protocol", "tgb")
        assert found == code, err
        assert not code or f"is for the split of the board, and {run} has {split}" in err


def test_online_learning_is_a_protocol_of_its_own(cli_run, run, monkeypatch):
    monkeypatch.setattr("dynedge.runs.online_evaluation.WINDOW", 10)
    frozen, online = evaluated(cli_run, run), evaluated(cli_run, run, "--protocol", "online")
    assert online["protocol"] == "online"
    assert online["rate"] > 0
    assert online["valid"]["mrr"] > frozen["valid"]["mrr"]  # its rate was chosen on these events
    assert evaluated(cli_run, run, "--protocol", "online") == online
    assert evaluated(cli_run, run) == frozen
    assert "learning online" in cli_run("evaluate", run, "--protocol", "online")[1]


def cells(text):
    """The tables in a command's output: rows of cells, which are two spaces or more apart."""
    return [[re.split(r"\s{2,}", line) for line in part.splitlines()] for part in text.split("\n\n")]


def cell(summary, name, sign="-"):
    form = f"{sign},.1f" if name == "mean_rank" else f"{sign}.4f"
    low, high = summary["intervals"][name]
    return f"{summary[name]:{form}} [{low:{form}}, {high:{form}}]"


def test_the_table_has_the_numbers_of_json_in_their_columns(cli_run, run, log):
    found = evaluated(cli_run, run)
    assert {name: found[name] for name in ("run", "model", "log", "protocol", "items")} == {
        "run": str(run),
        "model": "toy",
        "log": str(log),
        "protocol": "full",
        "items": 15,
    }
    code, out, _ = cli_run("evaluate", run)
    assert code == 0
    (heading,), metrics, _, groups = cells(out)
    assert heading == [f"{run}: toy on {log}, items ranked among all 15 items"]
    valid, test = found["valid"], found["test"]
    assert metrics == [
        ["metric", "validation, 95 % interval", "test, 95 % interval"],
        ["events", "60", "120"],
        ["users", str(valid["users"]), str(test["users"])],
        *([title, cell(valid, name), cell(test, name)] for name, title in TITLES.items()),
    ]
    assert groups[0] == ["group of test events", "events", "MRR", "Recall@10"]
    assert [row[0] for row in groups[1:]] == list(test["breakdown"])
    for name, *shown in groups[1:]:
        group = test["breakdown"][name]
        values = [cell(group, metric) for metric in ("mrr", "recall@10")] if group["events"] else ["-", "-"]
        assert shown == [str(group["events"]), *values]


def test_metrics_of_lists_are_there_unless_they_are_declined(cli_run, run, monkeypatch):
    plain, found = evaluated(cli_run, run, "--no-lists"), evaluated(cli_run, run)
    assert "list_events" not in evaluated(cli_run, run, "--protocol", "sampled-499")["test"]
    assert evaluated(cli_run, run, "--protocol", "sampled-499", "--lists")["test"]["list_events"] == 120
    values = {name: found["test"].pop(name) for name in LIST_TITLES}
    assert found["test"].pop("list_events") == 120
    assert found == plain
    assert values["coverage@10"] >= 10 / 15 and 0 <= values["gini@10"] <= 5 / 15
    _, metrics, lists, groups = cells(cli_run("evaluate", run)[1])
    assert lists[:2] == [["lists of 10 items", "test"], ["lists", "120"]]
    shown = ["-" if value is None else f"{value:.4f}" for value in values.values()]
    assert lists[2:] == [list(pair) for pair in zip(LIST_TITLES.values(), shown, strict=True)]
    assert cells(cli_run("evaluate", run, "--no-lists")[1])[1:] == [metrics, groups]
    monkeypatch.setattr("dynedge.runs.list_evaluation._collect", None)  # from here on only the cache answers
    assert evaluated(cli_run, run)["test"]["coverage@10"] == values["coverage@10"]


@pytest.mark.parametrize("damage", [b"", b"PK", None])
def test_damaged_or_outdated_lists_are_made_again(cli_run, run, damage):
    first, path = evaluated(cli_run, run), run / "ranks" / "lists.npz"
    if damage is None:
        key = json.loads(path.with_suffix(".json").read_text())
        path.with_suffix(".json").write_text(json.dumps(key | {"model": "another"}))
    else:
        path.write_bytes(damage)
    assert evaluated(cli_run, run) == first
    assert json.loads(path.with_suffix(".json").read_text())["model"] != "another"
    assert path.stat().st_size > 1000


def test_ranks_are_cached_until_model_or_state_change(cli_run, run, log, monkeypatch):
    from dynedge.runs import evaluate_run as evaluation

    first = evaluated(cli_run, run)
    monkeypatch.setattr(evaluation, "rank_events", lambda *_, **__: pytest.fail("evaluated again"))
    assert evaluated(cli_run, run) == first
    assert np.array_equal(np.load(run / "ranks" / "full.npy"), ranks_of(run, log))
    monkeypatch.undo()
    assert cli_run("train", log, "--out", run, "--epochs", "4", "--lr", "0.5", "--force")[0] == 0
    assert not (run / "ranks").exists()
    second = evaluated(cli_run, run)
    assert second["test"]["mrr"] != first["test"]["mrr"]
    state = load_tensors(run / "state.safetensors")
    save_tensors(run / "state.safetensors", {**state, "seen": state["seen"].flip(0)})
    (run / "manifest.json").unlink()
    assert evaluated(cli_run, run)["test"]["mrr"] != second["test"]["mrr"], "ranks of another state"
    assert np.array_equal(np.load(run / "ranks" / "full.npy"), ranks_of(run, log))


@pytest.mark.parametrize("harm", ["cut", "other", "gone", "old"])
def test_damaged_or_stale_cached_ranks_are_computed_again(cli_run, run, log, harm):
    first = evaluated(cli_run, run)
    kept, card = run / "ranks" / "full.npy", run / "ranks" / "full.json"
    if harm == "cut":
        kept.write_bytes(kept.read_bytes()[:-8])
    elif harm == "other":
        np.save(kept, np.ones(180))
    elif harm == "gone":
        card.unlink()
    else:
        card.write_text(json.dumps(json.loads(card.read_text()) | {"model": "another"}))
        np.save(kept, np.ones(180))
    assert evaluated(cli_run, run) == first
    assert np.array_equal(np.load(kept), ranks_of(run, log))


def test_ranks_of_another_split_are_computed_again(cli_run, run):
    evaluated(cli_run, run)
    config = run / "config.toml"
    config.write_text(config.read_text().replace('"0.7,0.1,0.2"', '"0.6,0.2,0.2"'))
    assert evaluated(cli_run, run)["valid"]["events"] == 120
    assert len(np.load(run / "ranks" / "full.npy")) == 240


def test_a_read_only_run_folder_is_evaluated_without_a_cache(cli_run, run, monkeypatch):
    from dynedge.runs import evaluation_cache as evaluation

    def refuse(*_):
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr(evaluation, "write_atomically", refuse)
    code, out, err = cli_run("evaluate", run, "--json")
    assert code == 0
    assert "full.npy could not be written (Read-only file system)" in err
    assert json.loads(out)["test"]["mrr"] > 0


def test_a_log_that_was_moved_is_passed_as_an_argument(cli_run, run, log, tmp_path):
    first = evaluated(cli_run, run)
    moved = shutil.move(log, tmp_path / "elsewhere")
    code, _, err = cli_run("evaluate", run)
    assert code == 3
    assert "which does not exist; if it was moved" in err
    again = evaluated(cli_run, run, moved)
    assert again["test"] == first["test"]


def test_mistakes_are_one_sentence_with_the_right_exit_code(cli_run, run, log, tmp_path):
    def refused(code, words, *arguments):
        done, out, err = cli_run(*arguments)
        assert (done, out) == (code, ""), err
        assert words in err
        assert len(err.strip().splitlines()) == 1

    more = toy.write_log(tmp_path / "more", items=16)
    wide = toy.write_log(tmp_path / "wide", features=2)
    refused(3, "was not in the log that the run was trained on, and its model cannot add any", "evaluate", run, more)
    refused(3, "its events have 2 features", "evaluate", run, wide)
    renamed = shutil.copytree(log, tmp_path / "renamed") / "user_ids.npy"
    renamed.write_bytes(renamed.read_bytes().replace(b"user 7", b"user q"))
    refused(3, "the user 'user q' was not in the log", "evaluate", run, renamed.parent)
    refused(3, "not a run folder", "evaluate", log)
    refused(3, "does not exist", "evaluate", run, tmp_path / "absent")
    refused(2, "must be one of: full, sampled-499, sampled-9999", "evaluate", run, "--protocol", "half")
    refused(2, "two run folders or more", "compare", run)
    refused(2, "is a log; compare takes runs", "compare", run, log)
    refused(2, "must end in one of", "compare", run, run, "--plot", tmp_path / "x.doc")
    (run / "state.safetensors").unlink()
    refused(3, "has not finished training", "evaluate", run)


def test_different_events_with_the_same_ids_are_evaluated_with_a_warning(cli_run, run, tmp_path):
    other = toy.write_log(tmp_path / "other", seed=1)
    code, out, err = cli_run("evaluate", run, other, "--json")
    assert code == 0
    assert "but different events" in err
    assert json.loads(out)["test"]["events"] == 120


def test_float64_runs_are_evaluated_in_float64(cli_run, log, tmp_path):
    run = tmp_path / "run"
    assert cli_run("train", log, "--out", run, "--precision", "float64", *FAST)[0] == 0
    best = max(json.loads(line)["valid_mrr"] for line in (run / "metrics.jsonl").read_text().splitlines())
    assert evaluated(cli_run, run)["valid"]["mrr"] == best
    restored, saved = load_run(run).model.state_dict(), load_tensors(run / "model.safetensors")
    assert saved["item"].dtype == torch.float64
    assert all(
        tensor.dtype == saved[name].dtype and torch.equal(tensor, saved[name]) for name, tensor in restored.items()
    )


def test_compare_ranks_runs_and_gives_paired_differences_to_the_best(cli_run, run, log, tmp_path):
    other = tmp_path / "other"
    assert cli_run("train", log, "--out", other, "--epochs", "1", "--lr", "0", "--model", "toy-wide")[0] == 0
    code, out, err = cli_run("compare", other, run, other, "--json")
    assert code == 0, err
    found = json.loads(out)
    ranks = {str(one): ranks_of(one, log)[60:] for one in (run, other)}
    order = sorted(ranks, key=lambda one: -mean("mrr", ranks[one]))
    assert [one["run"] for one in found["runs"]] in ([order[0], order[1], order[1]], [order[0], order[0], order[1]])
    assert found["best"] == order[0]
    assert "difference_to_best" not in found["runs"][0]
    less = found["runs"][-1]["difference_to_best"]
    assert less["recall@10"] == pytest.approx(
        mean("recall@10", ranks[order[1]]) - mean("recall@10", ranks[order[0]]), abs=1e-12
    )
    assert less["ci95"][0] <= less["mrr"] <= less["ci95"][1]
    assert evaluated(cli_run, run)["test"] == next(one["test"] for one in found["runs"] if one["run"] == str(run))
    assert {name: found[name] for name in ("log", "protocol", "items")} == {
        "log": str(log),
        "protocol": "full",
        "items": 15,
    }
    assert (found["best"], found["second"]) == (found["runs"][0]["run"], found["runs"][1]["run"])
    for one in found["runs"]:
        assert one["valid"] == evaluated(cli_run, one["run"])["valid"]


def test_the_tables_of_compare_have_the_numbers_of_json_and_mark_the_best(cli_run, run, log, tmp_path):
    other = tmp_path / "other"
    assert cli_run("train", log, "--out", other, "--epochs", "1", "--lr", "0", "--model", "toy-wide")[0] == 0
    found = json.loads(cli_run("compare", other, run, "--json")[1])
    code, out, err = cli_run("compare", other, run, "--plot", tmp_path / "plot.png")
    assert code == 0, err
    assert (tmp_path / "plot.png").read_bytes()[1:4] == b"PNG"
    (heading,), means, intervals, lists, _ = cells(out)
    test = found["runs"][0]["test"]
    assert heading == [f"{log}, 120 test events of {test['users']} users, items ranked among all 15 items"]
    assert means[0] == ["run", "model", *TITLES.values()]
    for one, rival, row in zip(found["runs"], found["runs"][::-1], means[1:], strict=True):
        assert row[:2] == [one["run"], one["model"]]
        for name, text in zip(TITLES, row[2:], strict=True):
            mine, theirs = (f"{two['test'][name]:{',.1f' if name == 'mean_rank' else '.4f'}}" for two in (one, rival))
            better = float(mine) < float(theirs) if name == "mean_rank" else float(mine) > float(theirs)
            assert text == mine + ("*" if better or mine == theirs else "°"), name
    assert lists[0] == ["run, lists of 10 items", *LIST_TITLES.values()]
    for one, row in zip(found["runs"], lists[1:], strict=True):
        values = [one["test"][name] for name in LIST_TITLES]
        assert row == [one["run"], *("-" if value is None else f"{value:.4f}" for value in values)]
    assert any("°" in text for text in means[2]) and "°" in (means[1][-1] + means[2][-1])
    best, last = found["runs"]
    assert intervals == [
        ["run, 95 % intervals", "MRR", "difference to best", "Recall@10", "difference to best"],
        [best["run"], cell(best["test"], "mrr"), cell(best["test"], "recall@10")],
        [
            last["run"],
            *(
                text
                for name in ("mrr", "recall@10")
                for text in (cell(last["test"], name), cell(last["difference_to_best"], name, "+"))
            ),
        ],
    ]


def test_runs_with_different_test_events_are_not_compared(cli_run, run, log, tmp_path):
    other = toy.write_log(tmp_path / "log2", seed=1)
    assert cli_run("train", other, "--out", tmp_path / "run2", *FAST)[0] == 0
    code, _, err = cli_run("compare", run, tmp_path / "run2")
    assert (code, "only runs on the same log are compared" in err) == (2, True)
    assert cli_run("train", log, "--out", tmp_path / "run3", "--split", "0.6,0.2,0.2", *FAST)[0] == 0
    code, _, err = cli_run("compare", run, tmp_path / "run3")
    assert (code, "only runs with the same test events" in err) == (2, True)
