"""Snapshots of the state at a journal position, so that a restart replays only the events after it.

DATA/snapshots/POSITION.safetensors holds the tensors, POSITION.json their description and checksum. The JSON file is
written last and completes the snapshot. If a snapshot is damaged, the one before it is used.
"""

from __future__ import annotations

import hashlib
import json
import struct
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, BinaryIO

import torch

from dynedge.data.id_index import ExternalId
from dynedge.errors import DataError
from dynedge.utils.atomic_io import PARTIAL, file_sha256, write_atomically, write_text
from dynedge.utils.tensor_io import Tensors, load_tensors

VERSION = 3
RETAINED = 2  # snapshots
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
    sha256: str = ""
    version: int = VERSION


class Snapshots:
    """The snapshot folder of a service."""

    def __init__(self, folder: Path, *, exclusive: bool = True) -> None:
        """`exclusive`: no other process writes snapshots there, so that unfinished ones can be removed."""
        self.folder = folder
        folder.mkdir(exist_ok=True)
        for partial in folder.glob(f"*{PARTIAL}") if exclusive else ():
            partial.unlink()

    def write(self, info: SnapshotInfo, tensors: Tensors) -> None:
        """Writes a snapshot atomically, then removes all but the newest ones."""
        path, digest = self._path(info.position), hashlib.sha256()

        def fill(partial: Path) -> None:
            with open(partial, "wb") as file:
                _write_safetensors(file, tensors, digest)

        write_atomically(path, fill)
        description = asdict(info) | {"sha256": digest.hexdigest()}
        write_text(path.with_suffix(".json"), json.dumps(description) + "\n")
        for position in self._positions()[RETAINED:]:
            self._path(position).with_suffix(".json").unlink()
            self._path(position).unlink(missing_ok=True)

    @property
    def newest_position(self) -> int:
        """Position of the newest snapshot, of any run; 0 if there is none."""
        return max(self._positions(), default=0)

    def newest(self, fingerprint: str) -> tuple[SnapshotInfo, Tensors] | None:
        """Returns the newest intact snapshot of a run; reports damaged ones on stderr."""
        for position in self._positions():
            path = self._path(position)
            try:
                info = _read_info(path.with_suffix(".json"))
                if info.fingerprint != fingerprint:
                    continue
                if file_sha256(path) != info.sha256:
                    raise DataError(f"{path} does not match its checksum.")
                tensors = load_tensors(path)
                for name, tensor in tensors.items():
                    if name.startswith("state.") and not torch.isfinite(tensor).all():
                        raise DataError(f"{path} has an infinite number in {name}.")
                return info, tensors
            except (DataError, OSError, ValueError, TypeError) as error:
                print(f"dynedge: {error} An earlier snapshot is used instead.", file=sys.stderr)
        return None

    def _positions(self) -> list[int]:
        """Positions of all snapshots, newest first."""
        return sorted((int(path.stem) for path in self.folder.glob("*.json") if path.stem.isdigit()), reverse=True)

    def _path(self, position: int) -> Path:
        return self.folder / f"{position:015}.safetensors"


def _read_info(path: Path) -> SnapshotInfo:
    values = dict(json.loads(path.read_bytes()))
    version = values.get("version", 1)
    if version != VERSION:
        raise DataError(f"{path} is a snapshot of version {version}, but this dynedge reads version {VERSION}.")
    return SnapshotInfo(**values)


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
