"""Item features from an item table, MovieLens genres, and the label as an event feature; also after `append`."""

import numpy as np
import pytest

from dynedge.data.frames import user_table
from dynedge.data.log import read_log

EVENTS = "user_id,item_id,timestamp,rating\n1,7,1,4\n2,9,2,2.5\n1,8,3,5\n"
ITEMS = "item_id,genres,studio\n7,Comedy|Drama,a\n8,Drama,b\n5,Horror,a\n"


@pytest.fixture
def files(tmp_path):
    (tmp_path / "events.csv").write_text(EVENTS)
    (tmp_path / "items.csv").write_text(ITEMS)
    (tmp_path / "more.csv").write_text("user_id,item_id,timestamp,rating\n3,8,4,1\n3,6,5,3\n")
    return tmp_path


def named(log):
    """The categories of the log's items by external id, in the order of the log's item features."""
    codes = log.item_categories.tolist()
    return {
        item: [ids[code] if code >= 0 else None for ids, code in zip(log.category_ids, row, strict=True)]
        for item, row in zip(log.item_ids.decoded, codes, strict=True)
    }


def test_item_features_of_the_item_table(files, cli_run):
    prepare = "prepare", files / "events.csv", "--out", files / "log"
    options = "--item-features", "genres,studio", "--item-table", files / "items.csv"
    assert cli_run(*prepare, *options)[0] == 0
    log = read_log(files / "log")
    assert log.metadata["item_features"] == ["genres_1", "genres_2", "studio"]
    assert named(log) == {7: ["Comedy", "Drama", "a"], 9: [None] * 3, 8: ["Drama", None, "b"]}
    code, _, err = cli_run("append", files / "log", files / "more.csv")
    assert code == 0, err
    assert named(read_log(files / "log")) == {**named(log), 6: [None] * 3}


def test_the_label_as_the_last_event_feature(files, cli_run):
    options = "--label-col", "rating", "--label-feature"
    assert cli_run("prepare", files / "events.csv", "--out", files / "log", *options)[0] == 0
    log = read_log(files / "log")
    assert log.metadata["features"] == ["rating"]
    assert np.array_equal(log.features[:, 0], log.label)
    code, _, err = cli_run("append", files / "log", files / "more.csv", "--label-col", "rating")
    assert code == 0, err
    assert read_log(files / "log").features[:, 0].tolist() == [4.0, 2.5, 5.0, 1.0, 3.0]
    code, _, err = cli_run("prepare", files / "events.csv", "--out", files / "other", "--label-feature")
    assert (code, "--label-feature needs a label" in err) == (2, True)


def test_movielens_genres_are_read_from_movies_csv(tmp_path, cli_run):
    (tmp_path / "ratings.csv").write_text("userId,movieId,rating,timestamp\n1,7,4,100\n2,9,3,200\n")
    (tmp_path / "movies.csv").write_text('movieId,title,genres\n7,"Film, The",Comedy|Drama\n9,Other,Drama\n')
    assert cli_run("prepare", "--dataset", "ml-25m", tmp_path, "--out", tmp_path / "log")[0] == 0
    assert named(read_log(tmp_path / "log")) == {7: ["Comedy", "Drama"], 9: ["Drama", None]}


def test_one_population_has_one_set_of_ids(tmp_path, cli_run):
    (tmp_path / "a.csv").write_text("user_id,item_id,timestamp\nann,bob,3\nbob,cid,1\n")
    (tmp_path / "b.csv").write_text("user_id,item_id,timestamp\ndee,ann,4\ncid,eve,5\n")
    (tmp_path / "c.csv").write_text((tmp_path / "a.csv").read_text() + "dee,ann,4\ncid,eve,5\n")
    for name in ("a", "c"):
        prepare = "prepare", tmp_path / f"{name}.csv", "--out", tmp_path / name, "--one-population"
        assert cli_run(*prepare)[0] == 0
    log = read_log(tmp_path / "a")
    assert log.one_population
    assert log.user_ids.decoded == log.item_ids.decoded == ["bob", "cid", "ann"]  # by first event
    assert (log.user.tolist(), log.item.tolist()) == ([0, 2], [1, 0])
    code, _, err = cli_run("append", tmp_path / "a", tmp_path / "b.csv")
    assert code == 0, err
    grown, whole = read_log(tmp_path / "a"), read_log(tmp_path / "c")
    assert grown.user_ids.decoded == whole.item_ids.decoded == ["bob", "cid", "ann", "dee", "eve"]
    assert (grown.user.tolist(), grown.item.tolist()) == (whole.user.tolist(), whole.item.tolist())
    assert grown.one_population
    assert "one population" in cli_run("info", tmp_path / "a")[1]


def test_user_features_of_the_user_table(files, cli_run):
    (files / "users.csv").write_text("user_id,age,city\n1,30,Bonn\n9,40,Rome\n2,30,\n")
    prepare = "prepare", files / "events.csv", "--out", files / "log"
    assert cli_run(*prepare, "--user-table", files / "users.csv", "--user-features", "city,age")[0] == 0
    log = read_log(files / "log")

    def of_users(log):
        return {record["user_id"]: (record["city"], record["age"]) for record in user_table(log).to_pylist()}

    assert of_users(log) == {1: ("Bonn", "30"), 2: (None, "30")}
    code, _, err = cli_run("append", files / "log", files / "more.csv")
    assert code == 0, err
    grown = read_log(files / "log")
    assert of_users(grown) == {**of_users(log), 3: (None, None)}
    grown.verify()
    assert "2 user features" in cli_run("info", files / "log")[1]


@pytest.mark.parametrize(
    ("options", "exit_code", "reason"),
    [
        (["--user-features", "city"], 2, "--user-table and --user-features belong together"),
        (["--user-table", "users.csv"], 2, "--user-table and --user-features belong together"),
        (["--user-table", "users.csv", "--user-features", "town"], 3, "--user-features town: the user table has no"),
        (["--user-table", "none.csv", "--user-features", "city"], 3, "--user-table none.csv cannot be read"),
        (["--user-table", "twice.csv", "--user-features", "city"], 3, "user '1' has two rows, 1 and 2"),
    ],
)
def test_user_tables_that_are_refused(files, cli_run, monkeypatch, options, exit_code, reason):
    monkeypatch.chdir(files)
    (files / "users.csv").write_text("user_id,city\n1,Bonn\n")
    (files / "twice.csv").write_text("user_id,city\n1,Bonn\n1,Rome\n")
    code, _, err = cli_run("prepare", "events.csv", "--out", "log", *options)
    assert code == exit_code
    assert reason in err and err.startswith("dynedge: ") and err.count("\n") == 1
    assert not (files / "log").exists()
