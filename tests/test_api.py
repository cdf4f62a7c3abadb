"""The Python API: the example of the README, the classes Model and Edge, data frames, other libraries' graphs."""

import doctest
import json
import re
import subprocess
import sys
from dataclasses import replace
from datetime import UTC, date, datetime
from importlib import import_module
from pathlib import Path

import numpy as np
import pandas
import polars
import pyarrow
import pyarrow.parquet
import pytest

import dynedge
from dynedge.data.graph_formats import from_temporal_data, from_tgb, to_temporal_data, to_tgb
from dynedge.data.id_index import IdIndex
from dynedge.data.ingest.schema import Schema
from dynedge.data.log import EventLog
from dynedge.inference.event_input import Event
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
def test_the_example_of_the_readme_runs_twice(tmp_path):
    (example,) = re.findall(r"```python\n(.*?)```", README.read_text(), re.S)
    for _ in range(2):
        done = subprocess.run(
            [sys.executable, "-c", example], cwd=tmp_path, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        assert "('a stranger',)" in done.stdout
        assert "Comparison on 300 test events" in done.stdout
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
        assert list(frame.columns) == ["user_id", "item_id", "score", "rank", "genre"]
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
        ((["who", None], ["what", "else"], [2e9, 2e9]), "the user None of event 1 is not an id"),
        ((["who"], [1.5], [2e9]), "the item 1.5 of event 0 is not an id"),
        ((["a\0b"], ["what"], [2e9]), "is not an id: ids are texts or integers"),
        (([], [], [1.0]), "different lengths: 0, 0, 1"),
        (([], []), "three sequences"),
        ({"user_id": [], "item_id": []}, "no column 'timestamp'; their columns are: user_id, item_id"),
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


def test_updates_add_users_and_items(log, model, tmp_path):
    """As the service does: the states are those of a session that observed the events."""
    user, item = log.user_ids[0], log.item_ids[1]
    events = [Event("new", str(item), 2e9), Event(str(user), "newer", 2e9 + 1), Event("new", "newer", 2e9 + 2)]
    model.update(
        ([event.user for event in events], [event.item for event in events], [event.time for event in events])
    )
    observed = dynedge.Edge.load(model._session.folder)
    observed._session.observe(events)
    assert same(model.recommend(["new", user], k=5), observed.recommend(["new", user], k=5))
    found = model.recommend("new", k=len(log.item_ids) + 1)
    assert not found.unknown
    assert "newer" in found.item_id
    model.save(tmp_path / "run")
    loaded = dynedge.Edge.load(tmp_path / "run")
    assert same(loaded.recommend(["new", user], k=5), model.recommend(["new", user], k=5))
    for one in (model, loaded):  # both go on alike, and a late event is late in both
        one.update((["new", "third"], ["newer", "newest"], [2e9 + 3, 2e9 + 4]))
        one._session.observe([Event("third", "newest", 2e9 + 3)])
    assert same(loaded.recommend(["new", "third"], k=5), model.recommend(["new", "third"], k=5))
    loaded.save(tmp_path / "again")
    assert same(dynedge.Edge.load(tmp_path / "again").recommend("third"), loaded.recommend("third"))
    (tmp_path / "again" / "manifest.json").unlink()
    (tmp_path / "again" / "added_ids.json").write_text('{"users": [["new"]], "items": []}')
    with pytest.raises(dynedge.DataError, match=r"added_ids\.json is damaged"):
        dynedge.Edge.load(tmp_path / "again")
    (tmp_path / "again" / "added_ids.json").unlink()
    with pytest.raises(dynedge.DataError, match=r"current_state\.safetensors is damaged"):
        dynedge.Edge.load(tmp_path / "again")


def test_updates_skip_known_events(log, model):
    users, items = log.user_ids.take([0, 1, 2]), log.item_ids.take([3, 4, 5])
    events = users, items, [2e9, 2e9 + 1, 2e9 + 1]
    model.update(events)
    before, coverage = model.recommend(users), model._session.coverage.events
    assert coverage == len(log) + 3
    model.update(events).update(log).update((users[:1], items[:1], [1.0]))
    assert model._session.coverage.events == coverage
    assert same(model.recommend(users), before)
    model.update(([*users, users[0]], [*items, items[2]], [*events[2], 2e9 + 1]))
    assert model._session.coverage.events == coverage + 1


def test_a_log_with_new_ids_updates_a_model(log, model):
    two = EventLog.from_arrays([0, 1], [0, 1], [2e9, 2e9 + 5])
    ids = IdIndex.from_ids(["a", "b"]), IdIndex.from_ids(["x", log.item_ids[0]])
    longer = replace(two, user_ids=ids[0], item_ids=ids[1])
    model.update(longer)
    assert model._session.coverage.events == len(log) + 2
    assert not model.recommend(["a", "b"]).unknown


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


# ---- data frames


def purchases(rows=400):
    """Columns as in a shop's table: unsorted times with ties, text and integer ids, a price and a category."""
    random = np.random.default_rng(3)
    item = random.integers(0, 12, rows)
    return {
        "customer": [f"c{number}" for number in random.integers(0, 20, rows)],
        "product": item,
        "when": np.datetime64("2024-01-01T00:00:00", "us") + random.integers(0, 10**5, rows) * np.timedelta64(1, "s"),
        "price": random.random(rows),
        "shelf": [f"s{number}" for number in item % 3],
    }


NAMED = {"user": "customer", "item": "product", "time": "when", "features": ["price"], "item_features": ["shelf"]}
FRAMES = {
    "pandas": pandas.DataFrame,
    "polars": polars.DataFrame,
    "Arrow": pyarrow.table,
    "several chunks": lambda columns: pyarrow.concat_tables(
        [pyarrow.table(columns).slice(0, 7), pyarrow.table(columns).slice(7)]
    ),
    "dictionary": dict,
}


@pytest.fixture(scope="module")
def fitted_shop():
    return dynedge.Model("popular").fit(pandas.DataFrame(purchases()), **NAMED)


@pytest.mark.parametrize("frame", FRAMES.values(), ids=FRAMES)
def test_a_frame_gives_the_bytes_of_a_prepared_parquet_file(frame, tmp_path):
    pyarrow.parquet.write_table(pyarrow.table(purchases()), tmp_path / "events.parquet")
    schema = Schema("customer", "product", "when", features=("price",), item_features=("shelf",))
    dynedge.prepare(tmp_path / "events.parquet", tmp_path / "from_file", schema)
    dynedge.prepare(frame(purchases()), tmp_path / "from_frame", schema)
    for name in sorted(path.name for path in (tmp_path / "from_file").iterdir()):
        one, other = ((tmp_path / folder / name).read_bytes() for folder in ("from_file", "from_frame"))
        if name == "log.json":
            one, other = ({**json.loads(text), "source": None} for text in (one, other))
        assert one == other, name


def test_a_fitted_frame_is_used_as_its_log(fitted_shop, tmp_path):
    schema = Schema("customer", "product", "when", features=("price",), item_features=("shelf",))
    log = dynedge.prepare(purchases(), tmp_path / "log", schema)
    assert fitted_shop._log.fingerprint == log.fingerprint
    from_log = dynedge.Model("popular").fit(log)
    assert same(fitted_shop.recommend("c1"), from_log.recommend("c1"))
    assert fitted_shop.evaluate().test == from_log.evaluate().test
    fitted_shop.save(tmp_path / "run")
    loaded = dynedge.Model.load(tmp_path / "run")
    assert loaded.config.name == "popular"
    assert loaded.evaluate(log).test == from_log.evaluate().test


def test_a_log_goes_through_a_frame_and_back(log, tmp_path):
    for frame in (log.to_pandas(), log.to_polars(), log.to_arrow()):
        back = dynedge.prepare(frame, tmp_path / "back", Schema(item_features=("genre",)), force=True)
        for name in ("user", "item", "time", "item_categories"):
            assert np.array_equal(getattr(back, name), getattr(log, name)), name
        assert back.user_ids[:] == log.user_ids[:]
        assert back.item_ids[-3:] == log.item_ids.take(range(log.num_items))[-3:]


@pytest.mark.parametrize(
    ("data", "columns", "words"),
    [
        (
            {"who": [1], "item_id": [1], "timestamp": [1]},
            {},
            "the frame has no column 'user_id'; its columns are: who",
        ),
        ({"who": [1], "item_id": [1], "timestamp": [1]}, {}, "for example with user='customer'."),
        (
            {"user": [1], "customer": [1], "item": [1], "time": [1]},
            {},
            "user and customer; name one of them with user",
        ),
        (purchases(), NAMED | {"item": "customer"}, "column 'customer' is given twice"),
        (purchases(), NAMED | {"time_unit": "weeks"}, "time_unit 'weeks' is not one of"),
        (
            purchases(),
            NAMED | {"time": "shelf", "item_features": []},
            "400 of 400 rows are bad (100.00%); first: line 1, column shelf",
        ),
        (
            pandas.DataFrame({"user_id": [1, "a"], "item_id": [1, 1], "timestamp": [1, 2]}),
            {},
            "mixed columns to text",
        ),
        ("nowhere", {}, "nowhere does not exist; make a log with: dynedge.prepare(files, out)"),
        ("nowhere", {"user": "a"}, "columns and tables go with data frames only"),
        (3, {}, "a log, a log folder or a data frame, not a int"),
    ],
)
def test_invalid_data_is_named_in_the_words_of_the_api(data, columns, words):
    with pytest.raises(dynedge.DynedgeError, match=re.escape(words)) as error:
        dynedge.Model("popular").fit(data, **columns)
    assert "--" not in str(error.value)


def test_arguments_of_a_wrong_type_have_a_sentence(tmp_path):
    for wrong in (3, ["edge"], b"edge"):
        with pytest.raises(dynedge.UsageError, match="the model should be a name"):
            dynedge.Model(wrong)
    fitted = dynedge.Model("popular").fit(EVENTS)
    for call in (fitted.save, dynedge.Model.load):
        with pytest.raises(dynedge.UsageError, match="the path should be a text or a Path, not None"):
            call(None)
    with pytest.raises(dynedge.UsageError, match="dim should be at most 4096, not 1e\\+09"):
        dynedge.Edge(dim=10**9)


EVENTS = {"user_id": [1, 2] * 10, "item_id": ["tea", "milk"] * 10, "timestamp": list(range(20))}


@pytest.mark.parametrize(
    "data",
    [
        polars.DataFrame(EVENTS).lazy(),
        pyarrow.table(EVENTS).to_reader(),  # can be read once
        pandas.DataFrame(EVENTS | {"user_id": [1.0, 2.0] * 10}),
    ],
    ids=["lazy frame", "record batches", "float ids"],
)
def test_frames_of_other_kinds_are_read(data):
    assert dynedge.Model("popular").fit(data).recommend(1, k=2).of(1) == dynedge.Model("popular").fit(
        EVENTS
    ).recommend(1, k=2).of(1)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (EVENTS | {"user_id": [2**70] * 20}, "integers over 64 bits and mixed columns to text"),
        (EVENTS | {"user_id": ["a"]}, "expected length"),
        (polars.Series([1, 2]), "a dictionary of columns, not a Series"),
    ],
)
def test_what_is_not_a_frame_is_named(data, words):
    with pytest.raises(dynedge.DynedgeError, match=words):
        dynedge.Model("popular").fit(data)


