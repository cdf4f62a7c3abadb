"""The commands prepare, info, synth and datasets: output, exit codes, one sentence for every mistake."""

import json
import os
import random
import shutil
import subprocess
import sys
import time

import pytest
from training.fork_server import ForkServer

from dynedge.data.log import read_log

ROWS = "user_id,item_id,timestamp\nann,tea,3\nbob,tea,1\nann,jam,2\n"


@pytest.fixture
def csv_file(tmp_path):
    (tmp_path / "events.csv").write_text(ROWS)
    return tmp_path / "events.csv"


def test_prepare_and_info(cli_run, tmp_path, csv_file):
    code, out, err = cli_run("prepare", csv_file, "--out", tmp_path / "log")
    assert code == 0, err
    assert "times in seconds (inferred" in out
    assert "3 events, 2 users, 2 items" in out
    statistics = json.loads(cli_run("info", tmp_path / "log", "--json", "--verify")[1])
    assert {"events", "users", "items", "rejected", "first_time", "last_time"} <= statistics.keys()
    assert tuple(statistics[key] for key in ("events", "users", "rejected", "first_time")) == (3, 2, 0, 1.0)
    _, out, _ = cli_run("info", tmp_path / "log", "--plot", tmp_path / "log.svg")
    assert "repeats" in out
    assert (tmp_path / "log.svg").read_text().startswith("<?xml")


@pytest.mark.parametrize(
    ("times", "warned"),
    [
        ([1_500_000_000, 1_500_000_001_000, 1_500_000_002_000], True),
        ([1_500_000_000_000_000, 1_500_000_001_000, 1_500_000_002_000_000], True),
        ([1_500_000_000_000, 1_500_000_001_000, 1_500_000_002_000], False),
        ([0, 5_000_000, 400_000_000], False),
        ([200_000, 5_000_000, 20_000_001], False),
    ],
)
def test_times_in_different_units_are_warned_of(cli_run, tmp_path, times, warned):
    rows = "".join(f"u,i,{time}\n" for time in times)
    (tmp_path / "events.csv").write_text(f"user_id,item_id,timestamp\n{rows}")
    code, _, err = cli_run("prepare", tmp_path / "events.csv", "--out", tmp_path / "log")
    assert (code, "numbers in different units" in err) == (0, warned)


def test_appended_times_in_another_unit_are_warned_of(cli_run, tmp_path):
    for name, times in (("first", [1_500_000_000_000]), ("more", [1_500_000_001, 1_500_000_001_000])):
        rows = "".join(f"u,i,{time}\n" for time in times)
        (tmp_path / f"{name}.csv").write_text(f"user_id,item_id,timestamp\n{rows}")
    _, _, err = cli_run("prepare", tmp_path / "first.csv", "--out", tmp_path / "log")
    assert "units" not in err
    code, _, err = cli_run("append", tmp_path / "log", tmp_path / "more.csv", "--late", "merge")
    assert (code, "numbers in different units" in err) == (0, True)


def test_append(cli_run, tmp_path, csv_file):
    cli_run("prepare", csv_file, "--out", tmp_path / "log")
    before = json.loads(cli_run("info", tmp_path / "log", "--json")[1])
    (tmp_path / "more.csv").write_text("who;what;when\nu1;new;99999999999\nu1;x;1\nnobody;new;99999999999\n")
    columns = ["--user-col", "who", "--item-col", "what", "--time-col", "when", "--time-unit", "ms"]
    code, _, err = cli_run("append", tmp_path / "log", tmp_path / "more.csv", *columns)
    assert code == 3 and "--late merge" in err
    code, out, err = cli_run("append", tmp_path / "log", tmp_path / "more.csv", *columns, "--late", "merge")
    assert (code, err) == (0, "")
    assert "read      3 rows, times in milliseconds\nadded     3 events, 1 of them older than the log's end" in out
    assert f"log       {tmp_path / 'log'}: {before['events'] + 3:,} events" in out
    code, out, _ = cli_run("append", tmp_path / "log", tmp_path / "more.csv", *columns, "--max-bad", "40%", "--json")
    added = json.loads(out)
    assert added["events"] == before["events"] + 5
    assert added["added"]["events"] == 2 and added["added"]["rejected_why"] == {"older than the log's end": 1}


