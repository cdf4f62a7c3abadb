"""Checkpoints on disk. A process killed at any time loses only the work since the last checkpoint.

A checkpoint is a manifest `NUMBER.json` and the tensor files it lists with their SHA-256. Each file is written under
a temporary name, synced and renamed; the manifest comes last, so everything it lists is complete. Only then is the
checkpoint before the previous one deleted. Loading verifies every SHA-256, including the manifest's own; a damaged
checkpoint is reported on stderr and the previous one is used. Of several processes each writes and reads its own
parts, the first one writes the manifest, and all use the same checkpoint.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dynedge.errors import DataError
from dynedge.utils.atomic_io import file_sha256, write_text
from dynedge.utils.process_group import ALONE, ProcessGroup
from dynedge.utils.tensor_io import Tensors, load_tensors, save_tensors

FORMAT, VERSION = "dynedge-checkpoint", 5


@dataclass(frozen=True)
class Checkpoint:
    """Tensors in named parts (one file each), and metadata that JSON can hold."""

    parts: dict[str, Tensors]
    metadata: dict[str, Any]


@dataclass
class _Manifest:
    number: int
    files: dict[str, dict[str, str]]  # by part: file name and SHA-256
    parts: dict[str, Tensors] = field(repr=False)


class Checkpoints:
    """The checkpoint folder of a run. It holds the newest checkpoint and the one before it."""

    def __init__(self, folder: Path, group: ProcessGroup = ALONE) -> None:
        self.folder, self.group = folder, group
        self._newest: _Manifest | None = None

    def save(self, checkpoint: Checkpoint) -> None:
        """Writes a checkpoint. A part that is the same dict object as in the last save or load is not rewritten."""
        previous = self._newest
        number = self.group.gather_json(max(self._numbers(), default=0) + 1)[0]
        files: dict[str, dict[str, str]] = {}
        with self.group.together():
            files = {name: self._write_part(name, tensors, number) for name, tensors in checkpoint.parts.items()}
        files = {name: entry for written in self.group.gather_json(files) for name, entry in written.items()}
        body = {
            "format": FORMAT,
            "version": VERSION,
            "number": number,
            "files": files,
            "metadata": checkpoint.metadata,
        }
        self._newest = _Manifest(number, files, checkpoint.parts)
        if self.group.is_first:
            write_text(self._path(number), json.dumps({**body, "sha256": _digest(body)}, indent=1) + "\n")
            self._delete_all_but([self._newest, previous])
        self.group.wait_for_all()

    def load(self, reads: Callable[[str], bool] = lambda name: True) -> Checkpoint | None:
        """Returns the newest complete checkpoint, or None if none was ever written; `reads`: the parts to read."""
        numbers: list[int] = self.group.gather_json(sorted(self._numbers(), reverse=True))[0]
        for number in numbers:
            checkpoint, damage = None, ""
            try:
                checkpoint = self._read(number, reads)
            except DataError as error:
                damage = str(error)
            damages = [text for text in self.group.gather_json(damage) if text]
            if checkpoint is not None and not damages:
                return checkpoint
            if self.group.is_first:
                print(f"dynedge: checkpoint {number} is not used: {damages[0]}", file=sys.stderr, flush=True)
        if numbers:
            raise self.group.common(
                DataError(f"{self.folder} has no usable checkpoint; start the run again with --force.")
            )
        return None

    def _write_part(self, name: str, tensors: Tensors, number: int) -> dict[str, str]:
        if self._newest is not None and self._newest.parts.get(name) is tensors:
            return self._newest.files[name]
        path = self.folder / f"{name}-{number:06}.safetensors"
        save_tensors(path, tensors)
        return {"file": path.name, "sha256": file_sha256(path)}

    def _read(self, number: int, reads: Callable[[str], bool]) -> Checkpoint:
        body = _read_manifest(self._path(number))
        parts = {}
        for name, entry in body["files"].items():
            if not reads(name):
                continue
            path = self.folder / entry["file"]
            if not path.is_file():
                raise DataError(f"{path} is missing.")
            if file_sha256(path) != entry["sha256"]:
                raise DataError(f"{path} is damaged: it does not match its SHA-256.")
            parts[name] = load_tensors(path)
        self._newest = _Manifest(number, body["files"], parts)
        return Checkpoint(parts, body["metadata"])

    def _delete_all_but(self, manifests: list[_Manifest | None]) -> None:
        """Deletes older and damaged checkpoints, and temporary files of a killed process."""
        used = {self._path(m.number).name for m in manifests if m}
        used |= {entry["file"] for m in manifests if m for entry in m.files.values()}
        for path in self.folder.iterdir():
            if path.name not in used:
                path.unlink()

    def _numbers(self) -> list[int]:
        return [int(path.stem) for path in self.folder.glob("*.json") if path.stem.isdigit()]

    def _path(self, number: int) -> Path:
        return self.folder / f"{number:06}.json"


def _digest(body: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()


def _read_manifest(path: Path) -> dict[str, Any]:
    try:
        body = json.loads(path.read_bytes())
        digest = body.pop("sha256")
        valid = digest == _digest(body) and body["format"] == FORMAT
    except (OSError, ValueError, KeyError, AttributeError, TypeError, RecursionError):
        valid = False
    if not valid:
        raise DataError(f"{path} is damaged.")
    if body["version"] != VERSION:
        raise DataError(f"{path} has format version {body['version']}; this dynedge reads version {VERSION}.")
    return dict(body)
