"""EventLog: a time-sorted interaction log as memory-mapped columns, and how its folder is read.

On disk a log is a folder with one `.npy` file per column, the metadata in `log.json`, and `rejects.csv`. A file may
be longer than its column: `dynedge append` adds rows to the files first and then replaces the metadata, which say how
many rows there are, so that readers of the old metadata are not disturbed.
Legend: E events, F numeric features, C categorical item features.
"""

from __future__ import annotations

import hashlib
import math
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from dynedge.data.checksums import array_checksum, file_matches
from dynedge.data.frames import ToFrames, log_to_arrow
from dynedge.data.id_index import IdIndex
from dynedge.data.log_checks import check_metadata, check_values
from dynedge.data.splits import DEFAULT_SPLIT, Split
from dynedge.data.timestamps import LATEST_TIME
from dynedge.errors import DataError, UsageError
from dynedge.utils.array_type import Array
from dynedge.utils.file_checks import check_regular, read_json

FORMAT = "dynedge-log"
VERSION = 1
HEADER_BYTES = 128  # size of every column's .npy header; fixed, so that it can be rewritten in place
METADATA = "log.json"


@dataclass(frozen=True, eq=False)
class EventLog(ToFrames):
    """Events sorted by time, ties in input order. An event's position is its identity.

    >>> log = EventLog.from_arrays(user=[0, 1, 0], item=[2, 2, 0], time=[10, 30, 20])
    >>> log
    EventLog(3 events, 2 users, 3 items, in memory)
    >>> log.item.tolist(), log.to_arrow().column_names
    ([2, 0, 2], ['user_id', 'item_id', 'timestamp'])
    """

    user: Array  # int32[E], dense ids
    item: Array  # int32[E], dense ids
    time: Array  # float64[E], seconds
    user_ids: IdIndex
    item_ids: IdIndex
    features: Array  # float32[E, F]; F = 0 for a log without features
    label: Array | None = None  # float32[E]
    item_categories: Array = field(default_factory=lambda: np.zeros((0, 0), np.int32))  # int32[items, C]; -1: none
    category_ids: tuple[IdIndex, ...] = ()  # names of the categories, one index for each of the C columns
    user_categories: Array = field(default_factory=lambda: np.zeros((0, 0), np.int32))  # the same of users
    user_category_ids: tuple[IdIndex, ...] = ()
    event_ids: IdIndex | None = None
    event_id: Array | None = None  # int32[E] into event_ids
    metadata: dict[str, Any] = field(default_factory=dict)  # content of log.json
    path: Path | None = None

    @classmethod
    def from_arrays(
        cls,
        user: npt.ArrayLike,
        item: npt.ArrayLike,
        time: npt.ArrayLike,
        *,
        features: npt.ArrayLike | None = None,
        label: npt.ArrayLike | None = None,
        num_users: int | None = None,
        num_items: int | None = None,
    ) -> EventLog:
        """Returns a log in memory, built from dense ids and sorted by time; ties keep the given order."""
        u, i, t = np.asarray(user, np.int32), np.asarray(item, np.int32), np.asarray(time, np.float64)
        if not len(u) == len(i) == len(t):
            raise UsageError(f"user, item and time have different lengths: {len(u)}, {len(i)}, {len(t)}.")
        if len(t) and not t.max() <= LATEST_TIME:  # also if one is NaN
            raise UsageError(f"time {t.max()} is after the year 2200; times are in seconds since 1970.")
        order = np.argsort(t, kind="stable")
        f = np.zeros((len(u), 0), np.float32) if features is None else np.asarray(features, np.float32)[order]
        lab = None if label is None else np.asarray(label, np.float32)[order]
        users = int(u.max(initial=-1)) + 1 if num_users is None else num_users
        items = int(i.max(initial=-1)) + 1 if num_items is None else num_items
        return cls(
            user=u[order],
            item=i[order],
            time=t[order],
            user_ids=IdIndex(np.arange(users, dtype=np.int64)),
            item_ids=IdIndex(np.arange(items, dtype=np.int64)),
            features=f,
            label=lab,
            item_categories=np.zeros((items, 0), np.int32),
            user_categories=np.zeros((users, 0), np.int32),
        )

    def __len__(self) -> int:
        return len(self.user)

    def __repr__(self) -> str:
        counts = f"{len(self):,} events, {self.num_users:,} users, {self.num_items:,} items"
        return f"EventLog({counts}, {self.path or 'in memory'})"

    def to_arrow(self) -> Any:
        """Returns the events as a pyarrow.Table: user_id, item_id, timestamp in seconds, and the optional columns.

        Optional are event_id, label, one column per feature and one per categorical item feature.
        """
        return log_to_arrow(self)

    @property
    def num_users(self) -> int:
        return len(self.user_ids)

    @property
    def num_items(self) -> int:
        return len(self.item_ids)

    @property
    def one_population(self) -> bool:
        """Whether users and items are the same entities, with the same dense ids."""
        return bool(self.metadata.get("one_population", False))

    @property
    def split(self) -> Split:
        """The log's default split: the published one of its data set, else 0.8,0.1,0.1."""
        return Split.parse(self.metadata["split"]).at(self.time) if "split" in self.metadata else DEFAULT_SPLIT

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 of the log's contents; cached results carry it, so that they are never used with another log."""
        if "fingerprint" in self.metadata:  # of a part of a log, which has been a log of its own
            return str(self.metadata["fingerprint"])
        digest = hashlib.sha256()
        if "columns" in self.metadata:
            for name, column in sorted(self.metadata["columns"].items()):
                digest.update(f"{name}:{column['sha256']};".encode())
        else:
            for array in (self.user, self.item, self.time, self.features):
                digest.update(np.ascontiguousarray(array).tobytes())
        return digest.hexdigest()

    def prefix_checksum(self, events: int) -> str:
        """SHA-256 of the first `events` events: dense ids, times, features and labels.

        Equal for two logs of which one continues the other, or both a third, up to there, and different otherwise.
        Reads at most one block of each column of a log on disk (data/checksums.py); the rest is in log.json.
        External ids are not included: compare them with `IdIndex.starts_with`.
        """
        columns = {"user": self.user, "item": self.item, "time": self.time, "features": self.features}
        if self.label is not None:
            columns["label"] = self.label
        entries, digest = self.metadata.get("columns", {}), hashlib.sha256(f"{events};".encode())
        for name, column in columns.items():
            digest.update(f"{name}:{array_checksum(column[:events], entries.get(name, {}))};".encode())
        return digest.hexdigest()

    def verify(self) -> None:
        """Reads every column and compares its SHA-256; raises DataError naming the first that differs."""
        assert self.path is not None, "only a log on disk can be verified"
        for name, column in self.metadata["columns"].items():
            with open(self.path / f"{name}.npy", "rb") as file:
                file.seek(HEADER_BYTES)
                if not file_matches(file, _column_bytes(column), column):
                    raise DataError(f"{self.path}: column '{name}' does not match its sha256; prepare the log again.")


