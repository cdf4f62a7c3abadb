"""Snapshots of the state at a journal position, so that a restart replays only the events after it.

DATA/snapshots/POSITION.safetensors holds the tensors, POSITION.json their description and checksum. The JSON file is
written last and completes the snapshot. If a snapshot is damaged, the one before it is used. Where replicas share the
folder, names are POSITION-WRITER.
"""

from __future__ import annotations

import hashlib
import json
import struct
import sys
import time
import uuid
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, BinaryIO

import torch

from dynedge.data.id_index import ExternalId
from dynedge.errors import DataError
from dynedge.utils.atomic_io import PARTIAL, file_sha256, write_atomically, write_text
from dynedge.utils.file_checks import check_regular, read_json_object
from dynedge.utils.tensor_io import Tensors, load_tensors

VERSION = 5
RETAINED = 2  # snapshots of a run
ABANDONED_SECONDS = 86400.0  # age at which snapshots of other runs and unfinished files are removed
WRITE_BYTES = 1 << 22  # bytes written at once; other threads run in between
DTYPES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.bfloat16: "BF16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.bool: "BOOL",
}


@dataclass(frozen=True)
class SnapshotInfo:
    position: int  # journal position of the newest event in the state
    fingerprint: str  # of the run
    added_users: list[ExternalId]  # ids that the run was not trained on, in the order of their rows
    added_items: list[ExternalId]
    events: int = 0  # in the state, those of training included
    sha256: str = ""
    version: int = VERSION


class Snapshots:
    """The snapshot folder of a service, or of several replicas."""

    def __init__(self, folder: Path, *, shared: bool = False) -> None:
        """`shared`: other processes write snapshots there; the names of files tell them apart."""
        self.folder, self._suffix = folder, f"-{uuid.uuid4().hex[:8]}" if shared else ""
        folder.mkdir(exist_ok=True)
        for partial in folder.glob(f"*{PARTIAL}"):
            if not shared or _age(partial) > ABANDONED_SECONDS:
                partial.unlink(missing_ok=True)

    def write(self, info: SnapshotInfo, tensors: Tensors) -> None:
        """Writes a snapshot atomically, then removes all but the run's newest ones, and old ones of other runs."""
        path, digest = self.folder / f"{info.position:015}{self._suffix}.safetensors", hashlib.sha256()

        def fill(partial: Path) -> None:
            with open(partial, "wb") as file:
                _write_safetensors(file, tensors, digest)

        write_atomically(path, fill)
        description = asdict(info) | {"sha256": digest.hexdigest()}
        write_text(path.with_suffix(".json"), json.dumps(description) + "\n")
        self._remove_old(info.fingerprint)

    def _remove_old(self, fingerprint: str) -> None:
        kept = 0
        for path in self._paths():
            with suppress(DataError, OSError, ValueError, TypeError):
                if _read_info(path).fingerprint == fingerprint:
                    kept += 1
                    remove = kept > RETAINED
                else:
                    remove = _age(path) > ABANDONED_SECONDS
                if remove:
                    path.unlink(missing_ok=True)
                    path.with_suffix(".safetensors").unlink(missing_ok=True)

    @property
    def newest_position(self) -> int:
        """Position of the newest snapshot, of any run; 0 if there is none."""
        return max(map(_position, self._paths()), default=0)

    @property
    def oldest_position(self) -> int:
        """Position of the oldest snapshot, of any run; 0 if there are fewer than are retained."""
        positions = [_position(path) for path in self._paths()]
        return min(positions) if len(positions) >= RETAINED else 0

    def latest_info(self, fingerprint: str) -> tuple[SnapshotInfo, float] | None:
        """Returns the description of a run's newest snapshot, unchecked, and its age in seconds."""
        for path in self._paths():
            with suppress(DataError, OSError):
                info = _read_info(path)
                if info.fingerprint == fingerprint:
                    return info, _age(path)
        return None

    def of_run(self, fingerprint: str, until: int | None = None) -> Iterator[tuple[SnapshotInfo, Tensors]]:
        """Yields a run's intact snapshots, newest first, up to a position if given; reports damaged ones."""
        for description in self._paths():
            path = description.with_suffix(".safetensors")
            try:
                info = _read_info(description)
                if info.fingerprint != fingerprint or (until is not None and info.position > until):
                    continue
                check_regular(path)
                if file_sha256(path) != info.sha256:
                    raise DataError(f"{path} does not match its checksum.")
                tensors = load_tensors(path)
            except (DataError, OSError) as error:
                self.report(str(error))
            else:
                yield info, tensors

    def report(self, damage: str) -> None:
        print(f"dynedge: {damage} An earlier snapshot is used instead.", file=sys.stderr)

    def _paths(self) -> list[Path]:
        """Descriptions of all snapshots, newest first."""
        paths = [path for path in self.folder.glob("*.json") if path.stem.partition("-")[0].isdecimal()]
        return sorted(paths, key=_position, reverse=True)


def _position(path: Path) -> int:
    return int(path.stem.partition("-")[0])


def _age(path: Path) -> float:
    """Seconds since a file was written; 0 if another process has removed it."""
    try:
        return time.time() - path.stat().st_mtime
    except OSError:
        return 0.0


def _read_info(path: Path) -> SnapshotInfo:
    values = read_json_object(path)
    version = values.get("version", 1)
    if version != VERSION:
        raise DataError(f"{path} is a snapshot of version {version}, but this dynedge reads version {VERSION}.")
    try:
        info = SnapshotInfo(**values)
        ids = [*info.added_users, *info.added_items]
        numbers = type(info.position) is int and type(info.events) is int
        if numbers and all(type(external_id) in (int, str) for external_id in ids):
            return info
    except TypeError:
        pass
    raise DataError(f"{path} is damaged.")


def _write_safetensors(file: BinaryIO, tensors: Tensors, digest: hashlib._Hash) -> None:
    """Writes the safetensors format in chunks: the package's own writer holds the interpreter lock throughout."""
    header, offset = {}, 0
    for name, tensor in tensors.items():
        size = tensor.numel() * tensor.element_size()
        header[name] = {
            "dtype": DTYPES[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": [offset, offset + size],
        }
        offset += size
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    for chunk in (struct.pack("<Q", len(text)), text, *_chunks(tensors)):
        digest.update(chunk)
        file.write(chunk)


def _chunks(tensors: Tensors) -> Iterator[Any]:
    for tensor in tensors.values():
        if tensor.numel():
            raw = tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data
            for start in range(0, len(raw), WRITE_BYTES):
                yield raw[start : start + WRITE_BYTES]
