"""Files and folders that appear complete or not at all: written under a temporary name, synced, renamed."""

from __future__ import annotations

import ctypes
import errno
import hashlib
import os
import shutil
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from dynedge.errors import DataError

PARTIAL = ".partial"  # suffix of a file that is being written
AT_FDCWD = -100
RENAME_EXCHANGE = 2


def write_atomically(path: Path, write: Callable[[Path], None]) -> None:
    """Lets `write` fill a temporary file, syncs it and renames it to `path`.

    If the process is killed, `path` holds the old content or the new, never a part.
    """
    partial = path.with_name(path.name + PARTIAL)
    partial.touch()
    mode = partial.stat().st_mode
    write(partial)
    partial.chmod(mode)  # safetensors creates files that only their owner may read
    sync(partial)
    os.replace(partial, path)
    sync(path.parent)


def write_text(path: Path, text: str) -> None:
    """Writes a UTF-8 text file atomically."""
    write_atomically(path, lambda partial: _write_utf8(partial, text))


def file_sha256(path: Path) -> str:
    """Returns the SHA-256 of a file's content, in hexadecimal."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@contextmanager
def atomic_folder(out: Path, *, force: bool, is_ours: Callable[[Path], bool]) -> Iterator[Path]:
    """Yields a temporary folder that replaces `out` when the block succeeds and is removed when it fails.

    If the process is killed, `out` holds the old folder or the new one, complete; the next writer of `out` removes
    the temporary folder that was left. `force` allows replacing an existing folder for which `is_ours` is true.
    """
    out = Path(os.path.abspath(out))
    _remove_leftovers(out)  # first: it may restore `out`
    if os.path.lexists(out):
        if not force:
            raise DataError(f"{out} already exists; choose another --out or pass --force to replace it.")
        if not out.is_dir() or not is_ours(out):
            raise DataError(f"{out} exists and was not made by dynedge, so --force does not replace it.")
    elif not out.parent.is_dir():
        raise DataError(f"{out.parent} is not a folder; create it first, or choose another --out.")
    partial = out.parent / f".{out.name}.partial-{os.getpid()}-{uuid.uuid4().hex[:8]}"
    try:
        partial.mkdir()
        yield partial
        _sync_tree(partial)
        _replace(partial, out)
    except OSError as failure:
        if failure.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            raise DataError(
                f"the disk is full: {out} could not be written; free some space and run it again."
            ) from None
        if failure.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
            raise DataError(f"{out} could not be written: {failure.strerror}; choose another --out.") from None
        raise
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def sync(path: Path) -> None:
    """Waits until a file, or a folder's list of names, is on the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _write_utf8(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8")


def exchange(one: Path, other: Path) -> None:
    """Exchanges two folders of the same parent."""
    if not _exchange(one, other):
        # No atomic exchange (not Linux, or an unusual file system): `other` is missing between the two renames.
        aside = one.with_name(one.name + ".old")
        os.rename(other, aside)
        os.rename(one, other)
        os.rename(aside, one)
    sync(other.parent)


def _replace(partial: Path, out: Path) -> None:
    """Moves the new folder to `out`; afterwards `partial` is the old folder, if there was one."""
    if os.path.lexists(out):
        exchange(partial, out)
        return
    os.rename(partial, out)
    sync(out.parent)


def _exchange(one: Path, other: Path) -> bool:
    """Swaps two paths in one system call; False where the system does not support it."""
    renameat2 = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if renameat2 is None:
        return False
    return bool(renameat2(AT_FDCWD, os.fsencode(one), AT_FDCWD, os.fsencode(other), RENAME_EXCHANGE) == 0)


def _remove_leftovers(out: Path) -> None:
    """Removes the temporary folders of writers of `out` that were killed."""
    for folder in out.parent.glob(f".{out.name}.partial-*"):
        pid = folder.name.removeprefix(f".{out.name}.partial-").split("-")[0]
        if pid.isdigit() and not _is_running(int(pid)):
            if folder.name.endswith(".old") and not os.path.lexists(out):
                os.rename(folder, out)  # killed between the two renames: the old folder is restored
            else:
                shutil.rmtree(folder, ignore_errors=True)


def _is_running(pid: int) -> bool:
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
