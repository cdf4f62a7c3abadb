"""The commands recommend and embed, with a small EDGE; the log is read only where --log names it."""

import json
import shutil
from datetime import UTC, datetime

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch

from dynedge.data.ingest.pipeline import prepare
from dynedge.data.ingest.schema import Schema
from dynedge.data.log import read_log
from dynedge.data.synthetic import synthesize
from dynedge.data.windows import Window
from dynedge.inference.rule_texts import parse_list, parse_rules
from dynedge.runs.folder import RunFolder, load_run
from dynedge.runs.run_config import recipe_config, resolve_key
from dynedge.runs.train_run import train_run

TRAINED = 2400  # of 3,000 events


def trained(log, out, name, **settings):
    from dynedge.config import set_key

    config = recipe_config(name)
    for key, value in settings.items():
        config = set_key(config, resolve_key(config, key, key), value)
    with RunFolder(out) as run:
        train_run(run, config, log, quiet=True)
    return out


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder with a log, an EDGE trained on it, a heuristic, and a recurrence."""
    place = tmp_path_factory.mktemp("place")
    log = synthesize("demo", place / "log", events=3000, quiet=True)
    trained(log, place / "run", "edge", epochs=1, windows=8, dim=8)
    trained(log, place / "popular", "popular")
    trained(log, place / "recurrence", "recurrence", epochs=1, windows=8, dim=8)
    return place


@pytest.fixture(scope="module")
def log(place):
    return read_log(place / "log")


def recommended(cli_run, *arguments):
    code, out, err = cli_run("recommend", *arguments, "--json")
    assert code == 0, err
    return json.loads(out)


def expected(place, log, end, users, time):
    """Scores of all items by the model contract alone, after the events up to position `end`."""
    run = load_run(place / "run")
    with torch.no_grad():
        if end > TRAINED:
            run.model.score(run.model.prepare(Window(log, range(TRAINED, end))), None, run.state)
        times = torch.full((len(users),), time, dtype=torch.float64)
        return np.asarray(run.model.score_query(torch.tensor(users), times, None, run.state))


def names(log, rows):
    return ",".join(log.user_ids.take(rows))


@pytest.mark.parametrize(("more", "end"), [([], TRAINED), (["--log", "log"], 3000)])
def test_recommendations_are_the_best_items_by_their_original_ids(cli_run, place, log, more, end):
    more = [place / word if word == "log" else word for word in more]
    answer = recommended(cli_run, place / "run", "--users", names(log, [3, 0]), "--k", 4, *more)
    assert (answer["run"], answer["model"], answer["time"]) == (str(place / "run"), "edge", log.time[end - 1])
    scores = expected(place, log, end, [3, 0], log.time[end - 1])
    for one, row, row_scores in zip(answer["users"], (3, 0), scores, strict=True):
        best = np.argsort(-row_scores)[:4]
        assert one["user_id"] == log.user_ids[row]
        assert one["known"] is True
        assert [item["item_id"] for item in one["items"]] == log.item_ids.take(best)
        assert [item["score"] for item in one["items"]] == pytest.approx(row_scores[best], abs=1e-4)


def test_printed_lists_have_the_items_of_json_with_their_ranks(cli_run, place, log):
    arguments = place / "run", "--users", f"{names(log, [3, 0])},nobody", "--k", 4
    code, out, _ = cli_run("recommend", *arguments)
    assert code == 0
    lists = [text.splitlines() for text in out.split("\n\n")]
    for (heading, *lines), user in zip(lists, recommended(cli_run, *arguments)["users"], strict=True):
        assert heading.startswith(user["user_id"])
        assert ("unknown user" in heading) == (user["user_id"] == "nobody")
        shown = [(int(line.split()[0]), " ".join(line.split()[1:-1]), line.split()[-1]) for line in lines]
        assert shown == [
            (rank, f"{item['item_id']} {item['metadata']['genre']}", f"{item['score']:.4f}")
            for rank, item in enumerate(user["items"], 1)
        ]


def test_scores_depend_on_the_time_of_the_request(cli_run, place, log):
    user, later = names(log, [3]), float(log.time[TRAINED - 1]) + 86400
    moment = datetime.fromtimestamp(later, UTC).isoformat()
    by_number, by_date, now = (
        recommended(cli_run, place / "run", "--users", user, "--k", 3, *time)
        for time in (["--time", repr(later)], ["--time", moment], [])
    )
    assert by_number == by_date
    assert (by_date["time"], now["time"]) == (later, log.time[TRAINED - 1])
    scores = expected(place, log, TRAINED, [3], later)[0]
    assert [item["score"] for item in by_date["users"][0]["items"]] == pytest.approx(
        np.sort(scores)[::-1][:3], abs=1e-4
    )
    assert by_date["users"][0]["items"] != now["users"][0]["items"]


def test_a_time_in_the_past_replays_the_log_from_its_beginning(cli_run, place, log):
    """The replay starts at the initial state, so that no later event leaks."""
    end = 1000
    moment = float(log.time[end - 1])
    answer = recommended(cli_run, place / "run", "--users", names(log, [0]), "--time", moment, "--log", place / "log")
    run = load_run(place / "run")
    state, until = run.model.start(), int(np.searchsorted(log.time, moment, "right"))
    with torch.no_grad():
        run.model.score(run.model.prepare(Window(log, range(until))), None, state)
        scores = run.model.score_query(torch.tensor([0]), torch.tensor([moment], dtype=torch.float64), None, state)[0]
    best = scores.argsort(descending=True)[:10]
    assert [item["item_id"] for item in answer["users"][0]["items"]] == log.item_ids.take(best)


@pytest.mark.parametrize("more", [[], ["--log"]])
def test_filter_seen_hides_exactly_the_items_of_the_user(cli_run, place, log, more):
    more, end = (["--log", place / "log"], 3000) if more else ([], TRAINED)
    row = int(np.bincount(log.user[:TRAINED]).argmax())
    answer = recommended(cli_run, place / "run", "--users", names(log, [row]), "--k", 5000, "--filter-seen", *more)
    found = {item["item_id"] for item in answer["users"][0]["items"]}
    seen = set(log.item_ids.take(np.unique(log.item[:end][log.user[:end] == row])))
    assert seen
    assert found == set(log.item_ids.take(range(log.num_items))) - seen


def test_filter_seen_needs_a_model_that_remembers_seen_items(cli_run, place, log, tmp_path):
    out = tmp_path / "all.parquet"
    for arguments in (["--users", names(log, [0])], ["--all-users", "--out", out]):
        code, _, err = cli_run("recommend", place / "recurrence", *arguments, "--filter-seen")
        assert code == 2
        assert "the model recurrence does not remember which items a user has seen" in err
    assert list(tmp_path.iterdir()) == []


def test_an_unknown_user_gets_the_most_popular_items_and_a_note(cli_run, place, log):
    code, out, err = cli_run("recommend", place / "run", "--users", "nobody at all", "--k", 3)
    assert code == 0
    assert "user 'nobody at all' is not in" in err
    assert "nobody at all (unknown user" in out
    answer = recommended(cli_run, place / "run", "--users", f'"nobody at all", {log.user_ids[0]}', "--k", 3)
    assert [one["known"] for one in answer["users"]] == [False, True]
    counts = np.bincount(log.item[:TRAINED])
    top = answer["users"][0]["items"]
    assert [item["score"] for item in top] == pytest.approx(np.sort(counts)[::-1][:3] / TRAINED)
    assert [counts[log.item_ids.find(item["item_id"])] for item in top] == np.sort(counts)[::-1][:3].tolist()


def test_the_log_is_not_needed(cli_run, place, log, tmp_path):
    shutil.copytree(place / "run", tmp_path / "run")
    card = json.loads((tmp_path / "run" / "ids" / "log.json").read_text())
    card["trained_on"]["path"] = str(tmp_path / "gone")
    (tmp_path / "run" / "ids" / "log.json").write_text(json.dumps(card))
    (tmp_path / "run" / "manifest.json").unlink()
    here = recommended(cli_run, place / "run", "--users", names(log, [5]))
    assert recommended(cli_run, tmp_path / "run", "--users", names(log, [5]))["users"] == here["users"]


def test_all_users_in_batches_equal_each_user_alone(cli_run, place, log, tmp_path, monkeypatch):
    from dynedge.inference import session, table_files

    monkeypatch.setattr(session, "MAX_SCORES", 5 * log.num_items)
    monkeypatch.setattr(table_files, "BATCH_ROWS", 4 * 7)
    out = tmp_path / "all.parquet"
    code, said, err = cli_run(
        "recommend", place / "run", "--all-users", "--out", out, "--k", 4, "--log", place / "log"
    )
    assert code == 0, err
    assert f"{4 * log.num_users:,} recommendations for {log.num_users} users" in said
    rows = pq.read_table(out).to_pylist()
    assert list(rows[0]) == ["user_id", "item_id", "score", "rank", "genre"]
    alone = recommended(
        cli_run, place / "run", "--users", names(log, range(log.num_users)), "--k", 4, "--log", place / "log"
    )
    flat = [
        (one["user_id"], item["item_id"], at) for one in alone["users"] for at, item in enumerate(one["items"], 1)
    ]
    assert [(row["user_id"], row["item_id"], row["rank"]) for row in rows] == flat
    assert [path.name for path in tmp_path.iterdir()] == ["all.parquet"]


def test_a_failed_write_keeps_the_old_file(cli_run, place, tmp_path, monkeypatch):
    from dynedge.inference import table_files
    from dynedge.inference.session import Session

    out = tmp_path / "all.parquet"
    out.write_text("old")

    def half(self, users, *arguments, **more):
        if users[0]:
            raise OSError(28, "no space")
        return np.zeros((len(users), 1), np.int64), np.zeros((len(users), 1), np.float32)

    monkeypatch.setattr(Session, "top_items", half)
    monkeypatch.setattr(table_files, "BATCH_ROWS", 100)
    code, _, err = cli_run("recommend", place / "run", "--all-users", "--out", out)
    assert (code, "the disk is full" in err) == (3, True)
    assert out.read_text() == "old"
    assert [path.name for path in tmp_path.iterdir()] == ["all.parquet"]


def test_embed_writes_the_vectors_of_all_entities(cli_run, place, log, tmp_path, monkeypatch):
    monkeypatch.setattr("dynedge.inference.table_files.BATCH_ROWS", 7)
    code, out, err = cli_run("embed", place / "run", "--out", tmp_path / "v.parquet")
    assert code == 0, err
    assert f"{log.num_users} user vectors of width 8 and {log.num_items} item vectors of width 16" in out
    table = pq.read_table(tmp_path / "v.parquet").to_pylist()
    assert [row["user_id"] for row in table[: log.num_users]] == log.user_ids.take(range(log.num_users))
    assert [row["item_id"] for row in table[log.num_users :]] == log.item_ids.take(range(log.num_items))
    assert all((row["user_id"] is None) != (row["item_id"] is None) for row in table)
    state = load_run(place / "run").state
    moved = np.flatnonzero(np.asarray(state["recurrence.user_moved"]))
    assert len(moved) > 5
    for row in moved:
        assert table[row]["vector"] == state["recurrence.user"][row].tolist()


def test_embed_at_a_time_replays_events_up_to_it(cli_run, place, log, tmp_path):
    moment = log.time[2699]
    until = int(np.searchsorted(log.time, moment, "right"))
    code, _, err = cli_run(
        "embed", place / "run", "--at", moment, "--log", place / "log", "--out", tmp_path / "v.parquet"
    )
    assert code == 0, err
    run = load_run(place / "run")
    with torch.no_grad():
        run.model.score(run.model.prepare(Window(log, range(TRAINED, until))), None, run.state)
        users, items = run.model.vectors(run.state)
    found = pq.read_table(tmp_path / "v.parquet")["vector"].to_pylist()
    assert np.allclose(found[: log.num_users], users, atol=1e-5)
    assert np.allclose(found[log.num_users :], items, atol=1e-5)


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["recommend", "{run}"], 2, "either --users A,B or --all-users"),
        (["recommend", "{run}", "--users", "a", "--all-users", "--out", "x.parquet"], 2, "either --users"),
        (["recommend", "{run}", "--all-users"], 2, "--all-users needs --out FILE"),
        (["recommend", "{run}", "--all-users", "--out", "{tmp}/x.xls"], 2, "end in .parquet or .csv or .jsonl"),
        (["recommend", "{run}", "--all-users", "--out", "{tmp}/no/x.parquet"], 2, "does not exist"),
        (["recommend", "{run}", "--users", "a", "--k", "0"], 2, "--k"),
        (["recommend", "{run}", "--users", "a", "--allow", "genre"], 2, "--allow 'genre' should be COLUMN=A,B"),
        (["recommend", "{run}", "--users", "a", "--allow", "genre=opera"], 2, "no item has the genre 'opera'; its"),
        (
            ["recommend", "{run}", "--users", "a", "--deny", "artist=x"],
            2,
            "no column 'artist': their",
        ),
        (["recommend", "{run}", "--users", "a", "--deny", "item_id=@{tmp}/none"], 3, "No such file"),
        (["recommend", "{run}", "--users", ","], 2, "--users names no user"),
        (
            ["recommend", "{run}", "--users", "a", "--boost", "genre=blues"],
            2,
            "--boost 'genre=blues' should end in a",
        ),
        (["recommend", "{run}", "--users", "a", "--boost", "genre=blues:1e9"], 2, "between -1000 and 1000"),
        (["recommend", "{run}", "--users", "a", "--max-per", "genre=0"], 2, "at least 1"),
        (["recommend", "{run}", "--users", "a", "--max-per", "item_id=2"], 2, "of a category"),
        (["recommend", "{run}", "--users", "a", "--diversity", "1.5"], 2, "between 0 (off) and 1"),
        (
            ["recommend", "{popular}", "--users", "a", "--diversity", "0.5"],
            2,
            "popular has no item vectors",
        ),
        (["recommend", "{run}", "--users", "a", "--time", "soon"], 2, "--time 'soon' should be a number in s"),
        (["recommend", "{run}", "--users", "a", "--time", "5"], 2, "with --log LOG"),
        (["recommend", "{tmp}", "--users", "a"], 3, "not a run folder"),
        (["recommend", "{run}", "--users", "a", "--log", "{tmp}/none"], 3, "does not exist"),
        (["embed", "{run}", "--out", "{tmp}/x.npz"], 2, "should end in .parquet"),
        (["embed", "{run}", "--out", "{tmp}/x.parquet", "--at", "5"], 2, "--at needs --log"),
        (["embed", "{popular}", "--out", "{tmp}/x.parquet"], 2, "the model popular has no vectors"),
    ],
)
def test_mistakes_are_one_sentence_with_the_right_exit_code(cli_run, place, tmp_path, arguments, code, words):
    before = sorted(tmp_path.iterdir())
    places = {"run": place / "run", "popular": place / "popular", "tmp": tmp_path}
    found, out, err = cli_run(*[word.format(**places) for word in arguments])
    assert (found, out) == (code, ""), err
    complaint = [line for line in err.splitlines() if line.startswith("dynedge: ")]
    assert len(complaint) == 1
    assert words in complaint[0]
    assert sorted(tmp_path.iterdir()) == before


@pytest.mark.parametrize(
    ("text", "ids"),
    [
        ("a, b ,c", ["a", "b", "c"]),
        ('"A, B",c', ["A, B", "c"]),
        ('" a ", b', [" a ", "b"]),
        ('a,"say ""hi"""', ["a", 'say "hi"']),
        ("a,,b,", ["a", "b"]),
    ],
)
def test_ids_are_parsed_as_in_csv(text, ids):
    assert parse_list(text) == ids