def test_info_prints_the_numbers_of_json(cli_run, tmp_path, csv_file):
    rng = random.Random(1)
    rows = [(int(rng.paretovariate(1)) % 30, rng.randrange(9), t // 2) for t in range(400)]
    csv_file.write_text("user_id,item_id,timestamp\n" + "".join(f"{u},{i},{60 * t}\n" for u, i, t in rows) + "x,,\n")
    prepare = ["prepare", csv_file, "--out", tmp_path / "log", "--max-bad", "1%", "--split", "0.5,0.2,0.3"]
    assert cli_run(*prepare)[0] == 0
    log = read_log(tmp_path / "log")
    assert str(log.split) == log.metadata["split"] == "0.5,0.2,0.3"
    found = json.loads(cli_run("info", tmp_path / "log", "--json")[1])
    lines = {line[:12].strip(): line[12:] for line in cli_run("info", tmp_path / "log")[1].splitlines()}
    for side in ("user", "item"):
        of = found[f"events_per_{side}"]
        assert len(set(of.values())) > 4
        assert lines[f"{side}s"] == (
            f"{found[f'{side}s']}: median {of['0.5']} events, mean {of['mean']:.1f}, 90th percentile {of['0.9']}, "
            f"99th percentile {of['0.99']}, maximum {of['1']}"
        )
    assert lines["events"] == "400, 1 rows rejected"
    assert lines["time"] == "0.000 to 11,940.000 s, 3.3 hours"
    assert lines["repeats"].startswith(f"{found['repeat_share']:.1%} of events repeat an earlier item of the user, ")
    assert lines["repeats"].endswith(f"{found['same_as_last_share']:.1%} the user's previous item")
    assert lines["equal times"].startswith(
        f"{found['equal_time_share']:.1%} of events have the timestamp of the prev"
    )
    assert f", {found['equal_time_same_user_share']:.1%} that of the same user's previous" in lines["equal times"]
    signal_found = found["order_signal"]
    assert f"{signal_found['mrr']:.3f} as stored, {signal_found['mrr_shuffled']:.3f} with ties" in lines["tie order"]
    assert (lines["columns"], lines["split"]) == (
        "0 features, 0 item features, 0 user features, no label",
        "0.5,0.2,0.3",
    )


def test_prepare_lists_rejected_rows_by_reason(cli_run, tmp_path, csv_file):
    csv_file.write_text(ROWS + "eve,,4\n")
    _, out, _ = cli_run("prepare", csv_file, "--out", tmp_path / "log", "--max-bad", "30%")
    assert "rejected  1: 1 missing value" in out
    _, out, _ = cli_run("prepare", csv_file, "--out", tmp_path / "two", "--max-bad", "0.3", "--json")
    as_json = json.loads(out)
    assert (as_json["rows_read"], as_json["events"], as_json["rejected"]) == (4, 3, 1)


def test_a_data_set_that_differs_from_the_published_one_is_a_warning(cli_run, tmp_path):
    (tmp_path / "u.data").write_text("196\t242\t3\t881250949\n")
    code, _, err = cli_run("prepare", "--dataset", "ml-100k", tmp_path, "--out", tmp_path / "log")
    assert code == 0
    assert "warning: this file is not MovieLens 100K as published" in err
    assert read_log(tmp_path / "log").metadata["source"]["dataset"] == "ml-100k"


def test_datasets_are_listed(cli_run):
    assert "UserBehavior.csv" in cli_run("datasets")[1]
    names = [row["name"] for row in json.loads(cli_run("datasets", "--json")[1])]
    assert names[0] == "wikipedia"
    assert len(names) == 23


def test_synth_generates_the_number_of_events_requested(cli_run, tmp_path):
    code, out, err = cli_run("synth", "lastfm-like", "--events", "3000", "--seed", "4", "--out", tmp_path / "log")
    assert code == 0, err
    assert "3,000 events" in out


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["prepare", "{file}"], 2, "--out"),
        (["prepare", "{tmp}/absent.csv", "--out", "{tmp}/x"], 3, "does not exist"),
        (["prepare", "{tmp}", "--out", "{tmp}/x"], 3, "is a folder"),
        (["prepare", "{file}", "--out", "{tmp}/x", "--user-col", "who"], 3, "its columns are: user_id, item_id"),
        (["prepare", "{file}", "--out", "{tmp}/x", "--max-bad", "lots"], 2, "--max-bad"),
        (["prepare", "{file}", "--out", "{tmp}/x", "--time-unit", "years"], 2, "--time-unit"),
        (["prepare", "{file}", "--out", "{tmp}/x", "--split", "1,2,3"], 2, "--split"),
        (["prepare", "{file}", "--out", "{tmp}/x", "--delimiter", "abc"], 2, "--delimiter"),
        (["prepare", "{file}", "--out", "{tmp}/x", "--dataset", "nope"], 2, "wikipedia, reddit"),
        (
            ["prepare", "{file}", "--out", "{tmp}/x", "--dataset", "wikipedia", "--user-col", "u"],
            2,
            "leave out --user-col",
        ),
        (["prepare", "{file}", "--out", "{file}"], 3, "already exists"),
        (["prepare", "{file}", "--out", "{file}", "--force"], 3, "not made by dynedge"),
        (["prepare", "{file}", "--out", "{tmp}/no/such/log"], 3, "create it first"),
        (["prepare", "{file}", "--out", "{tmp}/x", "--frobnicate"], 2, "--frobnicate"),
        (["info", "{tmp}/absent"], 3, "does not exist"),
        (["info", "{tmp}"], 3, "not a log"),
        (["synth", "moon-like", "--out", "{tmp}/x"], 2, "taobao-like"),
        (["synth", "demo", "--events", "many", "--out", "{tmp}/x"], 2, "--events"),
        (["synth", "demo", "--events", "0", "--out", "{tmp}/x"], 2, "events"),
        (["fly"], 2, "fly"),
    ],
)
def test_mistakes_are_one_sentence_with_the_right_exit_code(cli_run, tmp_path, csv_file, arguments, code, words):
    before = sorted(os.listdir(tmp_path))
    exit_code, out, err = cli_run(*[word.format(file=csv_file, tmp=tmp_path) for word in arguments])
    assert exit_code == code, err
    assert len(err.strip().splitlines()) == 1, err
    assert words in err
    assert out == ""
    assert sorted(os.listdir(tmp_path)) == before
    assert csv_file.read_text() == ROWS


