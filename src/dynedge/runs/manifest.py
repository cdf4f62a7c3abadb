"""manifest.json: size and SHA-256 of a finished run's files, verified whenever the run is opened.

It tells an accident (a file that was changed or only partly copied) from a run that is intact. config.toml is not in
it: that is text which may be edited, and every setting is checked when it is read. Runs of earlier versions have no
manifest.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path, PurePosixPath

from dynedge.errors import DataError
from dynedge.utils.atomic_io import file_sha256, write_text
from dynedge.utils.file_checks import check_regular, read_json_object, remembered_sha256

MANIFEST = "manifest.json"


def write_manifest(folder: Path, names: Iterable[str]) -> None:
    """Lists these files of a run folder, and all files of those that are folders, as far as they exist."""
    found = (path for name in names for path in (folder / name, *sorted((folder / name).glob("*"))))
    files = {
        path.relative_to(folder).as_posix(): {"bytes": path.stat().st_size, "sha256": file_sha256(path)}
        for path in found
        if path.is_file()
    }
    write_text(folder / MANIFEST, json.dumps({"files": files}, indent=1) + "\n")


def verify_manifest(folder: Path) -> None:
    """Raises DataError, naming the file, if one of a run's files is not the one that training wrote."""
    try:
        files = read_json_object(folder / MANIFEST).get("files")
    except FileNotFoundError:
        return
    if not isinstance(files, dict):
        raise DataError(f"{folder / MANIFEST} is damaged: it lists no files.")
    for name, entry in files.items():
        if not isinstance(entry, dict) or ".." in PurePosixPath(name).parts or PurePosixPath(name).is_absolute():
            raise DataError(f"{folder / MANIFEST} is damaged: its entry {name[:100]!r} is not a file of the run.")
        path = folder / name
        try:
            size = check_regular(path).st_size
        except (OSError, ValueError):
            raise DataError(f"{path} is missing; copy the run again, or train it again.") from None
        if size != entry.get("bytes") or remembered_sha256(path) != entry.get("sha256"):
            raise DataError(
                f"{path} does not match {MANIFEST}: it was changed or damaged since training; copy the run again, or "
                "train it again."
            )
