"""Reading files that anyone may have written: regular files only, JSON of bounded size, cached check results.

A fact that took a pass over a large file is remembered in the user's cache folder, by the file's inode, size and
times of change, so that opening the file again costs nothing. The files cannot bring such an entry with them.
"""

from __future__ import annotations

import hashlib
import json
import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

from dynedge.errors import DataError
from dynedge.utils.atomic_io import file_sha256, write_text
from dynedge.utils.numba_compile import cache_folder

MAX_JSON_BYTES = 1 << 26
REMEMBERED_BYTES = 1 << 20  # facts about smaller files are computed again

Facts = dict[str, Any]


def check_regular(path: Path) -> os.stat_result:
    """Raises DataError for a pipe, device or folder, which may never end; FileNotFoundError if it is missing."""
    found = path.stat()
    if not stat.S_ISREG(found.st_mode):
        raise DataError(f"{path} is not a regular file.")
    return found


def read_json(path: Path) -> Any:
    """Returns the content of a JSON file; DataError if it is damaged or too large, FileNotFoundError if missing."""
    size = check_regular(path).st_size
    if size > MAX_JSON_BYTES:
        raise DataError(f"{path} has {size:,} bytes, more than {MAX_JSON_BYTES:,}; it is not a file of dynedge.")
    try:
        return json.loads(path.read_bytes())
    except (ValueError, RecursionError):
        raise DataError(f"{path} is damaged: it is not JSON.") from None


def read_json_object(path: Path) -> dict[str, Any]:
    """Returns the content of a JSON file that holds an object."""
    content = read_json(path)
    if not isinstance(content, dict):
        raise DataError(f"{path} is damaged: it does not hold a JSON object.")
    return content


def remembered(path: Path, name: str, compute: Callable[[], Facts]) -> Facts:
    """Returns the facts that `compute` finds about a file, from the cache if the file has not changed since."""
    found = path.stat()
    if found.st_size < REMEMBERED_BYTES:
        return compute()
    identity = [found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns]
    try:
        key = hashlib.sha256(f"{name}:{os.path.realpath(path)}".encode(errors="surrogateescape")).hexdigest()[:32]
        entry = cache_folder() / "checked" / f"{key}.json"
    except DataError:
        return compute()
    try:
        stored = json.loads(entry.read_bytes())
        if stored["identity"] == identity:
            return dict(stored["facts"])
    except (OSError, ValueError, KeyError, TypeError):
        pass
    facts = compute()
    try:
        entry.parent.mkdir(mode=0o700, exist_ok=True)
        write_text(entry, json.dumps({"identity": identity, "facts": facts}))
    except OSError:
        pass
    return facts


def remembered_sha256(path: Path) -> str:
    """Returns the SHA-256 of a file's content, from the cache if the file has not changed since."""
    check_regular(path)
    return str(remembered(path, "sha256", lambda: {"sha256": file_sha256(path)})["sha256"])
