"""A folder that appears whole or not at all: written beside its place, synced, renamed."""

from __future__ import annotations

import ctypes
import errno
import os
import shutil
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from dynedge.errors import DataError

AT_FDCWD = -100
RENAME_EXCHANGE = 2


@contextmanager
def atomic_folder(out: Path, *, force: bool, is_ours: Callable[[Path], bool]) -> Iterator[Path]:
    """Yields a folder beside `out`; when the block ends well it takes `out`'s place, else it is removed.

    Killed at any moment, this leaves at `out` what was there before, or the new folder whole. What a killed
    writer left beside it, the next one removes. `force` allows replacing an old folder if `is_ours` says so.
    """
    out = Path(os.path.abspath(out))
    if os.path.lexists(out):
        if not force:
            raise DataError(f"{out} already exists; choose another --out or pass --force to replace it.")
        if not out.is_dir() or not is_ours(out):
            raise DataError(f"{out} exists and was not made by dynedge, so --force does not replace it.")
    elif not out.parent.is_dir():
        raise DataError(f"{out.parent} is not a folder; create it first, or choose another --out.")
    _sweep(out)
    beside = out.parent / f".{out.name}.partial-{os.getpid()}-{uuid.uuid4().hex[:8]}"
    try:
        beside.mkdir()
        yield beside
        _sync_tree(beside)
        _put_in_place(beside, out)
    except OSError as failure:
        if failure.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            raise DataError(
                f"the disk is full: {out} could not be written; free some space and run it again."
            ) from None
        if failure.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
            raise DataError(f"{out} could not be written: {failure.strerror}; choose another --out.") from None
        raise
    finally:
        shutil.rmtree(beside, ignore_errors=True)


def _put_in_place(beside: Path, out: Path) -> None:
    """After this, `out` is the new folder, and `beside` the old one if there was one."""
    if not os.path.lexists(out):
        os.rename(beside, out)
    elif not _exchange(beside, out):
        # No atomic exchange here (not Linux, or an odd file system): the old folder moves aside for a moment.
        aside = beside.with_name(beside.name + ".old")
        os.rename(out, aside)
        os.rename(beside, out)
        os.rename(aside, beside)
    sync(out.parent)


def _exchange(one: Path, other: Path) -> bool:
    renameat2 = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if renameat2 is None:
        return False
    return bool(renameat2(AT_FDCWD, os.fsencode(one), AT_FDCWD, os.fsencode(other), RENAME_EXCHANGE) == 0)


def _sweep(out: Path) -> None:
    """Remove what writers of `out` that are no longer alive left behind."""
    for left in out.parent.glob(f".{out.name}.partial-*"):
        pid = left.name.removeprefix(f".{out.name}.partial-").split("-")[0]
        if pid.isdigit() and not _alive(int(pid)):
            if left.name.endswith(".old") and not os.path.lexists(out):
                os.rename(left, out)  # killed between the two renames: the old folder goes back
            else:
                shutil.rmtree(left, ignore_errors=True)


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True


def _sync_tree(folder: Path) -> None:
    for root, _, files in os.walk(folder):
        for name in files:
            sync(Path(root) / name)
        sync(Path(root))


def sync(path: Path) -> None:
    """Wait until a file, or a folder's list of names, is on the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
