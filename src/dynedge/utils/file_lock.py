"""File locks: one process at a time works in a folder."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from dynedge.errors import DataError

LOCK = ".lock"


class FileLock:
    """Exclusive lock on a folder, held until `release` or the end of the process.

    The lock is on the file FOLDER/.lock, which moves with the folder if that is renamed. It contains the process id
    of its owner.
    """

    def __init__(self, folder: Path, advice: str = "wait for it, or stop it") -> None:
        path = folder / LOCK
        self._file = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            owner = os.read(self._file, 20).decode("ascii", "replace").strip() or "unknown"
            self.release()
            raise DataError(f"{folder} is in use by another process ({owner}); {advice}.") from None
        if not path.exists() or os.fstat(self._file).st_ino != path.stat().st_ino:
            self.release()
            raise DataError(f"{folder} was just replaced by another process; run this again.")
        os.truncate(self._file, 0)
        os.pwrite(self._file, str(os.getpid()).encode(), 0)

    def release(self) -> None:
        os.close(self._file)

    def __enter__(self) -> FileLock:
        return self

    def __exit__(self, *error: object) -> None:
        self.release()