def read_log(path: str | os.PathLike[str]) -> EventLog:
    """Opens a log folder with memory-mapped columns, and checks everything in it (data/log_checks.py)."""
    folder = Path(path)
    while True:
        before = _identity(folder)
        try:
            log = _open_log(folder)
        except DataError:
            if _identity(folder) == before:
                raise
        else:
            if _identity(folder) == before:
                return log


def _identity(folder: Path) -> int | None:
    """The folder's inode: another one while it is opened means that it was replaced, and some columns are newer."""
    return folder.stat().st_ino if folder.exists() else None


def _open_log(folder: Path) -> EventLog:
    metadata = _read_metadata(folder)
    columns = {name: _open_column(folder, name, spec) for name, spec in metadata["columns"].items()}
    check_values(folder, columns, metadata)

    def ids(name: str) -> IdIndex:
        return IdIndex(columns[name], columns.get(f"{name}_offsets"))

    return EventLog(
        user=columns["user"],
        item=columns["item"],
        time=columns["time"],
        user_ids=ids("user_ids"),
        item_ids=ids("item_ids"),
        features=columns.get("features", np.zeros((metadata["events"], 0), np.float32)),
        label=columns.get("label"),
        item_categories=columns.get("item_categories", np.zeros((metadata["items"], 0), np.int32)),
        category_ids=tuple(ids(f"category_{k}_ids") for k in range(len(metadata["item_features"]))),
        user_categories=columns.get("user_categories", np.zeros((metadata["users"], 0), np.int32)),
        user_category_ids=tuple(ids(f"user_category_{k}_ids") for k in range(len(metadata.get("user_features", ())))),
        event_ids=ids("event_ids") if "event_ids" in columns else None,
        event_id=columns.get("event_id"),
        metadata=metadata,
        path=folder,
    )


