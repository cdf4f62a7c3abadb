"""The demo, on a shorter log and with one epoch: every verb it shows works, the verdict and the lists are there."""


def test_the_demo_goes_the_whole_way(monkeypatch, tmp_path, capsys):
    from dynedge import cli
    from dynedge.cli import compare, data, demo, plan, recommend, train  # noqa: F401

    monkeypatch.setattr(demo, "EPOCHS", "1")
    monkeypatch.setattr(demo, "RULES", {"counts": ["--epochs", "1"], "next": [], "recent": [], "popular": []})
    assert cli.run(["demo", "--out", str(tmp_path / "demo"), "--events", "4000"]) == 0
    said = capsys.readouterr().out
    shown = [line.split()[2] for line in said.splitlines() if line.startswith("$ dynedge ")]
    assert shown == ["prepare", "info", "plan", *["train"] * 5, "compare", "recommend"]
    for name in ("edge", *demo.RULES):
        assert sum(line.startswith(f"{tmp_path / 'demo' / name} ") for line in said.splitlines()) == 2, "two tables"
    for user in demo.USERS:
        assert f"\n{user}" in said
    pictures = sorted(path.name for path in (tmp_path / "demo").glob("*.png"))
    assert pictures == ["compare.png", "edge.png", "log.png", "plan.png"]
    assert (
        said.splitlines()[-1] == f"  dynedge serve {tmp_path / 'demo' / 'edge'} --replay {tmp_path / 'demo' / 'log'}"
    )
    assert cli.run(["demo", "--out", str(tmp_path / "demo")]) == 3, "it does not write over what is there"
