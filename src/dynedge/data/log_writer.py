"""Writing of log folders: columns in chunks, ids and metadata, complete or not at all."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, BinaryIO, Self

import numpy as np
import numpy.typing as npt

from dynedge.data import checksums
from dynedge.data.checksums import BlockChecksum, complete_blocks
from dynedge.data.id_index import IdIndex
from dynedge.data.log import FORMAT, HEADER_BYTES, METADATA, VERSION, EventLog, npy_header
from dynedge.utils.array_type import Array
from dynedge.utils.atomic_io import atomic_folder


class ColumnWriter:
    """Writes one `.npy` column in chunks and computes its SHA-256 on the way.

    With `base`, the entry of the column in log.json, the file exists and its rows are followed by the new ones.
    """

    def __init__(
        self, path: Path, dtype: npt.DTypeLike, width: int | None = None, base: dict[str, Any] | None = None
    ) -> None:
        self.path, self.dtype, self.width = path, np.dtype(dtype), width
        self.rows, self._checksum = 0, BlockChecksum()
        self._file: BinaryIO = open(path, "wb" if base is None else "r+b", buffering=0)  # noqa: SIM115
        if base is None:
            self._write(bytes(HEADER_BYTES))
        else:
            self._continue(base)

    def _continue(self, base: dict[str, Any]) -> None:
        """Moves to the end of the column and reads its last, incomplete block for the checksum."""
        self.rows = base["shape"][0]
        self._checksum = BlockChecksum(complete := complete_blocks(base, self._size))
        read = len(complete) * checksums.BLOCK_BYTES
        self._file.seek(HEADER_BYTES + read)
        while read < self._size:
            raw = self._file.read(min(self._size - read, checksums.READ_BYTES))
            self._checksum.update(raw)
            read += len(raw)

    @property
    def _size(self) -> int:
        return self.rows * self.dtype.itemsize * (1 if self.width is None else self.width)

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
        self._file.truncate(HEADER_BYTES + self._size)  # it may be longer where an earlier `append` was killed
        self._file.seek(0)
        self._write(npy_header(self.dtype, shape))
        os.fsync(self._file.fileno())
        self._file.close()
        return {"dtype": self.dtype.str, "shape": shape, **self._checksum.entry()}

    def discard(self) -> None:
        """Closes the file without finishing it."""
        self._file.close()


class ColumnFiles:
    """The columns of a folder while they are written; at the end of a `with` block files left open are closed."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._columns: dict[str, ColumnWriter] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: Any) -> None:
        self.discard()

    def column(self, name: str, dtype: npt.DTypeLike, width: int | None = None) -> ColumnWriter:
        """Returns the writer of a column, opened on first use."""
        if name not in self._columns:
            self._columns[name] = ColumnWriter(self.folder / f"{name}.npy", dtype, width)
        return self._columns[name]

    def continued_column(self, name: str, log: EventLog) -> ColumnWriter:
        """Returns a writer that adds rows to a column of `log`, in the same file under a second name in this folder.

        Readers of the log are not disturbed: they read as many rows as its log.json says. A file that has other names
        already is copied, since whoever made them may add rows to it too.
        """
        assert log.path is not None
        entry, source = log.metadata["columns"][name], log.path / f"{name}.npy"
        path = self.folder / source.name
        if source.stat().st_nlink > 1:
            shutil.copyfile(source, path)
        else:
            link_or_copy(source, path)
        width = entry["shape"][1] if len(entry["shape"]) == 2 else None
        self._columns[name] = ColumnWriter(path, entry["dtype"], width, entry)
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

    def categories(self, side: str, codes: Array, names: Sequence[IdIndex]) -> None:
        """Writes the categories of items or users, int32[.., C], and the names of those in each of the C columns."""
        if names:
            self.column(f"{side}_categories", np.int32, len(names)).append(codes)
        for k, ids in enumerate(names):
            self.ids(f"category_{k}_ids" if side == "item" else f"{side}_category_{k}_ids", ids)

    def close(self) -> dict[str, dict[str, Any]]:
        """Finishes all files and returns their entries in log.json."""
        return {name: column.close() for name, column in self._columns.items()}

    def discard(self) -> None:
        for column in self._columns.values():
            column.discard()


class LogWriter(ColumnFiles):
    """Writes a log folder that appears complete when the `with` block succeeds, and not at all otherwise.

    with LogWriter(out, force=False) as writer:
        writer.column("user", np.int32).append(...)
        writer.ids("user_ids", ids)
        writer.finish(events=…, users=…, …)      # the metadata; required
    """

    def __init__(self, out: str | os.PathLike[str], *, force: bool = False) -> None:
        super().__init__(Path(out))
        self.out, self.force = Path(out), force
        self._metadata: dict[str, Any] | None = None
        self._open = ExitStack()

    def __enter__(self) -> Self:
        folder = atomic_folder(self.out, force=self.force, is_ours=lambda old: (old / METADATA).is_file())
        self.folder = self._open.enter_context(folder)
        self._open.callback(self.discard)
        return self

    def __exit__(self, *error: Any) -> None:
        if error[0] is not None:
            self._open.__exit__(*error)
            return
        with self._open:
            assert self._metadata is not None, "finish() was not called"
            metadata = {"format": FORMAT, "version": VERSION, **self._metadata, "columns": self.close()}
            text = json.dumps(metadata, indent=1, ensure_ascii=False)
            (self.folder / METADATA).write_text(text + "\n", encoding="utf-8")

    def finish(self, **metadata: Any) -> None:
        """Sets the content of log.json, except for the entries of the columns."""
        self._metadata = metadata


def link_or_copy(source: str | os.PathLike[str], target: str | os.PathLike[str]) -> None:
    """Gives a file a second name; copies it where the file system has no hard links."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copyfile(source, target)
