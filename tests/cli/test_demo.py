"""The command demo, on a shorter log and with one epoch."""

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
        assert sum(line.startswith(f"{out / name} ") for line in lines) == 2, "two tables"
    for user in demo.USERS:
        assert f"\n{user}" in printed
    plots = sorted(path.name for path in out.glob("*.png"))
    assert plots == ["compare.png", "edge.png", "log.png", "plan.png"]
    assert lines[-1] == f"  dynedge serve {out / 'edge'} --replay {out / 'log'}"
    assert cli.run(["demo", "--out", str(out)]) == 3, "it does not overwrite an existing folder"
