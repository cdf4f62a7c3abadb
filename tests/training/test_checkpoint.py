"""Checkpoints are complete or absent, damage is detected and reported, and a kill at any step of writing is safe."""

import json
import os
import signal

import pytest
import torch

from dynedge.errors import DataError
from dynedge.models.base import State
from dynedge.training.checkpoint import VERSION, Checkpoint, Checkpoints


def checkpoint(value, best=None):
    current = {"a": torch.full((3,), float(value)), "b": torch.tensor(value)}
    return Checkpoint({"current": current} | ({"best": best} if best else {}), {"value": value, "third": 1 / 3})


def value_of(folder):
    loaded = Checkpoints(folder).load()
    if loaded is None:
        return None
    assert loaded.parts["current"]["a"].tolist() == [loaded.metadata["value"]] * 3
    return loaded.metadata["value"]


def test_the_newest_of_several_checkpoints_is_loaded(tmp_path):
    checkpoints = Checkpoints(tmp_path)
    assert checkpoints.load() is None
    best = {"w": torch.arange(4, dtype=torch.bfloat16)}
    for value in range(5):
        checkpoints.save(checkpoint(value, best))
    loaded = Checkpoints(tmp_path).load()
    assert loaded.metadata == {"value": 4, "third": 1 / 3}
    assert torch.equal(loaded.parts["best"]["w"], best["w"])
    assert sorted(os.listdir(tmp_path)) == [
        "000004.json",
        "000005.json",
        "best-000001.safetensors",  # the same dict in every checkpoint: written once
        "current-000004.safetensors",
        "current-000005.safetensors",
    ]


def test_an_unchanged_part_is_not_written_again(tmp_path):
    Checkpoints(tmp_path).save(checkpoint(1, {"w": torch.ones(2)}))
    again = Checkpoints(tmp_path)
    loaded = again.load()
    again.save(checkpoint(2, loaded.parts["best"]))
    assert (tmp_path / "best-000001.safetensors").exists()
    assert not (tmp_path / "best-000002.safetensors").exists()