def test_a_closed_output_pipe_is_not_an_error(tmp_path):
    code = f"{sys.executable} -m dynedge datasets | head -n 1"
    done = subprocess.run(code, shell=True, capture_output=True, text=True, check=True)
    assert done.stderr == ""


@pytest.fixture
def processes():
    server = ForkServer()
    yield server
    assert "Traceback" not in server.close()


@pytest.mark.slow
def test_prepare_killed_at_random_times_leaves_the_old_log_the_new_one_or_none(tmp_path, processes):
    """SIGKILL 16 times at random times of the run: half with no log before, half with an old one."""
    rng = random.Random(7)
    rows = "".join(f"u{rng.randrange(5000)},{rng.randrange(900)},{rng.randrange(10**6)}\n" for _ in range(100_000))
    (tmp_path / "old.csv").write_text(ROWS)
    (tmp_path / "new.csv").write_text("user_id,item_id,timestamp\n" + rows)
    out = tmp_path / "log"

    def prepare(name, **kill):
        return processes.run("prepare", tmp_path / name, "--out", out, "--force", **kill)

    assert prepare("new.csv") == 0
    began = time.monotonic()
    assert prepare("new.csv") == 0
    whole = time.monotonic() - began
    outcomes = []
    for kill in range(16):
        if kill == 8:
            assert prepare("old.csv") == 0
        elif kill < 8:
            shutil.rmtree(out, ignore_errors=True)
        prepare("new.csv", signal=9, after=rng.uniform(0.1, 1.05) * whole)
        if not out.exists():
            assert kill < 8, "an old log was lost"
            outcomes.append("none")
            continue
        log = read_log(out)
        log.verify()
        outcomes.append({3: "old", 100_000: "new"}[len(log)])
        if kill >= 8 and outcomes[-1] == "new":
            assert prepare("old.csv") == 0
    assert {"none", "old"} <= set(outcomes), outcomes
    assert prepare("new.csv") == 0
    assert sorted(os.listdir(tmp_path)) == ["log", "new.csv", "old.csv"], "killed processes leave no temporary files"


def test_a_missing_extra_is_named(cli_run, monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    monkeypatch.delitem(sys.modules, "dynedge.serving.server_process", raising=False)
    code, _, error = cli_run("serve", tmp_path)
    assert (code, error) == (
        2,
        "dynedge: this command needs uvicorn; install it with: pip install 'dynedge[serve]'\n",
    )


def test_an_unknown_missing_module_is_a_bug(cli_run, monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "dynedge.serving.engine", None)
    code, _, error = cli_run("serve", tmp_path)
    assert code == 1
    assert "this is a bug" in error
