"""Checkpoints: whole or not there, damage found out and said, killed at every step of writing."""

import json
import os
import re
import signal
from pathlib import Path

import pytest
import torch

import dynedge
from dynedge.errors import DataError
from dynedge.models.base import State
from dynedge.training.checkpoint import Checkpoint, Checkpoints
from dynedge.utils import tensor_io as files
from dynedge.utils.atomic_io import write_text
from dynedge.utils.tensor_io import load_tensors, save_tensors, select_prefix, with_prefixes


def checkpoint(value, best=None):
    current = {"a": torch.full((3,), float(value)), "b": torch.tensor(value)}
    return Checkpoint({"current": current} | ({"best": best} if best else {}), {"value": value, "third": 1 / 3})


def value_of(folder):
    found = Checkpoints(folder).load()
    if found is None:
        return None
    assert found.parts["current"]["a"].tolist() == [found.metadata["value"]] * 3
    return found.metadata["value"]


def test_saved_and_loaded(tmp_path):
    kept = Checkpoints(tmp_path)
    assert kept.load() is None
    best = {"w": torch.arange(4, dtype=torch.bfloat16)}
    for value in range(5):
        kept.save(checkpoint(value, best))
    loaded = Checkpoints(tmp_path).load()
    assert loaded.metadata == {"value": 4, "third": 1 / 3}
    assert torch.equal(loaded.parts["best"]["w"], best["w"])
    assert sorted(os.listdir(tmp_path)) == [
        "000004.json",
        "000005.json",
        "best-000001.safetensors",  # the same dict all along: written once
        "current-000004.safetensors",
        "current-000005.safetensors",
    ]


def test_a_loaded_part_is_not_written_again(tmp_path):
    Checkpoints(tmp_path).save(checkpoint(1, {"w": torch.ones(2)}))
    again = Checkpoints(tmp_path)
    loaded = again.load()
    again.save(checkpoint(2, loaded.parts["best"]))
    assert (tmp_path / "best-000001.safetensors").exists()
    assert not (tmp_path / "best-000002.safetensors").exists()