def test_one_column_and_columns_without_names():
    frame = pandas.DataFrame({0: [1, 2] * 10, 1: ["tea", "milk"] * 10, 2: range(20), 3: 1.0})
    model = dynedge.Model("popular").fit(frame, user=0, item=1, time=2, features="3")
    assert model._log.metadata["features"] == ["3"]
    assert model.recommend(1, k=1).item_id.tolist() == ["tea"]


@pytest.fixture(scope="module")
def drinks():
    return dynedge.Model("popular").fit(EVENTS)


@pytest.mark.parametrize("users", [np.int64(1), 1.0, "1", pyarrow.array([1]), pandas.Series([1]), [np.str_("1")]])
def test_users_of_other_types_are_found(drinks, users):
    (best,) = drinks.recommend(users, k=1)
    assert (best.user_id, best.known) == (1, True)


@pytest.mark.parametrize("users", [None, 1.5, b"1", [None], [["a"]], [float("nan")]])
def test_users_that_are_no_ids_are_refused(drinks, users):
    with pytest.raises(dynedge.UsageError, match="texts or integers"):
        drinks.recommend(users)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"k": 2.5}, "k 2.5 should be a whole number"),
        ({"k": "3"}, "k '3' should be a whole number"),
        ({"max_per": "genre"}, "max_per 'genre' should be a dictionary"),
        ({"boost": ["tea"]}, "boost .* should be a dictionary"),
        ({"time": -5}, "before the newest event of the model, at"),
    ],
)
def test_arguments_of_recommend_are_checked(drinks, arguments, words):
    with pytest.raises(dynedge.UsageError, match=words):
        drinks.recommend(1, **arguments)


