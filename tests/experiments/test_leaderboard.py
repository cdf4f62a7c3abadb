"""The leaderboard from given ranks: which recipe of an entry is shown, order, differences, totals."""

import json
from types import SimpleNamespace

import numpy as np
import pytest

from dynedge.experiments.leaderboard import leaderboard

USER = np.array([0, 0, 1, 2])


@pytest.fixture
def run(tmp_path):
    """run("a", valid=2, test=3) is a finished run of recipe a in which every event has this rank."""

    def make(recipe, seed=0, *, valid, test, seconds=(1.0, 4.0, 2.0), peak=10.0):
        folder = tmp_path / f"{recipe}-{seed}"
        folder.mkdir()
        records = [
            {"seconds": s, "valid_seconds": 0.5, "peak_mib": peak + k, "valid_mrr": 0.1 * k}
            for k, s in enumerate(seconds)
        ]
        (folder / "metrics.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
        (folder / "run_info.json").write_text(json.dumps({"parameters": 7}))
        ranks = {"valid": np.full(3, float(valid)), "test": np.full(4, float(test))}
        config = SimpleNamespace(name=recipe, training=SimpleNamespace(device="cpu"))
        return SimpleNamespace(run=folder, config=config, part=lambda name: (ranks[name], USER))

    return make


def test_the_recipe_of_an_entry_is_chosen_by_validation_not_by_test(run):
    runs = {("a", 0): run("a", valid=2, test=10), ("b", 0): run("b", valid=4, test=1)}
    board = leaderboard({"group": runs}, {"group": None})
    (row,) = board["rows"]
    assert (row["model"], row["recipe"], row["mrr"], row["valid_mrr"]) == ("group (a)", "a", 0.1, 0.5)
    assert (board["events"], board["users"], board["best"]) == (4, 3, "group (a)")


def test_rows_are_ordered_by_test_mrr_with_failures_last_and_differences_to_the_first(run):
    ranks = {
        "failed": {},
        "x": {("x", 0): run("x", valid=1, test=4)},
        "y": {("y", seed): run("y", seed, valid=8, test=2 - seed) for seed in range(2)},
    }
    board = leaderboard(ranks, {"failed": "no memory", "x": None, "y": None})
    assert [row["model"] for row in board["rows"]] == ["y", "x", "failed"]
    y, x, failed = board["rows"]
    assert (board["best"], y["mrr"], y["difference_to_best"]) == ("y", 0.75, None)
    assert (x["mrr"], x["difference_to_best"]["mrr"], x["recall@10"]) == (0.25, -0.5, 1.0)
    assert (failed["mrr"], failed["seeds"], failed["error"]) == (None, [], "no memory")
    assert [(seed["seed"], seed["mrr"], seed["valid"]) for seed in y["seeds"]] == [
        (0, 0.5, [0.0, 0.1, 0.2]),
        (1, 1.0, [0.0, 0.1, 0.2]),
    ]


def test_time_memory_and_parameters_of_a_row(run):
    seeds = {
        ("x", 0): run("x", 0, valid=1, test=4),
        ("x", 1): run("x", 1, valid=1, test=4, seconds=(8.0, 3.0), peak=90.0),
    }
    (row,) = leaderboard({"x": seeds}, {"x": None})["rows"]
    assert row["seconds_per_epoch"] == (2.0 + 5.5) / 2, "the median of each seed's epochs, then the mean"
    assert (row["peak_mib"], row["parameters"], row["device"]) == (91.0, 7, "cpu")
    assert [seed["seconds"] for seed in row["seeds"]] == [8.5, 12.0], "training and validation"
