"""`dynedge paper`: tables and figures of a small log, resumed without training again."""

import csv
import re
from dataclasses import replace

import numpy as np
import pytest
import torch

from dynedge.data.frames import user_table
from dynedge.data.ingest.pipeline import prepare
from dynedge.data.ingest.schema import Schema
from dynedge.data.log import read_log
from dynedge.errors import DataError
from dynedge.experiments import paper, subprocess_training
from dynedge.report import paper_page
from dynedge.report.paper_page import METRICS, Column, Table, tables

SYSTEMS = {"dynamic graphs": (paper.EDGE,), "this package": ("popular",)}
SHORT = replace(paper.QUICK, events=700, epochs=1, edge_epochs=1, windows=4)


@pytest.fixture(scope="module")
def log(tmp_path_factory):
    """800 events of 12 users and 9 items; one item has more than 200 training events."""
    rng = np.random.default_rng(0)
    item = np.where(rng.random(800) < 0.5, 0, rng.integers(0, 9, 800))
    frame = {"user_id": rng.integers(0, 12, 800), "item_id": item, "timestamp": np.arange(800), "kind": item % 3,
             "size": rng.random(800)}  # fmt: skip
    schema = Schema(item_features=("kind",), features=("size",))
    users = {"user_id": np.arange(12), "team": np.arange(12) % 5}
    out = tmp_path_factory.mktemp("paper") / "log"
    return prepare(frame, out, schema, user_table=users, user_features=["team"])


@pytest.fixture(scope="module")
def folder(log, tmp_path_factory):
    """What the command writes."""
    from dynedge import cli

    out = tmp_path_factory.mktemp("out") / "paper"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(paper, "FAMILIES", SYSTEMS)
        patch.setattr(paper, "QUICK", SHORT)
        assert cli.run(["paper", str(log.path), "--out", str(out), "--quick"]) == 0
    return out


def rows_of(path):
    with open(path, encoding="utf-8") as file:
        return list(csv.DictReader(file))


def test_every_table_and_figure_is_written(folder):
    names = {f"table{k}.csv" for k in range(1, 6)} | {f"figure{k}.svg" for k in range(1, 10)}
    assert {path.name for path in folder.iterdir()} == names | {"index.html", "results.json", "log", "runs"}
    page = (folder / "index.html").read_text()
    assert re.findall(r"<h2>Table (\d)", page) == ["1", "2", "3", "4", "5"]
    assert len(re.findall(r'src="data:image/svg\+xml;base64,', page)) == 9
    assert not re.findall(r'(?:src|href)="(?!data:)', page)
    assert "default-src 'none'" in page
    assert f"torch {torch.__version__}), cpu, float32" in page
    assert 'fill="var(--paper)"' in (folder / "figure4.svg").read_text()  # follows the color scheme, as its text does


def test_the_best_value_is_bold_and_a_family_is_named_once():
    columns = Column("family", "family", is_text=True), *METRICS
    rows = [{"family": "GNNs", "mrr": 0.25}, {"family": "GNNs", "mrr": 0.5}, {"family": "other", "mrr": None}]
    shown = paper_page._section(2, {2: Table("t", "c", columns, rows)})
    assert re.findall(r"<b>(.*?)</b>", shown) == ["0.5000"]
    assert [len(re.findall(f">{name}<", shown)) for name in ("GNNs", "other")] == [1, 1]
    assert "<td>–</td>" in shown


def test_numbers_have_intervals(folder):
    (own, *published), systems = rows_of(folder / "table1.csv"), rows_of(folder / "table2.csv")
    assert (own["users"], own["events"]) == ("12", "700")
    assert len(published) == 4
    assert {row["model"] for row in systems} == {"edge-paper-small", "popular"}
    for row in systems:
        for name in ("mrr", "recall@10", "seconds_per_epoch"):
            assert float(row[f"{name}_low"]) <= float(row[name]) <= float(row[f"{name}_high"])
    assert [row["model"] for row in rows_of(folder / "table3.csv")] == ["edge-paper-small"]
    paths = rows_of(folder / "table4.csv")
    assert [row["dnodes"] for row in paths] == ["0", "10", "20", "40", "80", "160", "320", "640"]
    assert float(paths[0]["algorithm2_path"]) == float(paths[0]["cut_path"]) >= 1
    shorter = [float(row["algorithm2_path"]) for row in paths]
    assert shorter == sorted(shorter, reverse=True)
    assert 1 <= shorter[-1] < shorter[0] / 10
    ladder = rows_of(folder / "table5.csv")
    assert [(row["n_users"], row["active_items"]) for row in ladder] == [("200", "1"), ("400", "1"), ("∞", "0")]
    assert ladder[-1]["mrr"] == next(row["mrr"] for row in systems if row["model"] == "edge-paper-small")


def test_a_second_call_trains_nothing(folder, log, monkeypatch):
    monkeypatch.setattr(paper, "FAMILIES", SYSTEMS)
    monkeypatch.setattr(subprocess_training, "run_in_subprocess", None)  # a call would fail
    results = paper.run_paper(log, folder, SHORT)
    assert all(row["error"] is None for row in results["systems"]["rows"])
    with pytest.raises(DataError, match="belongs to another log"):
        paper.last_events(log, 600, folder / "log")


def test_the_papers_numbers_are_beside_ours_on_its_logs(folder, log, monkeypatch):
    monkeypatch.setattr(paper, "FAMILIES", SYSTEMS)
    results = {**paper.run_paper(log, folder, SHORT), "paper_log": "ml-25m"}
    made = tables(results)
    assert next(row for row in made[2].rows if row["model"] == "edge-paper-small")["paper_mrr"] == 0.397
    assert [row["paper_path"] for row in made[4].rows][:2] == [209.75, 164.05]
    assert [row["paper_minutes"] for row in made[5].rows] == [12.72, 22.79, 1254.0]
    plain = tables({**results, "paper_log": None})
    assert not any(column.key.startswith("paper") for table in plain.values() for column in table.columns)


def test_the_last_events_keep_features_and_categories(folder, log):
    part = read_log(folder / "log")
    assert np.array_equal(part.features, log.features[100:])
    assert np.array_equal(part.time, log.time[100:])
    kinds = [one.category_ids[0] for one in (part, log)]
    codes = [one.item_categories[one.item, 0].tolist() for one in (part, log)]
    names = [[ids[code] for code in of] for ids, of in zip(kinds, codes, strict=True)]
    assert names[0] == names[1][100:]
    teams = user_table(part).to_pydict()
    assert [int(team) for team in teams["team"]] == [user % 5 for user in teams["user_id"]]


def test_out_must_be_a_folder(cli_run, log, tmp_path):
    (tmp_path / "file").write_text("")
    code, _, err = cli_run("paper", log.path, "--out", tmp_path / "file")
    assert (code, "is a file" in err) == (2, True)
    code, _, err = cli_run("paper", log.path, "--out", tmp_path / "a" / "b")
    assert (code, "does not exist" in err) == (2, True)
