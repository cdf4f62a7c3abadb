"""Atomic files and folders. tests/data/test_log.py kills a writer of a folder at every step."""

import hashlib
import os

import pytest

from dynedge.errors import DataError
from dynedge.utils import atomic_io
from dynedge.utils.atomic_io import atomic_folder, file_sha256, write_atomically, write_text


def test_text_files_are_replaced_atomically(tmp_path):
    write_text(tmp_path / "t", "one")
    write_text(tmp_path / "t", "zwei ü")
    assert (tmp_path / "t").read_text(encoding="utf-8") == "zwei ü"
    assert os.listdir(tmp_path) == ["t"]


def test_a_failed_write_leaves_the_old_file(tmp_path):
    def fail(path):
        path.write_text("half")
        raise RuntimeError

    write_text(tmp_path / "t", "old")
    with pytest.raises(RuntimeError):
        write_atomically(tmp_path / "t", fail)
    assert (tmp_path / "t").read_text() == "old"


def test_file_sha256(tmp_path):
    (tmp_path / "t").write_bytes(b"abc" * 100_000)
    assert file_sha256(tmp_path / "t") == hashlib.sha256(b"abc" * 100_000).hexdigest()


def replace_folder(out, text):
    with atomic_folder(out, force=True, is_ours=lambda _: True) as folder:
        (folder / "t").write_text(text)


@pytest.mark.parametrize("has_exchange", [True, False])
def test_a_folder_is_replaced_with_and_without_an_atomic_exchange(tmp_path, monkeypatch, has_exchange):
    if not has_exchange:
        monkeypatch.setattr(atomic_io, "_exchange", lambda *_: False)
    for text in ("one", "two"):
        replace_folder(tmp_path / "out", text)
        assert (tmp_path / "out" / "t").read_text() == text
        assert os.listdir(tmp_path) == ["out"]


def test_everything_is_on_the_disk_before_a_folder_or_file_gets_its_name(tmp_path, monkeypatch):
    calls, fsync, rename, replace = [], os.fsync, os.rename, os.replace

    def record(name, real):
        def call(*arguments):
            paths = [os.readlink(f"/proc/self/fd/{arguments[0]}")] if name == "fsync" else arguments
            calls.append((name, *(os.path.relpath(path, tmp_path) for path in paths)))
            return real(*arguments)

        return call

    for name, real in (("fsync", fsync), ("rename", rename), ("replace", replace)):
        monkeypatch.setattr(os, name, record(name, real))
    with atomic_folder(tmp_path / "out", force=False, is_ours=lambda _: True) as folder:
        (folder / "a" / "b").mkdir(parents=True)
        for path in ("one", "a/two", "a/b/three"):
            (folder / path).write_text(path)
    *syncs, renamed, last = calls
    inside = (".", "one", "a", "a/two", "a/b", "a/b/three")
    assert sorted(syncs) == sorted(("fsync", os.path.normpath(f"{folder.name}/{path}")) for path in inside)
    assert (renamed, last) == (("rename", folder.name, "out"), ("fsync", "."))
    calls.clear()
    write_text(tmp_path / "t", "text")
    assert calls == [("fsync", "t.partial"), ("replace", "t.partial", "t"), ("fsync", ".")]


def test_the_next_writer_restores_or_removes_what_a_killed_writer_left(tmp_path):
    dead = 2**22 + 1  # beyond the largest process id
    for name, text in ((f".out.partial-{dead}-aa.old", "old"), (f".out.partial-{dead}-bb", "half")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "t").write_text(text)
    with (
        pytest.raises(DataError, match="already exists"),
        atomic_folder(tmp_path / "out", force=False, is_ours=lambda _: True),
    ):
        pass
    assert os.listdir(tmp_path) == ["out"]
    assert (tmp_path / "out" / "t").read_text() == "old"


def test_a_writer_leaves_alone_what_another_one_is_writing(tmp_path):
    (tmp_path / f".out.partial-{os.getpid()}-aa").mkdir()
    replace_folder(tmp_path / "out", "new")
    assert sorted(os.listdir(tmp_path)) == [f".out.partial-{os.getpid()}-aa", "out"]


def test_a_missing_parent_folder_is_an_error(tmp_path):
    with (
        pytest.raises(DataError, match="create it first"),
        atomic_folder(tmp_path / "no" / "out", force=False, is_ours=lambda _: True),
    ):
        pass
