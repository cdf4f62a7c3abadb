"""Checkpoints: where training stands, on disk, such that a kill at any moment costs only the work since the last one.

A checkpoint is a manifest `NUMBER.json` and the tensor files that it names with their sha256. The files are written
first, each beside its place, synced and renamed; the manifest last, so that what it names is whole. Only then does
the checkpoint before the previous one go. On loading every sha256 is checked, the manifest's own among them; a
damaged checkpoint is said aloud, and the one before it used.
"""

from __future__ import annotations

import hashlib
import json
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dynedge.errors import DataError
from dynedge.utils.atomic_io import file_sha256, write_text
from dynedge.utils.tensor_io import Tensors, load_tensors, save_tensors

FORMAT, VERSION = "dynedge-checkpoint", 1


@dataclass(frozen=True)
class Checkpoint:
    """Named parts of tensors, and notes: anything JSON holds."""

    parts: dict[str, Tensors]
    notes: dict[str, Any]


@dataclass
class _Manifest:
    number: int
    files: dict[str, dict[str, str]]  # of each part: its file and the file's sha256
    parts: dict[str, Tensors] = field(repr=False)


class Checkpoints:
    """The checkpoints of a run: the newest, and the one before it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._newest: _Manifest | None = None

    def save(self, checkpoint: Checkpoint) -> None:
        """Write it. A part that is the very dict of the last save or load (the best model so far) stays as it is."""
        previous = self._newest
        number = max(self._numbers(), default=0) + 1
        files = {name: self._write_part(name, tensors, number) for name, tensors in checkpoint.parts.items()}
        body = {"format": FORMAT, "version": VERSION, "number": number, "files": files, "notes": checkpoint.notes}
        write_text(self._path(number), json.dumps({**body, "sha256": _seal(body)}, indent=1) + "\n")
        self._newest = _Manifest(number, files, checkpoint.parts)
        self._keep([self._newest, previous])

    def load(self) -> Checkpoint | None:
        """The newest whole checkpoint, or None where none was ever finished."""
        numbers = sorted(self._numbers(), reverse=True)
        for number in numbers:
            try:
                return self._read(number)
            except DataError as damage:
                print(f"dynedge: checkpoint {number} is not used: {damage}", file=sys.stderr, flush=True)
        if numbers:
            raise DataError(f"{self.folder} holds no whole checkpoint; start the run again with --force.")
        return None

    def _write_part(self, name: str, tensors: Tensors, number: int) -> dict[str, str]:
        if self._newest is not None and self._newest.parts.get(name) is tensors:
            return self._newest.files[name]
        path = self.folder / f"{name}-{number:06}.safetensors"
        save_tensors(path, tensors)
        return {"file": path.name, "sha256": file_sha256(path)}

    def _read(self, number: int) -> Checkpoint:
        body = _open_manifest(self._path(number))
        parts = {}
        for name, entry in body["files"].items():
            path = self.folder / entry["file"]
            if not path.is_file():
                raise DataError(f"{path} is missing.")
            if file_sha256(path) != entry["sha256"]:
                raise DataError(f"{path} is damaged: it does not match its sha256.")
            parts[name] = load_tensors(path)
        self._newest = _Manifest(number, body["files"], parts)
        return Checkpoint(parts, body["notes"])

    def _keep(self, manifests: list[_Manifest | None]) -> None:
        """Remove all files but these checkpoints': older ones, damaged ones, and what a killed writer left."""
        kept = {self._path(m.number).name for m in manifests if m}
        kept |= {entry["file"] for m in manifests if m for entry in m.files.values()}
        for path in self.folder.iterdir():
            if path.name not in kept:
                path.unlink()

    def _numbers(self) -> list[int]:
        return [int(path.stem) for path in self.folder.glob("*.json") if path.stem.isdigit()]

    def _path(self, number: int) -> Path:
        return self.folder / f"{number:06}.json"


def _seal(body: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()


def _open_manifest(path: Path) -> dict[str, Any]:
    try:
        body = json.loads(path.read_bytes())
        seal = body.pop("sha256")
        sound = seal == _seal(body) and body["format"] == FORMAT
    except (OSError, ValueError, KeyError, AttributeError, TypeError, RecursionError):
        sound = False
    if not sound:
        raise DataError(f"{path} is damaged.")
    if body["version"] != VERSION:
        raise DataError(f"{path} is of version {body['version']}; this dynedge reads version {VERSION}.")
    return dict(body)