@pytest.mark.parametrize(
    "events",
    [
        ([1.0, np.int64(2)], ["tea", "milk"], [np.datetime64("2024-01-01"), date(2024, 1, 2)]),
        polars.DataFrame({"user_id": [1, 2], "item_id": ["tea", "tea"], "timestamp": [90, 91]}).lazy(),
    ],
)
def test_updates_take_ids_and_times_of_frames(events):
    session = dynedge.Model("popular").fit(EVENTS).update(events)._session
    assert (session.coverage.events, len(session.users)) == (22, 2)


@pytest.mark.parametrize(
    ("events", "columns"),
    [((1, "tea", 100), None), ({"user_id": 1, "item_id": "tea", "timestamp": 9}, None), (EVENTS, ("user_id", "a"))],
)
def test_updates_of_single_values_are_refused(events, columns):
    with pytest.raises(dynedge.UsageError, match=r"three (sequences|columns)"):
        dynedge.Model("popular").fit(EVENTS).update(events, columns)


def test_answers_outlive_their_model_and_are_valid_json():
    table = {"item_id": ["tea", "milk"], "genre": ["hot", "cold"], "price": [float("inf"), float("nan")]}
    best = dynedge.Model("popular").fit(EVENTS, item_table=table).recommend(1, k=2)  # the model is gone
    metadata = [item["metadata"] for item in best.to_records()[0]["items"]]
    assert json.loads(json.dumps(metadata, allow_nan=False)) == [{"genre": "hot"}, {"genre": "cold"}]


