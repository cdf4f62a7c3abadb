"""Labels as a filter, columns without a role, and stdin as input of `prepare` and `append`."""

import io
import json

import pytest

from dynedge.data.log import read_log

ROWS = [("a", "x", 1, 5), ("b", "y", 2, 3), ("a", "z", 3, 4), ("c", "x", 4, 1), ("b", "x", 5, 4.5)]
CSV = "user_id,item_id,timestamp,stars,note\n" + "".join(",".join(map(str, row)) + ",hm\n" for row in ROWS)


@pytest.fixture
def prepared(cli_run, tmp_path):
    (tmp_path / "events.csv").write_text(CSV)

    def run(*more):
        arguments = tmp_path / "events.csv", "--out", tmp_path / "log", "--force", "--label-col", "stars", *more
        return cli_run("prepare", *arguments)

    return run


@pytest.mark.parametrize(
    ("condition", "kept"), [(">=4", [0, 2, 4]), (">4", [0, 4]), ("< 4", [1, 3]), ("==4", [2]), ("!=1", [0, 1, 2, 4])]
)
def test_only_rows_with_a_positive_label_are_kept(prepared, tmp_path, condition, kept):
    code, out, err = prepared("--positive", condition)
    assert code == 0, err
    log = read_log(tmp_path / "log")
    users = log.user_ids.take(log.user)
    assert [(users[k], log.label[k]) for k in range(len(log))] == [(ROWS[k][0], ROWS[k][3]) for k in kept]
    assert set(log.user_ids.decoded) == {ROWS[k][0] for k in kept}  # a row that is left out adds no user
    assert (log.metadata["positive"], log.metadata["left_out"]) == (condition, 5 - len(kept))
    assert f"left out  {5 - len(kept)} rows: stars is not {condition}" in out
    assert log.metadata["rejected"] == 0


def test_a_log_says_what_is_not_used(prepared, cli_run, tmp_path):
    assert "not used  columns note\n" in prepared()[1]
    assert "a label, which models do not use" in cli_run("info", tmp_path / "log")[1]
    prepared("--label-feature")
    assert (
        "1 features, 0 item features, 0 user features, a label, which is the last feature"
        in cli_run("info", tmp_path / "log")[1]
    )
    prepared("--positive", ">=4")
    shown = cli_run("info", tmp_path / "log")[1]
    assert "a label; 2 rows without a label >=4 were left out" in shown
    assert "not used    note" in shown


def test_appended_rows_are_filtered_alike(prepared, cli_run, tmp_path):
    prepared("--positive", ">=4")
    (tmp_path / "more.csv").write_text("user_id,item_id,timestamp,stars\nz,x,6,2\nz,x,7,5\n")
    code, out, err = cli_run("append", tmp_path / "log", tmp_path / "more.csv", "--label-col", "stars")
    assert code == 0, err
    assert "left out  1 rows: stars is not >=4" in out
    log = read_log(tmp_path / "log")
    assert (len(log), log.metadata["left_out"]) == (4, 3)


@pytest.mark.parametrize(
    ("more", "code", "words"),
    [
        (["--positive", "4"], 2, "--positive '4' should be a comparison with a number"),
        (["--positive", ">=four"], 2, "should be a comparison with a number"),
        (["--positive", ">9"], 3, "no row has a stars >9; no log was written"),
    ],
)
def test_wrong_conditions_give_a_sentence(prepared, tmp_path, more, code, words):
    found, out, err = prepared(*more)
    assert (found, out) == (code, "")
    assert words in err
    assert not (tmp_path / "log").exists()


def test_positive_needs_a_label(cli_run, tmp_path):
    (tmp_path / "events.csv").write_text(CSV)
    code, _, err = cli_run("prepare", tmp_path / "events.csv", "--out", tmp_path / "log", "--positive", ">=4")
    assert (code, "name its column with --label-col" in err) == (2, True)


@pytest.mark.parametrize("kind", ["csv", "json lines"])
def test_stdin_is_read_like_a_file(prepared, cli_run, tmp_path, monkeypatch, kind):
    prepared()
    names = "user_id", "item_id", "timestamp", "stars", "note"
    lines = "".join(json.dumps(dict(zip(names, (*row, "hm"), strict=True))) + "\n" for row in ROWS)
    text = CSV if kind == "csv" else lines
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(text.encode())))
    code, _, err = cli_run("prepare", "-", "--label-col", "stars", "--out", tmp_path / "piped")
    assert code == 0, err
    piped, log = read_log(tmp_path / "piped"), read_log(tmp_path / "log")
    assert piped.fingerprint == log.fingerprint
    assert piped.metadata["source"]["files"] == ["stdin"]
    assert piped.metadata["unused_columns"] == ["note"]
