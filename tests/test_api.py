"""The Python API: the example of the README, and the class Edge."""

import json
import re
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pandas
import polars
import pytest

import dynedge
from dynedge.data.log import EventLog
from dynedge.runs.evaluate_run import evaluate_run

README = Path(__file__).parents[1] / "README.md"
SMALL = {"epochs": 1, "windows": 8, "dim": 8}


@pytest.fixture(scope="module")
def log(tmp_path_factory):
    return dynedge.synthesize("demo", tmp_path_factory.mktemp("api") / "log", events=3000, quiet=True)


@pytest.fixture(scope="module")
def saved(log, tmp_path_factory):
    out = tmp_path_factory.mktemp("api") / "run"
    dynedge.Edge(**SMALL).fit(log).save(out)
    return out


@pytest.fixture
def model(saved):
    return dynedge.Edge.load(saved)


def same(one, other):
    return all(
        np.array_equal(getattr(one, name), getattr(other, name)) for name in ("user_id", "item_id", "score", "rank")
    )


@pytest.mark.slow
def test_the_example_of_the_readme_runs(tmp_path):
    (example,) = re.findall(r"```python\n(.*?)```", README.read_text(), re.S)
    assert len(example.splitlines()) == 12
    done = subprocess.run([sys.executable, "-c", example], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "('a stranger',)" in done.stdout
    assert (tmp_path / "songs-run" / "model.safetensors").is_file()


def test_fit_and_save_cover_the_whole_log(log, model):
    whole = model.recommend(log.user_ids.take(range(5)), k=4)
    assert model._session.coverage.events == len(log)
    assert model._session.coverage.last_time == log.time[-1]
    assert len(whole) == 20
    assert whole.rank.tolist() == [1, 2, 3, 4] * 5
    assert np.all(np.diff(whole.score.reshape(5, 4)) <= 0)


@pytest.mark.slow
def test_the_commands_read_what_save_wrote(cli_process, log, saved, model):
    user = log.user_ids[2]
    done = cli_process("recommend", saved, "--users", user, "--k", 3, "--json")
    printed = json.loads(done.stdout)
    assert [(item["item_id"], item["score"]) for item in printed["users"][0]["items"]] == model.recommend(
        user, k=3
    ).of(user)
    assert printed["time"] == log.time[-1]


def test_a_saved_model_can_be_evaluated(log, saved, tmp_path):
    """The state at the end of training is stored too, besides the one after the test events."""
    done = evaluate_run(saved, quiet=True)
    best = max(json.loads(line)["valid_mrr"] for line in (saved / "metrics.jsonl").read_text().splitlines())
    assert done.summary("valid")["mrr"] == pytest.approx(best, abs=1e-12)


def test_updates_change_the_states_like_the_same_events_in_a_log(log, saved, tmp_path):
    """The last events one by one, and at once in several forms: recommendations equal those after the whole log."""
    at = 2900
    early = EventLog.from_arrays(
        log.user[:at], log.item[:at], log.time[:at], num_users=log.num_users, num_items=log.num_items
    )
    whole = EventLog.from_arrays(log.user, log.item, log.time, num_users=log.num_users, num_items=log.num_items)
    model = dynedge.Edge(split="0.8,0.1,0.1", **SMALL).fit(early)
    model.save(tmp_path / "early")
    columns = {
        "user_id": np.array(log.user[at:]),
        "item_id": np.array(log.item[at:]),
        "timestamp": np.array(log.time[at:]),
    }
    frames = (
        columns,
        pandas.DataFrame(columns),
        polars.DataFrame(columns),
        tuple(columns.values()),
        tuple(column.tolist() for column in columns.values()),
    )
    once = dynedge.Edge.load(tmp_path / "early")
    once._session.advance_to(whole)
    expected = once.recommend(range(20), k=5)
    assert not same(expected, model.recommend(range(20), k=5, time=float(log.time[-1])))
    for frame in frames:
        assert same(dynedge.Edge.load(tmp_path / "early").update(frame).recommend(range(20), k=5), expected)
    for k in range(at, len(log)):
        model.update(([int(log.user[k])], [int(log.item[k])], [float(log.time[k])]))
    one_by_one = model.recommend(range(20), k=5)
    assert np.allclose(one_by_one.score, expected.score, atol=1e-4)
    assert (one_by_one.item_id == expected.item_id).mean() > 0.95


def test_an_updated_model_is_saved_with_its_updates(log, model, tmp_path):
    user, item = log.user_ids[0], log.item_ids[1]
    before = model.recommend(user)
    model.update(([user], [item], [datetime(2024, 6, 1, tzinfo=UTC)]))
    now = model.recommend(user)
    assert not same(before, now)
    model.save(tmp_path / "run")
    assert same(dynedge.Edge.load(tmp_path / "run").recommend(user), now)
    with pytest.raises(dynedge.DataError, match="already exists"):
        model.save(tmp_path / "run")
    model.update(([user], [item], ["2024-06-02"])).save(tmp_path / "run", force=True)
    assert not same(dynedge.Edge.load(tmp_path / "run").recommend(user), now)


def test_filter_seen_hides_items_of_updates(log, model):
    user = log.user_ids[0]
    item = model.recommend(user, k=1, filter_seen=True).item_id[0]
    model.update(([user], [item], ["2024-06-01"]))
    assert item not in model.recommend(user, k=len(log.item_ids.values), filter_seen=True).item_id


def test_recommendations_as_data_frames(log, model):
    found = model.recommend([log.user_ids[1], "a stranger"], k=2)
    assert found.unknown == ("a stranger",)
    assert found.users == (log.user_ids[1], "a stranger")
    for frame in (found.to_pandas(), found.to_polars()):
        assert list(frame.columns) == ["user_id", "item_id", "score", "rank"]
        assert list(frame["user_id"]) == [log.user_ids[1]] * 2 + ["a stranger"] * 2
        assert list(frame["item_id"]) == found.item_id.tolist()


def test_a_missing_library_is_named(model, log, monkeypatch):
    monkeypatch.setitem(sys.modules, "polars", None)
    with pytest.raises(dynedge.UsageError, match="pip install polars"):
        model.recommend(log.user_ids[0]).to_polars()


def test_integer_ids_are_found_by_their_text_too(saved, log, tmp_path):
    numbers = EventLog.from_arrays(log.user, log.item, log.time)
    found = dynedge.Edge(**SMALL).fit(numbers).recommend(["3", 3, 5], k=2)
    assert found.user_id.tolist() == [3, 3, 5, 5]
    assert found.item_id.dtype == np.int64


@pytest.mark.parametrize(
    ("events", "words"),
    [
        ((["who"], ["what"], [2e9]), "the user 'who' was not in the log"),
        (([None, None], ["what", "else"], [2e9, 2e9]), "was not in the log"),
        (([], [], [1.0]), "different lengths: 0, 0, 1"),
        (([], []), "three sequences"),
        ({"user_id": [], "item_id": []}, "no column 'timestamp'; their columns are: user_id, item_id"),
        ("{known} 1.0", "is older than the newest event"),
        ("{known} soon", "the time 'soon' should be a number in s"),
    ],
)
def test_invalid_events_change_nothing(log, model, events, words):
    if isinstance(events, str):
        time = events.split()[1]
        events = ([log.user_ids[0]], [log.item_ids[0]], [float(time) if time[0].isdigit() else time])
    before = model.recommend(log.user_ids[0])
    with pytest.raises(dynedge.DynedgeError, match=re.escape(words)):
        model.update(events)
    assert same(model.recommend(log.user_ids[0]), before)


def test_invalid_requests_and_settings(log, model):
    with pytest.raises(dynedge.UsageError, match="call fit with a log, or load a run"):
        dynedge.Edge().recommend("anyone")
    with pytest.raises(dynedge.UsageError, match="k 0 should be at least 1"):
        model.recommend(log.user_ids[0], k=0)
    with pytest.raises(dynedge.UsageError, match="before the newest event"):
        model.recommend(log.user_ids[0], time="2024-01-01")
    with pytest.raises(dynedge.UsageError, match="has no setting 'dimm'"):
        dynedge.Edge(dimm=3)
    with pytest.raises(dynedge.UsageError, match="dim should be at least 1"):
        dynedge.Edge(dim=0)
    with pytest.raises(dynedge.DataError, match=r"nowhere/config.toml: No such file"):
        dynedge.Edge("nowhere/config.toml")


def test_settings_override_a_config_file(saved):
    model = dynedge.Edge(saved / "config.toml", epochs=7)
    assert model.config.model == dynedge.Edge.load(saved).config.model
    assert model.config.training.epochs == 7


def test_numeric_times_are_in_the_unit_of_the_file(tmp_path):
    rows = "".join(f"u{k % 7},i{k * k % 11},{1_700_000_000_000 + 1000 * k}\n" for k in range(300))
    (tmp_path / "events.csv").write_text("user_id,item_id,timestamp\n" + rows)
    log = dynedge.prepare([tmp_path / "events.csv"], tmp_path / "log")
    model = dynedge.Edge(**SMALL).fit(log)
    model.update((["u1"], ["i1"], [1_700_000_400_000]))
    assert model._session.coverage.last_time == 1_700_000_400
    assert len(model.recommend("u1", k=3, time=1_700_000_401_000)) == 3
    with pytest.raises(dynedge.UsageError, match="before the newest event"):
        model.recommend("u1", k=3, time=1_700_000_000_000)


@pytest.mark.parametrize("frame", [pandas.DataFrame, polars.DataFrame])
def test_dates_in_data_frames(log, model, frame):
    dates = [datetime(2024, 6, 1, 12, 0, 1), datetime(2024, 6, 1, 12, 0, 2)]
    model.update(frame({"user_id": [log.user_ids[0]] * 2, "item_id": [log.item_ids[0]] * 2, "timestamp": dates}))
    assert model._session.coverage.last_time == dates[1].replace(tzinfo=UTC).timestamp()


@pytest.mark.slow
def test_event_features_are_columns_of_a_data_frame(tmp_path):
    rows = "".join(f"u{k % 7},i{k * k % 11},{1e9 + k},{k % 3},{k % 5}\n" for k in range(300))
    (tmp_path / "events.csv").write_text("user_id,item_id,timestamp,a,b\n" + rows)
    schema = ["prepare", str(tmp_path / "events.csv"), "--features", "a,b", "--out", str(tmp_path / "log")]
    subprocess.run([sys.executable, "-m", "dynedge", *schema], check=True, capture_output=True)
    dynedge.Edge(**SMALL).fit(tmp_path / "log").save(tmp_path / "run")
    event = {"user_id": ["u1"], "item_id": ["i1"], "timestamp": [2e9]}
    found = []
    for a in (0.0, 2.0):
        model = dynedge.Edge.load(tmp_path / "run").update({**event, "a": [a], "b": [1.0]})
        found.append(model._session.vectors()[0])
    moved = (found[0] != found[1]).any(1)
    assert moved.tolist() == [k == 1 for k in range(7)], "what the event was like matters to its user's state"
    for less in (event, {**event, "b": [1.0]}, tuple(event.values())):
        with pytest.raises(dynedge.DataError, match=r"2 features per event \(a, b"):
            dynedge.Edge.load(tmp_path / "run").update(less)