def test_functions_that_commands_share_speak_of_arguments(tmp_path):
    with pytest.raises(dynedge.UsageError, match=r"^events 0 should be between"):
        dynedge.synthesize("demo", tmp_path / "log", events=0)
    with pytest.raises(dynedge.UsageError, match="should be three fractions"):
        dynedge.prepare(EVENTS, tmp_path / "log", split="half")
    log = dynedge.prepare(EVENTS, tmp_path / "log", split="0.5,0.25,0.25")
    assert log.metadata["split"] == "0.5,0.25,0.25"
    with pytest.raises(dynedge.DataError, match="choose another path or pass force=True"):
        dynedge.prepare(EVENTS, tmp_path / "log")
    (tmp_path / "bad.csv").write_text("user_id,item_id,timestamp\na,b,?\n")
    with pytest.raises(dynedge.DataError, match=r"All are listed in .*out\.rejects\.csv"):
        dynedge.prepare(tmp_path / "bad.csv", tmp_path / "out")


@pytest.mark.parametrize("frame", [dict, pandas.DataFrame, polars.DataFrame, pyarrow.table])
def test_usual_names_of_columns_are_recognised(frame):
    columns = {"Time": list(range(20)), "product": ["tea", "milk"] * 10, "userId": [1, 2] * 10}
    model = dynedge.Model("popular").fit(frame(columns))
    best = model.recommend([1, 2, 3, 4], k=1)
    assert repr(best) == "Recommendations(1: ['tea']; 2: ['tea']; 3: ['tea']; 1 more users)"
    assert model.evaluate(frame(columns)).to_pandas().equals(model.evaluate().to_pandas())


def test_messages_name_arguments_and_not_flags(fitted_shop, tmp_path):
    fitted_shop.save(tmp_path / "run")
    with pytest.raises(dynedge.DataError, match="choose another path or pass force=True to replace it"):
        fitted_shop.save(tmp_path / "run")
    with pytest.raises(dynedge.UsageError, match=r"^protocol 'half' must be one of"):
        fitted_shop.evaluate(protocol="half")
    with pytest.raises(dynedge.UsageError, match=r"^heads 3 should divide dim 64"):
        dynedge.Model("sasrec", heads=3).fit(purchases(), **NAMED)
    with pytest.raises(dynedge.UsageError, match="dynedge knows no 'sasrek'; did you mean sasrec"):
        dynedge.Model("sasrek")
    with pytest.raises(dynedge.UsageError, match="has no setting 'epoch'; did you mean epochs"):
        dynedge.Model("sasrec", epoch=5)
    with pytest.raises(dynedge.UsageError, match=r"^the model popular has no vectors"):
        fitted_shop.embed("user")
    with pytest.raises(dynedge.DataError, match=r"create one with: Model\(…\)\.fit\(log\)\.save\(path\)"):
        dynedge.Model.load(tmp_path)


