"""Cached results of an evaluation in RUN/ranks: a file of arrays, and a JSON file with everything they depend on.

If anything of that has changed, or a file is damaged, the result is computed again.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

from dynedge.errors import DataError
from dynedge.utils.atomic_io import file_sha256, write_atomically, write_text
from dynedge.utils.file_checks import check_regular, read_json_object

T = TypeVar("T")
FOLDER = "ranks"  # in a run folder


def read_cached(path: Path, key: dict[str, Any], load: Callable[[Path, dict[str, Any]], T | None]) -> T | None:
    """Returns load(path, extra values) if the file was written with this key; None if it has to be computed."""
    try:
        check_regular(path)
        stored = read_json_object(path.with_suffix(".json"))
        expected = {**key, "sha256": file_sha256(path)}
        if {name: stored.get(name) for name in expected} == expected:
            return load(path, {name: value for name, value in stored.items() if name not in expected})
    except (OSError, ValueError, EOFError, KeyError, DataError):
        pass  # missing or damaged
    return None


def write_cached(path: Path, key: dict[str, Any], save: Callable[[BinaryIO], object], **extra: Any) -> None:
    """Writes the arrays, then the JSON file that makes them valid; a folder that is read-only gives a warning."""

    def fill(temporary: Path) -> None:
        with open(temporary, "wb") as file:  # given a name, NumPy would append a suffix to it
            save(file)

    try:
        path.parent.mkdir(exist_ok=True)
        write_atomically(path, fill)
        stored = {**key, "sha256": file_sha256(path), **extra}
        write_text(path.with_suffix(".json"), json.dumps(stored, indent=1) + "\n")
    except OSError as error:
        print(f"dynedge: warning: {path} could not be written ({error.strerror}).", file=sys.stderr)