@pytest.mark.parametrize("file", ["000002.json", "current-000002.safetensors"])
@pytest.mark.parametrize("damage", ["truncate", "alter", "remove", "empty"])
def test_a_damaged_one_is_said_aloud_and_the_one_before_used(tmp_path, capsys, file, damage):
    kept = Checkpoints(tmp_path)
    kept.save(checkpoint(1))
    kept.save(checkpoint(2))
    path = tmp_path / file
    raw = path.read_bytes()
    middle = raw.index(b'"value": 2') + 9 if file.endswith("json") else len(raw) - 2
    if damage == "remove":
        path.unlink()
        if file.endswith("json"):
            assert value_of(tmp_path) == 1, "without its manifest there is no checkpoint"
            return
    else:
        altered = raw[:middle] + bytes([raw[middle] ^ 1]) + raw[middle + 1 :]
        path.write_bytes({"truncate": raw[: len(raw) // 2], "alter": altered, "empty": b""}[damage])
    assert value_of(tmp_path) == 1
    told = capsys.readouterr().err
    assert "checkpoint 2 is not used" in told
    assert file in told
    again = Checkpoints(tmp_path)
    again.load()
    again.save(checkpoint(3))
    assert value_of(tmp_path) == 3
    assert sorted(path.name for path in tmp_path.glob("*.json")) == ["000001.json", "000003.json"]


def test_when_all_are_damaged_it_refuses(tmp_path):
    Checkpoints(tmp_path).save(checkpoint(1))
    (tmp_path / "current-000001.safetensors").write_bytes(b"{}")
    with pytest.raises(DataError, match="no usable checkpoint"):
        Checkpoints(tmp_path).load()


@pytest.mark.parametrize("body", ["[]", "3", '{"sha256": "x"}', "[" * 100_000, '{"a": NaN', "\0"])
def test_a_hostile_manifest_is_damage_like_any_other(tmp_path, body):
    (tmp_path / "000001.json").write_text(body)
    with pytest.raises(DataError, match="no usable checkpoint"):
        Checkpoints(tmp_path).load()


def test_another_version_is_named(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("dynedge.training.checkpoint.VERSION", 3)
    Checkpoints(tmp_path).save(checkpoint(1))
    monkeypatch.undo()
    with pytest.raises(DataError):
        Checkpoints(tmp_path).load()
    assert "has format version 3; this dynedge reads version 2" in capsys.readouterr().err


def steps_of_saving(folder, monkeypatch):
    """How many system calls of note a save makes."""
    calls = []
    for name in ("fsync", "replace", "unlink"):
        real = getattr(os, name)
        monkeypatch.setattr(os, name, lambda *a, real=real, name=name, **k: (calls.append(name), real(*a, **k))[1])
    kept = Checkpoints(folder)
    kept.load()
    kept.save(checkpoint(3, {"w": torch.ones(2)}))
    monkeypatch.undo()
    return calls


def killed_at(folder, step, when):
    """Save in a child that SIGKILLs itself right before or right after its step-th call."""
    child = os.fork()
    if child:
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
        return
    count = 0

    def deadly(real):
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
        setattr(os, name, deadly(getattr(os, name)))
    try:
        kept = Checkpoints(folder)
        kept.load()
        kept.save(checkpoint(3, {"w": torch.ones(2)}))
    finally:
        os._exit(0)


def test_killed_at_every_step_of_saving_the_old_one_or_the_new_is_there(tmp_path, monkeypatch, capsys):
    def fresh(name):
        folder = tmp_path / name
        folder.mkdir()
        kept = Checkpoints(folder)
        kept.save(checkpoint(1))
        kept.save(checkpoint(2))
        return folder

    calls = steps_of_saving(fresh("count"), monkeypatch)
    assert calls[:3] == ["fsync", "replace", "fsync"], calls
    assert calls.count("replace") == 3, "two parts and the manifest"
    found = []
    for step in range(1, len(calls) + 1):
        for when in ("before", "after"):
            folder = fresh(f"{step}-{when}")
            killed_at(folder, step, when)
            found.append(value_of(folder))
            kept = Checkpoints(folder)
            kept.load()
            kept.save(checkpoint(4))
            assert value_of(folder) == 4
            assert len(os.listdir(folder)) in (4, 5), "what the killed one left is gone"
    assert found == sorted(found), "first the old one, then the new"
    assert set(found) == {2, 3}
    assert capsys.readouterr().err == "", "a kill is no damage"


def test_tensors_of_all_kinds_come_back_bit_for_bit(tmp_path):
    base = torch.randn(6, 4)
    tensors = {
        "scalar": torch.tensor(3),
        "empty": torch.zeros(0, 5),
        "view": base[:, 1:3],
        "tied": base,
        "tied too": base,
        "bool": torch.tensor([True, False]),
        "odd": torch.tensor([float("nan"), float("inf"), -0.0]),
    }
    save_tensors(tmp_path / "x.safetensors", tensors)
    back = load_tensors(tmp_path / "x.safetensors")
    assert back.keys() == tensors.keys()
    for name, tensor in tensors.items():
        assert back[name].dtype == tensor.dtype
        assert back[name].numpy().tobytes() == tensor.contiguous().numpy().tobytes()


def test_a_file_may_be_read_by_whom_the_umask_lets(tmp_path):
    old = os.umask(0o022)
    try:
        save_tensors(tmp_path / "x.safetensors", {"a": torch.ones(1)})
    finally:
        os.umask(old)
    assert (tmp_path / "x.safetensors").stat().st_mode & 0o777 == 0o644


def test_groups_of_tensors():
    one = torch.ones(1)
    both = with_prefixes(model={"a.b": one}, state={"c": one})
    assert list(both) == ["model.a.b", "state.c"]
    assert list(select_prefix(both, "model")) == ["a.b"]


@pytest.mark.parametrize(
    "raw", [b"", b"\xff" * 8, b"\x80" + b"\0" * 7 + b"{" * 200, (2).to_bytes(8, "little") + b"[]"]
)
def test_a_hostile_tensor_file_is_a_data_error(tmp_path, raw):
    (tmp_path / "x.safetensors").write_bytes(raw)
    with pytest.raises(DataError, match="damaged"):
        load_tensors(tmp_path / "x.safetensors")
    with pytest.raises(DataError, match="missing"):
        load_tensors(tmp_path / "y.safetensors")


def test_a_full_disk_is_one_sentence_and_the_old_file_stays(tmp_path, monkeypatch):
    def full(*_):
        raise files.SafetensorError("Error while serializing: I/O error: No space left on device (os error 28)")

    save_tensors(tmp_path / "x.safetensors", {"a": torch.ones(1)})
    monkeypatch.setattr(files, "save_file", full)
    with pytest.raises(
        DataError, match=r"x.safetensors: the disk is full; free some space and continue with --resume"
    ):
        save_tensors(tmp_path / "x.safetensors", {"a": torch.zeros(1)})
    assert load_tensors(tmp_path / "x.safetensors")["a"].item() == 1


def test_text_is_replaced_whole(tmp_path):
    write_text(tmp_path / "t", "one")
    write_text(tmp_path / "t", "zwei ü")
    assert (tmp_path / "t").read_text(encoding="utf-8") == "zwei ü"
    assert os.listdir(tmp_path) == ["t"]


def test_nothing_is_pickled_anywhere():
    forbidden = re.compile(
        r"\bimport pickle|\bpickle\.|torch\.(save|load)\(|allow_pickle=True|joblib|\bmarshal\b|\bdill\b"
    )
    sources = list(Path(dynedge.__file__).parent.rglob("*.py"))
    assert len(sources) > 30
    for path in sources:
        assert not forbidden.search(path.read_text(encoding="utf-8")), f"{path} pickles"


def test_the_manifest_says_where_training_stands(tmp_path):
    Checkpoints(tmp_path).save(checkpoint(7))
    manifest = json.loads((tmp_path / "000001.json").read_text())
    assert manifest["metadata"]["value"] == 7
    assert set(manifest["files"]["current"]) == {"file", "sha256"}


def test_a_state_beside_another_is_where_that_one_is_and_in_its_order():
    """Which tensor comes first says where scores are made: a file has them by name."""
    loaded = State(had=torch.ones(2), user=torch.ones(3), extra=torch.ones(1))
    placed = loaded.beside(State(user=torch.empty(3, device="meta"), had=torch.empty(0)))
    assert [(name, tensor.device.type) for name, tensor in placed.items()] == [
        ("user", "meta"),
        ("had", "cpu"),
        ("extra", "cpu"),
    ]
