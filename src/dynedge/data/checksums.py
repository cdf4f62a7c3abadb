"""SHA-256 of a column by blocks, so that the checksum of a longer or shorter column costs only the last block.

The checksum of a column of at most BLOCK_BYTES is the SHA-256 of its bytes. That of a longer one is the SHA-256 of
the hexadecimal checksums of its blocks, which log.json lists.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any, BinaryIO

import numpy as np

from dynedge.utils.array_type import Array

BLOCK_BYTES = 16 << 20
READ_BYTES = 1 << 20


class BlockChecksum:
    """Checksum of bytes given in pieces, after the complete blocks whose checksums are given."""

    def __init__(self, complete: Sequence[str] = ()) -> None:
        self._complete = list(complete)
        self._last, self._last_bytes = hashlib.sha256(), 0

    def update(self, raw: bytes | memoryview) -> None:
        view = memoryview(raw)
        while view:
            if self._last_bytes == BLOCK_BYTES:
                self._complete.append(self._last.hexdigest())
                self._last, self._last_bytes = hashlib.sha256(), 0
            part = view[: BLOCK_BYTES - self._last_bytes]
            self._last.update(part)
            self._last_bytes += len(part)
            view = view[len(part) :]

    def entry(self) -> dict[str, Any]:
        """The column's `sha256` and, if it has several blocks, their `blocks`, as in log.json."""
        blocks = (
            [*self._complete, self._last.hexdigest()] if self._last_bytes or not self._complete else self._complete
        )
        if len(blocks) == 1:
            return {"sha256": blocks[0]}
        return {"sha256": hashlib.sha256("".join(blocks).encode()).hexdigest(), "blocks": list(blocks)}


def complete_blocks(entry: dict[str, Any], size: int) -> list[str]:
    """The checksums of the complete blocks among the first `size` bytes, as far as the entry of a column has them."""
    return list(entry.get("blocks", ())[: size // BLOCK_BYTES])


def array_checksum(column: Array, entry: dict[str, Any]) -> str:
    """Returns the checksum of an array that is the beginning of the column with this entry in log.json."""
    raw = memoryview(np.ascontiguousarray(column).reshape(-1).view(np.uint8).data)
    checksum = BlockChecksum(complete := complete_blocks(entry, len(raw)))
    checksum.update(raw[len(complete) * BLOCK_BYTES :])
    return str(checksum.entry()["sha256"])


def file_matches(file: BinaryIO, size: int, entry: dict[str, Any]) -> bool:
    """Whether the next `size` bytes of a file have the checksums of a column's entry.

    Logs of earlier versions have the SHA-256 of all bytes, however many.
    """
    checksum, whole = BlockChecksum(), hashlib.sha256()
    while size and (raw := file.read(min(size, READ_BYTES))):
        (checksum if "blocks" in entry else whole).update(raw)
        size -= len(raw)
    return (checksum.entry()["sha256"] if "blocks" in entry else whole.hexdigest()) == str(entry["sha256"])
