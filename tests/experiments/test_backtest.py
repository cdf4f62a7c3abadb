"""`dynedge backtest`: each policy against plain counting, no leak from the future, resumption, messages."""

import json
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from training import toy_model as toy

from dynedge.data.id_index import IdIndex
from dynedge.data.log import read_log
from dynedge.data.log_writer import LogWriter
from dynedge.errors import UsageError
from dynedge.experiments import backtest as module
from dynedge.experiments.backtest import backtest, backtest_config, cut_every, cut_log
from dynedge.experiments.subprocess_training import TrainingResult
from dynedge.models import registry
from dynedge.runs.evaluate_run import evaluate_run
from dynedge.runs.folder import RunFolder
from dynedge.runs.train_run import train_run

ALL = ["frozen", "state", "online", "update", "retrain"]
SHORT = "--policies", ",".join(ALL), "--epochs", "2", "--cuts", "3", "--set", "model.windows=4"


@pytest.fixture(autouse=True, scope="module")
def _train_in_this_process():
    """Starting a subprocess for each run takes long; test_compare_models.py tests that."""

    def train(title, config, folder, log):
        with RunFolder(folder, resume=True) as run:
            train_run(run, config, read_log(log), quiet=True)
        return TrainingResult(0.0, None)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "train_in_subprocess", train)
        yield


def write_log(out, user, item):
    """A log with an event per hour."""
    with LogWriter(out) as writer:
        for name, dtype, values in (("user", np.int32, user), ("item", np.int32, item)):
            writer.column(name, dtype).append(values)
        writer.column("time", np.float64).append(np.arange(len(user)) * 3600.0)
        writer.ids("user_ids", IdIndex.from_ids(range(int(user.max()) + 1)))
        writer.ids("item_ids", IdIndex.from_ids(range(int(item.max()) + 1)))
        writer.finish(events=len(user), users=int(user.max()) + 1, items=int(item.max()) + 1, item_features=[])
    return read_log(out)


def test_cuts_cover_the_rest_of_the_log():
    cuts = cut_log(1003, 4, 0.5)
    assert [event for cut in cuts for event in cut.events] == list(range(501, 1003))
    for cut in cuts:
        assert cut.train_end == cut.events.start - cut.events.start // 10
        assert cut.split(1003) == f"{cut.train_end}/1003,{cut.events.start // 10}/1003,{1003 - cut.events.start}/1003"


def test_cuts_after_every_period():
    time = np.array([0, 1, 2, 3, 4, 5, 6, 7, 30, 31, 50, 90], float) * 3600
    assert [cut.events for cut in cut_every(time, "5", 0.5)] == [range(6, 11), range(11, 12)]
    # Days begin at hours 6, 30, 54 and 78; nothing happens on the third.
    assert [cut.events for cut in cut_every(time, "1d", 0.5)] == [range(6, 8), range(8, 11), range(11, 12)]
    assert [cut.events for cut in cut_every(time, "2w", 0.5)] == [range(6, 12)]
    for every in ("", "0", "2.5", "1y", "-1d", "d"):
        with pytest.raises(UsageError, match="a number of events"):
            cut_every(time, every, 0.5)
    with pytest.raises(UsageError, match="would cut the log 5,041 times"):
        cut_every(time, "1m", 0.5)


def test_policies_of_popularity_equal_counting(tmp_path):
    """The heuristic has no parameters: frozen counts up to the first cut, the others up to each event."""
    rng = np.random.default_rng(3)
    item = rng.integers(0, 4, 300) + np.arange(300) // 60
    log = write_log(tmp_path / "log", rng.integers(0, 9, 300), item)
    results = backtest(
        log, backtest_config("popular", None, []), ["frozen", "state", "retrain"], tmp_path / "b", cuts=3
    )
    bounds = [150, 200, 250, 300]

    def mrr(events, counted_to):
        reciprocal = []
        for k in events:
            counts = np.bincount(item[: counted_to(k)], minlength=item.max() + 1)
            rank = 1 + (counts > counts[item[k]]).sum() + ((counts == counts[item[k]]).sum() - 1) / 2
            reciprocal.append(1 / rank)
        return np.mean(reciprocal)

    rows = {(row["policy"], row["cut"]): row for row in results["rows"]}
    for cut, (start, stop) in enumerate(pairwise(bounds), 1):
        events = range(start, stop)
        assert rows["frozen", cut]["mrr"] == pytest.approx(mrr(events, lambda k: 150))
        for policy in ("state", "retrain"):
            assert rows[policy, cut]["mrr"] == pytest.approx(mrr(events, lambda k: k))
    assert results["best"] == "state"
    assert [cut["age"] / 3600 for cut in results["cuts"]] == [25, 75, 125]
    for total in results["policies"]:
        means = [row["mrr"] for row in results["rows"] if row["policy"] == total["policy"]]
        assert total["mrr"] == pytest.approx(np.mean(means))
    assert all(gain["mrr"] == 0 for gain in results["gain_of_retraining"])


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    place = tmp_path_factory.mktemp("backtest")
    toy.register()
    user, item = toy.events(count=600)
    log = write_log(place / "log", user, item)
    return place, backtest(log, config(), ALL, place / "runs", cuts=3)


