"""Snapshots: the states as they were at a position of the journal, so that a restart replays only what came after.

DATA/snapshots/POSITION.safetensors holds the tensors, POSITION.json what they are of and their checksum. The latter
is written last: without it there is no snapshot. Of what is damaged the one before is taken.
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

KEPT = 2
PIECE = 1 << 22  # bytes written together: other threads run meanwhile
KINDS = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.bfloat16: "BF16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.bool: "BOOL",
}


@dataclass(frozen=True)
class About:
    position: int  # of the journal's newest event that is in the states
    fingerprint: str  # of the run
    users: list[ExternalId]  # that came after the run
    items: list[ExternalId]
    sha256: str = ""


class Snapshots:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(exist_ok=True)
        for left in folder.glob(f"*{PARTIAL}"):
            left.unlink()

    def write(self, about: About, tensors: Tensors) -> None:
        """There whole or not at all; then all but the newest are removed."""
        path, digest = self._tensors(about.position), hashlib.sha256()

        def fill(beside: Path) -> None:
            with open(beside, "wb") as file:
                _write(file, tensors, digest)

        write_atomically(path, fill)
        told = asdict(about) | {"sha256": digest.hexdigest()}
        write_text(path.with_suffix(".json"), json.dumps(told) + "\n")
        for old in self._positions()[KEPT:]:
            self._tensors(old).with_suffix(".json").unlink()
            self._tensors(old).unlink(missing_ok=True)

    def newest(self, fingerprint: str) -> tuple[About, Tensors] | None:
        """The newest snapshot of this run that is whole; stderr tells of damaged ones."""
        for position in self._positions():
            path = self._tensors(position)
            try:
                about = About(**json.loads(path.with_suffix(".json").read_bytes()))
                if about.fingerprint != fingerprint:
                    continue
                if file_sha256(path) != about.sha256:
                    raise DataError(f"{path} does not match its checksum.")
                return about, load_tensors(path)
            except (DataError, OSError, ValueError, TypeError) as error:
                print(f"dynedge: {error} The snapshot before it is used instead.", file=sys.stderr)
        return None

    def _positions(self) -> list[int]:
        """Newest first."""
        return sorted((int(path.stem) for path in self.folder.glob("*.json") if path.stem.isdigit()), reverse=True)

    def _tensors(self, position: int) -> Path:
        return self.folder / f"{position:015}.safetensors"


def _write(file: BinaryIO, tensors: Tensors, digest: hashlib._Hash) -> None:
    """The safetensors format, piece by piece: the package's own writer holds everything up until it is done."""
    header, at = {}, 0
    for name, tensor in tensors.items():
        size = tensor.numel() * tensor.element_size()
        header[name] = {
            "dtype": KINDS[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": [at, at + size],
        }
        at += size
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    for part in (struct.pack("<Q", len(text)), text, *_pieces(tensors)):
        digest.update(part)
        file.write(part)


def _pieces(tensors: Tensors) -> Iterator[Any]:
    for tensor in tensors.values():
        if tensor.numel():
            raw = tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data
            for start in range(0, len(raw), PIECE):
                yield raw[start : start + PIECE]