def _read_metadata(folder: Path) -> dict[str, Any]:
    if not folder.is_dir():
        problem = "is a file, not a log folder" if folder.exists() else "does not exist"
        raise DataError(f"{folder} {problem}; make a log with: dynedge prepare FILE --out {folder.stem or 'LOG'}")
    try:
        metadata = read_json(folder / METADATA)
    except FileNotFoundError:
        raise DataError(f"{folder} is not a log: it has no {METADATA}.") from None
    is_log = isinstance(metadata, dict) and metadata.get("format") == FORMAT
    if not is_log or not isinstance(metadata.get("columns"), dict):
        raise DataError(f"{folder / METADATA} is not the metadata of a dynedge log.")
    if metadata.get("version") != VERSION:
        raise DataError(
            f"{folder} is a log of version {metadata.get('version')}; this dynedge reads version {VERSION}: "
            "prepare the log again."
        )
    damage = check_metadata(metadata)
    if damage:
        raise DataError(f"{folder / METADATA}: {damage}; prepare the log again.")
    return metadata


def _open_column(folder: Path, name: str, spec: dict[str, Any]) -> Array:
    path, shape, dtype = folder / f"{name}.npy", tuple(spec["shape"]), np.dtype(spec["dtype"])
    expected = HEADER_BYTES + _column_bytes(spec)
    try:
        size = check_regular(path).st_size
        if size < expected:
            raise DataError(f"{folder}: column '{name}' has {size} bytes instead of {expected}; prepare it again.")
        with open(path, "rb") as file:
            if not _header_fits(file.read(HEADER_BYTES), dtype, shape):
                raise DataError(f"{folder}: column '{name}' has a damaged header; prepare the log again.")
    except FileNotFoundError:
        raise DataError(f"{folder}: column '{name}' is missing; prepare the log again.") from None
    if 0 in shape:
        return np.zeros(shape, dtype)
    return np.memmap(path, dtype, "r", HEADER_BYTES, shape)


def _column_bytes(spec: dict[str, Any]) -> int:
    return math.prod(spec["shape"]) * np.dtype(spec["dtype"]).itemsize


def _header_fits(header: bytes, dtype: np.dtype[Any], shape: Sequence[int]) -> bool:
    """Whether a header is that of a column with at least as many rows."""
    rows = re.search(rb"'shape': \((\d+),", header)
    return rows is not None and int(rows[1]) >= shape[0] and header == npy_header(dtype, (int(rows[1]), *shape[1:]))


def npy_header(dtype: np.dtype[Any], shape: Sequence[int]) -> bytes:
    """Returns the .npy header, padded to HEADER_BYTES."""
    text = repr({"descr": dtype.str, "fortran_order": False, "shape": tuple(shape)})
    body = text.encode("latin1").ljust(HEADER_BYTES - 11) + b"\n"
    return b"\x93NUMPY\x01\x00" + (HEADER_BYTES - 10).to_bytes(2, "little") + body
