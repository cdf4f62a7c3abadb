"""`dynedge plan`: the JSON, the table, the picture, and one sentence for every bad flag."""

from __future__ import annotations

import builtins
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dynedge.cli.plan
from dynedge.cli import run
from dynedge.data.id_index import IdIndex
from dynedge.data.log import LogWriter


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("verb") / "log"
    rng = np.random.default_rng(0)
    user, item = (rng.zipf(1.6, (2, 1500)) - 1) % [[50], [30]]
    with LogWriter(path) as writer:
        writer.column("user", np.int32).append(user)
        writer.column("item", np.int32).append(item)
        writer.column("time", np.float64).append(np.arange(1500))
        writer.ids("user_ids", IdIndex.from_ids([f"u{k}" for k in range(50)]))
        writer.ids("item_ids", IdIndex.from_ids(range(30)))
        writer.finish(events=1500, users=50, items=30, item_features=[], split="0.7,0.1,0.2")
    return str(path)


def answer(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    assert run(["plan", *arguments, "--json"]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def test_json_has_what_was_promised_and_uses_the_logs_own_split(log: str, capsys: pytest.CaptureFixture[str]) -> None:
    found = answer(capsys, log, "--windows", "6", "--dnodes", "4")
    promised = {"windows", "events", "mean_longest_path", "max_longest_path", "mean_dnodes", "seconds"}
    assert promised <= set(found)
    assert (found["windows"], found["events"]) == (6, 1050)
    assert 0 < found["mean_longest_path"] <= found["max_longest_path"] <= 175
    assert 0 < found["mean_dnodes"] <= 4
    assert found["seconds"] > 0
    assert "table" not in found


def test_split_depth_and_thresholds_matter(log: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert answer(capsys, log, "--windows", "6", "--split", "0.5,0.2,0.3", "--depth", "5")["events"] == 750
    assert answer(capsys, log, "--windows", "6", "--depth", "5")["max_longest_path"] <= 5
    uncut = answer(capsys, log, "--windows", "6", "--dnodes", "0")
    active = answer(capsys, log, "--windows", "6", "--dnodes", "0", "--active-users", "50", "--active-items", "50")
    assert active["mean_longest_path"] < uncut["mean_longest_path"]


def test_a_second_plan_comes_from_the_cache_unless_told_not_to(log: str, capsys: pytest.CaptureFixture[str]) -> None:
    asked = [log, "--windows", "9", "--dnodes", "3"]
    assert not answer(capsys, *asked, "--no-cache")["cached"]
    first, second = answer(capsys, *asked), answer(capsys, *asked)
    assert (first["cached"], second["cached"]) == (False, True)
    for changing in ("cached", "seconds"):
        first.pop(changing), second.pop(changing)
    assert first == second
    assert not answer(capsys, *asked, "--no-cache")["cached"]


def test_asked_by_nothing_it_cuts_nothing_and_prints_table_4(log: str, capsys: pytest.CaptureFixture[str]) -> None:
    found = answer(capsys, log, "--windows", "4")
    assert (found["dnodes"], found["mean_dnodes"]) == (0, 0)
    table = found["table"]
    assert [row["dnodes"] for row in table if row["method"] == "best"] == [0, 10, 20, 40, 80, 160, 320, 640]
    assert [row["parts"] for row in table if row["method"] == "cut-by-time"] == [1, 2, 4, 8, 16, 32, 64, 128]
    for method in ("best", "longest-path", "cut-by-time"):
        rows = [row for row in table if row["method"] == method]
        assert rows[0]["mean_longest_path"] == found["mean_longest_path"]
        assert rows[-1]["mean_longest_path"] < rows[0]["mean_longest_path"]
        assert rows[-1]["epoch_seconds"]["h200"] < rows[0]["epoch_seconds"]["h200"]

    assert run(["plan", log, "--windows", "4"]) == 0
    printed = capsys.readouterr()
    assert "longest path" in printed.out
    assert all(f"\n{k:8}  " in printed.out for k in (0, 640, 128))


def test_a_large_log_is_compared_on_some_windows(
    log: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dynedge.cli.plan, "SURVEY_EVENTS", 400)
    found = answer(capsys, log, "--windows", "7")
    assert {row["windows"] for row in found["table"]} == {3}


def test_more_windows_than_events(log: str, capsys: pytest.CaptureFixture[str]) -> None:
    found = answer(capsys, log, "--windows", "3000", "--dnodes", "2", "--no-cache")
    assert (found["windows"], found["max_longest_path"]) == (3000, 1)


def test_a_budget_is_kept_or_refused(log: str, capsys: pytest.CaptureFixture[str]) -> None:
    whole = answer(capsys, log, "--windows", "4", "--dnodes", "0")["epoch_seconds"]["h200"]
    found = answer(capsys, log, "--windows", "4", "--budget", str(whole / 2), "--machine", "h200")
    assert found["epoch_seconds"]["h200"] <= whole / 2
    assert found["mean_dnodes"] > 0
    assert run(["plan", log, "--budget", "1e-9", "--machine", "h200"]) == 2
    assert "--budget 1e-09 cannot be met" in capsys.readouterr().err


BAD = {
    "--method worst": "--method 'worst' is not known; there are: best, longest-path, depth, cut-by-time.",
    "--dnodes 5 --depth 6": "--dnodes and --depth cannot be given together",
    "--dnodes 5 --budget 6": "--dnodes and --budget cannot be given together",
    "--dnodes -1": "--dnodes -1 should be at least 0",
    "--depth 0": "--depth 0 should be at least 1",
    "--parts 0 --method cut-by-time": "--parts 0 should be at least 1",
    "--windows 0": "--windows 0 should be at least 1",
    "--active-users -3": "--active-users -3 should be at least 0",
    "--active-items -3": "--active-items -3 should be at least 0",
    "--budget 0": "--budget 0 should be a number of seconds above 0",
    "--budget nan": "--budget nan should be a number of seconds above 0",
    "--method cut-by-time --dnodes 5": "--method cut-by-time is asked by --parts, not by --dnodes",
    "--method longest-path --depth 5": "--method longest-path is asked by --dnodes, not by --depth",
    "--method longest-path --budget 5": "--method longest-path is asked by --dnodes, not by --budget",
    "--split 0.9,0.2": "--split '0.9,0.2' should be three fractions",
    "--machine abacus": "--machine 'abacus' is not known; there are: cpu, h200.",
    "--plot picture.txt": "--plot picture.txt should end in one of",
    "--plot no/such/folder/p.png": "there is no folder",
    "--windows many": "Invalid value for '--windows'",
}


@pytest.mark.parametrize("flags", BAD)
def test_a_bad_flag_is_one_sentence_and_exit_2(log: str, flags: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["plan", log, *flags.split()]) == 2
    printed = capsys.readouterr()
    assert BAD[flags] in printed.err
    assert printed.err.count("\n") == 1
    assert printed.out == ""


def test_no_such_log(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["plan", "no-such-log"]) == 3
    assert "no-such-log does not exist" in capsys.readouterr().err


@pytest.mark.parametrize("flags", [[], ["--dnodes", "3", "--active-items", "60"]])
def test_a_picture(log: str, flags: list[str], tmp_path: Path) -> None:
    assert run(["plan", log, "--windows", "3", "--plot", str(tmp_path / "p.png"), *flags]) == 0
    assert (tmp_path / "p.png").read_bytes().startswith(b"\x89PNG")


def test_a_picture_without_matplotlib(
    log: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    real = builtins.__import__

    def without(name: str, *rest: Any) -> Any:
        if name.startswith("matplotlib"):
            raise ImportError(name)
        return real(name, *rest)

    monkeypatch.setattr(builtins, "__import__", without)
    assert run(["plan", log, "--plot", str(tmp_path / "p.png")]) == 2
    assert "pip install 'dynedge[plots]'" in capsys.readouterr().err