def test_a_file_of_ids_has_one_per_line_feed(tmp_path):
    ids = ["a", "b\u2028c", "d\x0be"]
    (tmp_path / "ids.txt").write_text("\n".join(ids), encoding="utf-8")
    assert parse_rules(deny=[f"item_id=@{tmp_path}/ids.txt"], files=True).deny == (("item_id", tuple(ids)),)


def test_a_log_with_new_users_and_items_is_applied_and_evaluated(cli_run, place, log, tmp_path):
    (tmp_path / "a.csv").write_text(
        "user_id,item_id,timestamp\n"
        + "".join(f"{('new', log.user_ids[k % 5])[k % 2]},item {k % 7},{int(log.time[-1]) + k}\n" for k in range(60))
    )
    newer = prepare(tmp_path / "a.csv", tmp_path / "newer", Schema(time_unit="s"))
    arguments = "--users", "new", "--k", log.num_items + newer.num_items, "--log", tmp_path / "newer"
    answer = recommended(cli_run, place / "run", *arguments)
    assert answer["users"][0]["known"]
    assert {f"item {k}" for k in range(7)} <= {item["item_id"] for item in answer["users"][0]["items"]}
    vectors = tmp_path / "v.parquet"
    assert cli_run("embed", place / "run", "--log", tmp_path / "newer", "--out", vectors)[0] == 0
    assert "new" in pq.read_table(vectors)["user_id"].to_pylist()
    code, out, err = cli_run("evaluate", place / "run", tmp_path / "newer", "--json")
    assert code == 0, err
    assert "1 users and 7 items that" in err
    assert json.loads(out)["items"] == log.num_items + 7
    assert json.loads(out)["test"]["events"] == 6