# ---- settings


def test_params_are_settings_by_name():
    model = dynedge.Model("sasrec", epochs=5, split="0.7,0.2,0.1")
    params = model.get_params()
    assert (params["model"], params["epochs"], params["split"]) == ("sasrec", 5, "0.7,0.2,0.1")
    assert dynedge.Model(**params).config == model.config
    assert dynedge.Edge(**dynedge.Edge(dim=8).get_params()).config == dynedge.Edge(dim=8).config
    assert model.set_params(dim=8, epochs=2) is model
    assert repr(model) == "Model('sasrec', dim=8, epochs=2, split='0.7,0.2,0.1')"
    assert repr(model.set_params(model="popular")) == "Model('popular')"
    with pytest.raises(dynedge.UsageError, match="has no setting 'epoch'"):
        model.set_params(epoch=2)
    with pytest.raises(dynedge.UsageError, match="'name' is not a setting"):
        model.set_params(name="edge")


def test_times_in_different_units_are_warned_of():
    times = [1_500_000_000] + [1_500_000_000_000 + k for k in range(29)]
    rows = {"user_id": ["u", "v", "w"] * 10, "item_id": ["i", "j"] * 15, "timestamp": times}
    with pytest.warns(UserWarning, match="numbers in different units") as caught:
        dynedge.Model("popular").fit(rows)
    assert caught[0].filename == __file__


def test_fitting_leaves_the_settings_as_they_were(fitted_shop):
    assert fitted_shop.config == dynedge.Model("popular").config
    assert re.fullmatch(r"Model\('popular'\): 400 events of 20 users and 12 items until 2024-.*", repr(fitted_shop))


def test_fitting_again_and_updating_with_the_columns_of_fit(log):
    model = dynedge.Model("recent").fit(log)
    first = model._session.folder
    model.fit(purchases(), **(NAMED | {"features": []}))
    assert model._session.folder.exists() and not first.exists()
    new = pyarrow.table({"customer": ["c1"], "product": [3], "when": [datetime(2024, 6, 1)]})
    assert model.update(new)._session.coverage.last_time == datetime(2024, 6, 1, tzinfo=UTC).timestamp()


# ---- results


def test_evaluations_and_comparisons_are_frames(log, model, fitted_shop, tmp_path):
    other = dynedge.Model("popular").fit(log)
    evaluated, popular = model.evaluate(), other.evaluate()
    frame = evaluated.to_pandas()
    row = frame[(frame.part == "test") & (frame.metric == "mrr")].iloc[0]
    assert row.value == evaluated.test["mrr"] == evaluated.mrr
    assert [row.low, row.high] == evaluated.test["ci95"]
    assert f"edge: MRR {evaluated.mrr:.4f} [" in repr(evaluated)
    listed = model.evaluate(lists=True)
    table = listed.to_pandas().set_index(["part", "metric"])
    assert 0 < table.loc[("test", "coverage@10"), "value"] == listed.test["coverage@10"] <= 1
    assert listed.test["diversity@10"] > 0
    other.save(tmp_path / "copy")
    compared = dynedge.compare(other, model, dynedge.Model.load(tmp_path / "copy"))
    assert compared.models == ["edge", "popular", "popular (2)"]
    table = compared.to_pandas().set_index(["model", "metric"])
    assert table.loc[("popular", "recall@10"), "value"] == popular.recall_at_10
    assert table.loc[("popular", "mrr"), "difference"] == pytest.approx(popular.mrr - evaluated.mrr)
    assert np.isnan(table.loc[("edge", "mrr"), "difference"])
    assert repr(compared).splitlines()[0] == "Comparison on 300 test events"
    with pytest.raises(dynedge.UsageError, match=r"^the models were fitted on different data"):
        dynedge.compare(other, fitted_shop)
    with pytest.raises(dynedge.UsageError, match="two or more fitted models, each of them once"):
        dynedge.compare(other, other)
    with pytest.raises(dynedge.UsageError, match=r"compare\(one, other\)"):
        dynedge.compare([other, model])