@pytest.mark.parametrize("file", ["000002.json", "current-000002.safetensors"])
@pytest.mark.parametrize("damage", ["truncate", "alter", "remove", "empty"])
def test_a_damaged_checkpoint_is_reported_and_the_previous_one_used(tmp_path, capsys, file, damage):
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(checkpoint(1))
    checkpoints.save(checkpoint(2))
    path = tmp_path / file
    raw = path.read_bytes()
    middle = raw.index(b'"value": 2') + 9 if file.endswith("json") else len(raw) - 2
    if damage == "remove":
        path.unlink()
        if file.endswith("json"):
            assert value_of(tmp_path) == 1, "without its manifest a checkpoint does not exist"
            return
    else:
        altered = raw[:middle] + bytes([raw[middle] ^ 1]) + raw[middle + 1 :]
        path.write_bytes({"truncate": raw[: len(raw) // 2], "alter": altered, "empty": b""}[damage])
    assert value_of(tmp_path) == 1
    message = capsys.readouterr().err
    assert "checkpoint 2 is not used" in message
    assert file in message
    again = Checkpoints(tmp_path)
    again.load()
    again.save(checkpoint(3))
    assert value_of(tmp_path) == 3
    assert sorted(path.name for path in tmp_path.glob("*.json")) == ["000001.json", "000003.json"]


def test_if_all_checkpoints_are_damaged_loading_fails(tmp_path):
    Checkpoints(tmp_path).save(checkpoint(1))
    (tmp_path / "current-000001.safetensors").write_bytes(b"{}")
    with pytest.raises(DataError, match="no usable checkpoint"):
        Checkpoints(tmp_path).load()


@pytest.mark.parametrize("body", ["[]", "3", '{"sha256": "x"}', "[" * 100_000, '{"a": NaN', "\0"])
def test_a_malformed_manifest_counts_as_damaged(tmp_path, body):
    (tmp_path / "000001.json").write_text(body)
    with pytest.raises(DataError, match="no usable checkpoint"):
        Checkpoints(tmp_path).load()


def test_another_format_version_is_reported(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("dynedge.training.checkpoint.VERSION", VERSION + 1)
    Checkpoints(tmp_path).save(checkpoint(1))
    monkeypatch.undo()
    with pytest.raises(DataError):
        Checkpoints(tmp_path).load()
    assert f"has format version {VERSION + 1}; this dynedge reads version {VERSION}" in capsys.readouterr().err


def system_calls_of_save(folder, monkeypatch):
    """Returns the fsync, replace and unlink calls of a save, in order."""
    calls = []
    for name in ("fsync", "replace", "unlink"):
        real = getattr(os, name)
        monkeypatch.setattr(os, name, lambda *a, real=real, name=name, **k: (calls.append(name), real(*a, **k))[1])
    checkpoints = Checkpoints(folder)
    checkpoints.load()
    checkpoints.save(checkpoint(3, {"w": torch.ones(2)}))
    monkeypatch.undo()
    return calls


def save_and_kill(folder, step, when):
    """Saves in a child process that kills itself right before or right after its step-th system call."""
    child = os.fork()
    if child:
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
        return
    count = 0

    def killing(real):
        def call(*arguments, **more):
            nonlocal count
            count += 1
            if count == step and when == "before":
                os.kill(os.getpid(), signal.SIGKILL)
            result = real(*arguments, **more)
            if count == step:
                os.kill(os.getpid(), signal.SIGKILL)
            return result

        return call

    for name in ("fsync", "replace", "unlink"):
        setattr(os, name, killing(getattr(os, name)))
    try:
        checkpoints = Checkpoints(folder)
        checkpoints.load()
        checkpoints.save(checkpoint(3, {"w": torch.ones(2)}))
    finally:
        os._exit(0)


@pytest.mark.slow
def test_a_kill_at_any_step_of_saving_leaves_the_old_or_the_new_checkpoint(tmp_path, monkeypatch, capsys):
    def fresh(name):
        folder = tmp_path / name
        folder.mkdir()
        checkpoints = Checkpoints(folder)
        checkpoints.save(checkpoint(1))
        checkpoints.save(checkpoint(2))
        return folder

    calls = system_calls_of_save(fresh("count"), monkeypatch)
    assert calls[:3] == ["fsync", "replace", "fsync"], calls
    assert calls.count("replace") == 3, "two parts and the manifest"
    values = []
    for step in range(1, len(calls) + 1):
        for when in ("before", "after"):
            folder = fresh(f"{step}-{when}")
            save_and_kill(folder, step, when)
            values.append(value_of(folder))
            checkpoints = Checkpoints(folder)
            checkpoints.load()
            checkpoints.save(checkpoint(4))
            assert value_of(folder) == 4
            assert len(os.listdir(folder)) in (4, 5), "files of the killed process are deleted"
    assert values == sorted(values), "first the old checkpoint, then the new one"
    assert set(values) == {2, 3}
    assert capsys.readouterr().err == "", "a kill does not count as damage"


def test_the_manifest_holds_the_metadata(tmp_path):
    Checkpoints(tmp_path).save(checkpoint(7))
    manifest = json.loads((tmp_path / "000001.json").read_text())
    assert manifest["metadata"]["value"] == 7
    assert set(manifest["files"]["current"]) == {"file", "sha256"}


def test_a_loaded_state_is_placed_on_the_devices_of_another():
    loaded = State(counts=torch.ones(2), user=torch.ones(3), extra=torch.ones(1))
    placed = loaded.placed_like(State(user=torch.empty(3, device="meta"), counts=torch.empty(0)))
    assert {name: tensor.device.type for name, tensor in placed.items()} == {
        "user": "meta",
        "counts": "cpu",
        "extra": "cpu",
    }
