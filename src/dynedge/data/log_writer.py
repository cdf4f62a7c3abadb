"""Writing of log folders: columns in chunks, ids and metadata, complete or not at all."""

from __future__ import annotations

import json
import os
from contextlib import ExitStack
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from dynedge.data.checksums import BlockChecksum
from dynedge.data.id_index import IdIndex
from dynedge.data.log import FORMAT, HEADER_BYTES, METADATA, VERSION, npy_header
from dynedge.utils.array_type import Array
from dynedge.utils.atomic_io import atomic_folder


class ColumnWriter:
    """Writes one `.npy` column in chunks and computes its SHA-256 on the way."""

    def __init__(self, path: Path, dtype: npt.DTypeLike, width: int | None = None) -> None:
        self.path, self.dtype, self.width = path, np.dtype(dtype), width
        self.rows = 0
        self._checksum = BlockChecksum()
        self._file: BinaryIO = open(path, "wb", buffering=0)  # noqa: SIM115
        self._write(bytes(HEADER_BYTES))

    def append(self, values: Array) -> None:
        data = np.ascontiguousarray(values, self.dtype)
        assert data.shape[1:] == (() if self.width is None else (self.width,)), (self.path, data.shape)
        self.rows += len(data)
        if data.size:
            raw = data.reshape(-1).view(np.uint8).data
            self._checksum.update(raw)
            self._write(raw)

    def _write(self, raw: bytes | memoryview) -> None:
        view = memoryview(raw)
        while view:  # an unbuffered write may be partial: at most 2 GiB per call
            view = view[self._file.write(view) :]

    def close(self) -> dict[str, Any]:
        """Finishes the file and returns its entry in log.json."""
        shape = [self.rows] if self.width is None else [self.rows, self.width]
        self._file.seek(0)
        self._write(npy_header(self.dtype, shape))
        os.fsync(self._file.fileno())
        self._file.close()
        return {"dtype": self.dtype.str, "shape": shape, **self._checksum.entry()}

    def discard(self) -> None:
        """Closes the file without finishing it."""
        self._file.close()


class LogWriter:
    """Writes a log folder that appears complete when the `with` block succeeds, and not at all otherwise.

    with LogWriter(out, force=False) as writer:
        writer.column("user", np.int32).append(...)
        writer.ids("user_ids", ids)
        writer.finish(events=…, users=…, …)      # the metadata; required
    """

    def __init__(self, out: str | os.PathLike[str], *, force: bool = False) -> None:
        self.out, self.force = Path(out), force
        self._columns: dict[str, ColumnWriter] = {}
        self._metadata: dict[str, Any] | None = None
        self._open = ExitStack()

    def __enter__(self) -> LogWriter:
        folder = atomic_folder(self.out, force=self.force, is_ours=lambda old: (old / METADATA).is_file())
        self.folder = self._open.enter_context(folder)
        self._open.callback(self._discard)
        return self

    def __exit__(self, *error: Any) -> None:
        if error[0] is not None:
            self._open.__exit__(*error)
            return
        with self._open:
            assert self._metadata is not None, "finish() was not called"
            columns = {name: column.close() for name, column in self._columns.items()}
            metadata = {"format": FORMAT, "version": VERSION, **self._metadata, "columns": columns}
            text = json.dumps(metadata, indent=1, ensure_ascii=False)
            (self.folder / METADATA).write_text(text + "\n", encoding="utf-8")

    def _discard(self) -> None:
        for column in self._columns.values():
            column.discard()

    def column(self, name: str, dtype: npt.DTypeLike, width: int | None = None) -> ColumnWriter:
        """Returns the writer of a column, opened on first use."""
        if name not in self._columns:
            self._columns[name] = ColumnWriter(self.folder / f"{name}.npy", dtype, width)
        return self._columns[name]

    def move_columns(self, folder: Path) -> dict[str, ColumnWriter]:
        """Moves the files of all columns written so far to `folder`, so that they can be read and rewritten."""
        moved, self._columns = self._columns, {}
        for column in moved.values():
            column.discard()
            column.path = column.path.rename(folder / column.path.name)
        return moved

    def ids(self, name: str, ids: IdIndex) -> None:
        """Writes external ids as one column of integers, or as UTF-8 bytes and offsets."""
        if ids.offsets is None:
            self.column(name, np.int64).append(ids.values)
        else:
            self.column(name, np.uint8).append(ids.values)
            self.column(f"{name}_offsets", np.int64).append(ids.offsets)

    def finish(self, **metadata: Any) -> None:
        """Sets the content of log.json, except for the entries of the columns."""
        self._metadata = metadata