def config():
    return backtest_config("toy", 2, ["model.windows=4"])


def test_the_policies(toy_models, finished):
    folder, results = finished
    rows = {(row["policy"], row["cut"]): row for row in results["rows"]}
    assert rows["state", 1]["mrr"] == rows["retrain", 1]["mrr"]
    assert rows["retrain", 2]["mrr"] != rows["state", 2]["mrr"]
    assert rows["frozen", 1]["mrr"] == pytest.approx(rows["state", 1]["mrr"], abs=0.2)
    assert rows["state", 2]["seconds"] == 0 < rows["retrain", 2]["seconds"]
    online = evaluate_run(folder / "runs" / "cut-1", protocol="online").part("test")[0]
    assert (1 / online).mean() == pytest.approx({row["policy"]: row for row in results["policies"]}["online"]["mrr"])
    assert rows["online", 2]["seconds"] > 0 and rows["update", 2]["seconds"] > 0
    assert rows["update", 1]["mrr"] == rows["state", 1]["mrr"]
    assert rows["update", 3]["mrr"] not in (rows["state", 3]["mrr"], rows["retrain", 3]["mrr"])
    ranks = np.fromfile(folder / "runs" / "ranks" / "state-cut-1-full.npy")
    evaluated = evaluate_run(folder / "runs" / "cut-1").part("test")[0]
    assert len(ranks) == len(evaluated) == 300
    assert (1 / ranks).mean() == pytest.approx((1 / evaluated).mean(), abs=0.05), "chunks differ in a toy model"


def test_the_future_does_not_change_earlier_cuts(toy_models, finished, tmp_path):
    _, results = finished
    user, item = toy.events(count=600)
    item[500:] = item[500:][::-1]
    changed = write_log(tmp_path / "log", user, item)
    again = backtest(changed, config(), ALL, tmp_path / "runs", cuts=3)
    for before, after in zip(results["rows"], again["rows"], strict=True):
        assert (before["mrr"] == after["mrr"]) == (before["cut"] < 3)


def test_a_finished_backtest_computes_nothing(toy_models, finished, monkeypatch):
    folder, results = finished
    log = read_log(folder / "log")
    monkeypatch.setattr(module, "train_in_subprocess", None)
    monkeypatch.setattr(module, "load_run", None)
    assert backtest(log, config(), ALL, folder / "runs", cuts=3) == results
    monkeypatch.undo()
    (folder / "runs" / "ranks" / "state-cut-2-full.npy").write_bytes(b"damaged")
    assert backtest(log, config(), ALL, folder / "runs", cuts=3) == results


def test_the_command(toy_models, finished, cli_run, tmp_path):
    folder, results = finished
    command = "backtest", folder / "log", "--model", "toy", "--runs", folder / "runs", *SHORT
    code, out, err = cli_run(*command, "--plot", tmp_path / "plot.png")
    assert (code, err) == (0, f"wrote {tmp_path / 'plot.png'}\n")
    assert "MRR retrain" in out and "etraining" in out.splitlines()[-1]
    assert (tmp_path / "plot.png").stat().st_size > 10_000
    assert json.loads(cli_run(*command, "--json")[1]) == results
    code, _, err = cli_run(*command[:-1], "model.windows=5")
    assert code == 2 and "was trained with model.windows = 4, not 5" in err


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["--policies", "state,never"], 2, "--policies 'never' is not one of frozen, state"),
        (["--policies", ","], 2, "--policies '' is not one of"),
        (["--cuts", "400"], 2, "some cut has no events, of 600 in the log"),
        (["--start", "1.5"], 2, "--start 1.5 should be a share"),
        (["--every", "1y"], 2, "--every '1y' should be a number of events"),
        (["--every", "1d", "--cuts", "3"], 2, "pass one of them"),
        (["--set", "training.split=0.8,0.1,0.1"], 2, "the cuts decide"),
        (["--model", "absent.toml"], 3, "absent.toml"),
        (["--protocol", "online"], 2, "--protocol 'online' must be one of: full, "),
        (["--policies", "online", "--protocol", "sampled-499"], 2, "leave out --protocol sampled-499"),
    ],
)
def test_mistakes(toy_models, cli_run, tmp_path, arguments, code, message):
    log = toy.write_log(tmp_path / "log")
    model = [] if "--model" in arguments else ["--model", "toy"]
    result = cli_run("backtest", log, *model, *arguments)
    assert result[0] == code and message in result[2]
    assert not Path(f"{log}-backtest").exists()
    assert registry.default_model() == "toy"
