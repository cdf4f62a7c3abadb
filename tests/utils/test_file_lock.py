"""File locks: one owner at a time, named in the error; a lock moves with its folder."""

import os

import pytest

from dynedge.errors import DataError
from dynedge.utils.file_lock import FileLock


def test_a_second_lock_is_refused_and_names_the_owner(tmp_path):
    with (
        FileLock(tmp_path),
        pytest.raises(DataError, match=rf"is in use by another process \({os.getpid()}\); choose another\."),
    ):
        FileLock(tmp_path, "choose another")
    FileLock(tmp_path).release()


def test_a_lock_moves_with_its_folder(tmp_path):
    (tmp_path / "old").mkdir()
    with FileLock(tmp_path / "old"):
        (tmp_path / "old").rename(tmp_path / "new")
        with pytest.raises(DataError, match="new is in use"):
            FileLock(tmp_path / "new")