def test_vectors_and_similar_items(log, model):
    items = model.embed("item")
    assert items["vector"].shape == (log.num_items, model._session.vectors()[1].shape[1])
    assert items["item_id"].tolist() == log.item_ids[:]
    users = model.embed("user", log.user_ids[3:5])
    assert np.array_equal(users["vector"], model._session.vectors()[0][3:5])
    assert users.to_polars()["vector"].to_list() == users["vector"].tolist()
    centred = items["vector"] - items["vector"].mean(0)
    centred /= np.linalg.norm(centred, axis=1, keepdims=True)
    similar = model.similar_items(log.item_ids[0], k=3)
    nearest = np.argsort(-(centred @ centred[0]))[1:4]
    assert similar["item_id"].tolist() == log.item_ids.take(nearest)
    with pytest.raises(dynedge.DynedgeError, match="no user has the id 'nobody'"):
        model.embed("user", ["nobody"])
    with pytest.raises(dynedge.UsageError, match="side 'both' should be 'user' or 'item'"):
        model.embed("both")


def test_explanations_of_recommended_and_of_given_items(log, model, fitted_shop):
    user = log.user_ids[0]
    best = model.recommend(user, k=3)
    explained = model.explain(user, k=3)
    assert explained["item_id"].tolist() == best.item_id.tolist()
    shares = np.stack([explained[name] for name in explained.columns[2:-1]], 1)
    assert np.allclose(shares.sum(1), 1)
    given = model.explain(user, best.item_id[::-1].tolist())
    assert given["item_id"].tolist() == best.item_id[::-1].tolist()
    assert np.allclose(given["score"], best.score[::-1], atol=1e-5)
    assert model.explain(user, str(best.item_id[0]))["item_id"].tolist() == best.item_id[:1].tolist()
    assert len(model.explain(user, [])) == 0
    assert same(model.recommend(user, k=3), best)
    with pytest.raises(dynedge.UsageError, match="has no vectors"):
        fitted_shop.embed("user")


@pytest.mark.parametrize("module", ["api", "data.frames", "data.graph_formats", "data.id_index", "data.log"])
def test_examples_of_docstrings(module):
    done = doctest.testmod(import_module(f"dynedge.{module}"))
    assert done.attempted and not done.failed


# ---- temporal graphs of other libraries


def featured_log(time=(10, 20, 20, 30)):
    features, label = [[1.0, 2.0], [3.0, 4.0], [5.0, 6.0], [7.0, 8.0]], [0, 1, 0, 1]
    return EventLog.from_arrays([0, 1, 2, 1], [1, 0, 1, 2], list(time), features=features, label=label)


def test_arrays_of_tgb_and_back():
    log = featured_log()
    arrays = to_tgb(log)
    assert arrays["destinations"].tolist() == [4, 3, 4, 5]
    assert arrays["timestamps"].dtype == arrays["sources"].dtype == np.int64
    back = from_tgb(arrays)
    for name in ("user", "item", "time", "features"):
        assert np.array_equal(getattr(back, name), getattr(log, name)), name
    assert (back.num_users, back.num_items) == (3, 3)
    overlapping = from_tgb({"sources": [0, 5], "destinations": [5, 1], "timestamps": [1, 2]})
    assert overlapping.item.tolist() == [5, 1]
    assert from_tgb({**arrays}, num_users=3).item.tolist() == log.item.tolist()
    with pytest.raises(dynedge.UsageError, match="node 3 is a destination, but with num_users 4 it is a user"):
        from_tgb(arrays, num_users=4)
    with pytest.raises(dynedge.UsageError, match="node 2 is a source, but with num_users 2 it is an item"):
        from_tgb(arrays, num_users=2)
    with pytest.raises(dynedge.UsageError, match="the arrays have no 'timestamps'"):
        from_tgb({"sources": [], "destinations": []})


def test_temporal_data_and_back():
    pytest.importorskip("torch_geometric")
    for time in ((10, 20, 20, 30), (10, 20, 20.5, 30)):
        log = featured_log(time)
        data = to_temporal_data(log)
        assert data.dst.tolist() == [4, 3, 4, 5]
        assert data.t.tolist() == list(time)
        back = from_temporal_data(data)
        for name in ("user", "item", "time", "features", "label"):
            assert np.array_equal(getattr(back, name), getattr(log, name)), name


def test_a_missing_torch_geometric_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch_geometric.data", None)
    with pytest.raises(dynedge.UsageError, match="pip install torch_geometric"):
        to_temporal_data(featured_log())
