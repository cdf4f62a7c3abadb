"""`dynedge update`: continues a run on a log that has gained events."""

import json

import numpy as np
import pytest
from training import toy_model as toy

from dynedge.data.id_index import IdIndex
from dynedge.data.log_writer import LogWriter
from dynedge.runs.folder import load_run
from dynedge.training.step import TrainingStep

pytestmark = pytest.mark.usefixtures("toy_models")


def write_log(out, events, other=0, genre=False):
    """The first events of one log; later ones have new users and items. `other` changes them from the start."""
    user, item = toy.events(900)
    user[600:], item[600:] = user[600:] + 5, item[600:] + 3
    user, item = np.roll(user[:events], other), item[:events]
    with LogWriter(out) as writer:
        writer.column("user", np.int32).append(user)
        writer.column("item", np.int32).append(item)
        writer.column("time", np.float64).append(np.arange(events))
        users, items = int(user.max()) + 1, int(item.max()) + 1
        writer.ids("user_ids", IdIndex.from_ids([f"user {k}" for k in range(users)]))
        writer.ids("item_ids", IdIndex.from_ids(range(items)))
        if genre:
            writer.column("item_categories", np.int32, 1).append(np.zeros((items, 1), np.int32))
            writer.ids("category_0_ids", IdIndex.from_ids(["drama"]))
        writer.finish(events=events, users=users, items=items, item_features=["genre"] * genre)
    return out


@pytest.fixture
def logs(tmp_path):
    return write_log(tmp_path / "old", 600), write_log(tmp_path / "log", 900)


@pytest.fixture
def run(cli_run, tmp_path, logs):
    settings = ["--epochs", "2", "--lr", "0.02", "--set", "training.checkpoint_windows=1"]
    assert cli_run("train", logs[0], "--out", tmp_path / "run", *settings)[0] == 0
    return tmp_path / "run"


def test_an_update_is_a_new_run_with_a_parent(cli_run, run, logs, tmp_path):
    before = {path.name: path.read_bytes() for path in run.iterdir() if path.is_file()}
    code, out, err = cli_run("update", run, logs[1], "--out", tmp_path / "new", "--json")
    assert code == 0, err
    assert json.loads(out)["parent"] == str(run)
    assert {path.name: path.read_bytes() for path in run.iterdir() if path.is_file()} == before
    info = json.loads((tmp_path / "new" / "run_info.json").read_bytes())["update"]
    assert (info["parent"], info["trained_events"], info["new_events"]) == (str(run), 480, 240)
    assert info["first_event"] == 240  # as many old events as new ones
    old, new = load_run(run).model.state_dict(), load_run(tmp_path / "new").model.state_dict()
    assert (len(old["user"]), len(new["user"])) == (20, 25)
    assert not (old["user"] == new["user"][:20]).all()
    assert cli_run("evaluate", tmp_path / "new")[0] == 0
    code, _, err = cli_run("train", logs[1], "--out", tmp_path / "new", "--resume")
    assert (code, "resume it with: dynedge update" in err) == (2, True)


@pytest.mark.parametrize("steps", [1, 9])
def test_a_killed_and_resumed_update_has_the_same_bits(cli_run, run, logs, tmp_path, monkeypatch, steps):
    assert cli_run("update", run, logs[1], "--out", tmp_path / "whole")[0] == 0
    step, done = TrainingStep.run, []

    def killed(self, *arguments):
        if len(done) == steps:
            raise SystemExit
        done.append(arguments)
        return step(self, *arguments)

    monkeypatch.setattr(TrainingStep, "run", killed)
    with pytest.raises(SystemExit):
        cli_run("update", run, logs[1], "--out", tmp_path / "broken")
    monkeypatch.undo()
    code, _, err = cli_run("evaluate", tmp_path / "broken")
    assert (code, f"dynedge update {run} LOG" in err) == (3, True)
    code, _, err = cli_run("update", run, logs[1], "--out", tmp_path / "broken", "--resume", "--rate", "0.1")
    assert (code, "started with rate 0.5, not 0.1" in err) == (2, True)
    assert cli_run("update", run, logs[1], "--out", tmp_path / "broken", "--resume")[0] == 0
    for name in ("model.safetensors", "state.safetensors"):
        assert (tmp_path / "broken" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()


def test_mistakes_are_one_sentence_and_change_nothing(cli_run, run, logs, tmp_path):
    cases = [
        (3, "adds nothing to train on", logs[0]),
        (3, "are not those of the run's log", write_log(tmp_path / "other", 900, other=1)),
        (
            3,
            "its items have 1 features, and those of the run's log 0",
            write_log(tmp_path / "genre", 900, genre=True),
        ),
        (3, "it has 300 events, and the run's log has 600", write_log(tmp_path / "short", 300)),
    ]
    for expected, words, log in cases:
        code, out, err = cli_run("update", run, log, "--out", tmp_path / "new")
        assert (code, out, words in err, err.count("\n")) == (expected, "", True, 1), err
        assert not (tmp_path / "new").exists()
    for flag in ("--replay", "--rate"):
        code, _, err = cli_run("update", run, logs[1], "--out", tmp_path / "new", flag, "inf")
        assert (code, flag in err, (tmp_path / "new").exists()) == (2, True, False)
    assert cli_run("update", run, logs[1], "--out", run)[0] == 3
    code, _, err = cli_run("update", run, logs[1], "--out", run, "--force")
    assert (code, "is the run to update" in err) == (2, True)
    assert load_run(run)
