"""Negative items of a leaderboard, stored with a log: LOG/negatives has those of its last events.

Legend: n events, the last ones of the log; the negatives of event k of them are items[offsets[k]:offsets[k + 1]].
"""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
from numpy.lib import format as npy

from dynedge.data.log import EventLog
from dynedge.errors import DataError
from dynedge.utils.array_type import Array
from dynedge.utils.atomic_io import atomic_folder
from dynedge.utils.file_checks import check_regular, read_json_object, remembered_sha256

FOLDER, ABOUT = "negatives", "negatives.json"
COLUMNS = "offsets", "items"


@dataclass(frozen=True, eq=False)
class StoredNegatives:
    """The negatives of a log's events from position `start` on; an event may have none."""

    start: int
    offsets: Array  # int64[n + 1]
    items: Array  # int32[..]

    def counts(self, events: range) -> Array:
        """int64[events]: the number of negatives of each; 0 before `start`."""
        first, last = max(events.start - self.start, 0), max(events.stop - self.start, 0)
        return np.pad(np.diff(self.offsets[first : last + 1]), (len(events) - (last - first), 0))

    def of(self, events: range) -> Array:
        """int32[..]: the negatives of these events, one event after the other."""
        first, last = max(events.start - self.start, 0), max(events.stop - self.start, 0)
        return np.asarray(self.items[self.offsets[first] : self.offsets[last]])

    @cached_property
    def most(self) -> int:
        """The largest number of negatives of an event."""
        return int(np.diff(self.offsets).max(initial=0))


def write_negatives(log: EventLog, negatives: StoredNegatives) -> None:
    """Stores negatives with a log on disk; they appear complete or not at all."""
    assert log.path is not None
    folder = log.path / FOLDER
    with atomic_folder(folder, force=True, is_ours=lambda path: (path / ABOUT).is_file()) as partial:
        np.save(partial / "offsets.npy", negatives.offsets.astype(np.int64))
        np.save(partial / "items.npy", negatives.items.astype(np.int32))
        about = {"log": log.fingerprint, "start": negatives.start}
        (partial / ABOUT).write_text(json.dumps(about) + "\n", encoding="utf-8")


def remove_negatives(log: EventLog) -> None:
    """Removes the negatives stored with a log, if there are any."""
    if log.path is not None:
        shutil.rmtree(log.path / FOLDER, ignore_errors=True)


def read_negatives(log: EventLog) -> StoredNegatives | None:
    """Returns the negatives stored with a log, memory-mapped; None if it has none.

    Raises DataError if they are damaged or of other events.
    """
    folder = _folder(log)
    if folder is None:
        return None
    about = read_json_object(folder / ABOUT)
    if about.get("log") != log.fingerprint:
        raise DataError(f"{folder} has negatives of other events than {log.path}; prepare the log again.")
    try:
        offsets, items = (_open(folder / f"{name}.npy") for name in COLUMNS)
        start = int(about["start"])
        sound = (
            offsets.dtype == np.int64
            and items.dtype == np.int32
            and offsets.ndim == items.ndim == 1
            and 0 <= start <= len(log)
            and len(offsets) == len(log) - start + 1
            and (offsets[0], offsets[-1]) == (0, len(items))
            and bool((np.diff(offsets) >= 0).all())
            and bool(items.min(initial=0) >= 0)
            and bool(items.max(initial=-1) < log.num_items)
        )
    except (OSError, ValueError, EOFError, KeyError, TypeError, OverflowError):
        sound = False
    if not sound:
        raise DataError(f"{folder} is damaged; prepare the log again.")
    return StoredNegatives(start, offsets, items)


def negatives_checksum(log: EventLog) -> str | None:
    """Returns a checksum of the negatives stored with a log; None if it has none."""
    folder = _folder(log)
    return None if folder is None else "".join(remembered_sha256(folder / f"{name}.npy") for name in COLUMNS)


def _folder(log: EventLog) -> Path | None:
    folder = None if log.path is None else log.path / FOLDER
    return folder if folder is not None and folder.is_dir() else None


def _open(path: Path) -> Array:
    check_regular(path)
    array: Array = npy.open_memmap(path, mode="r")
    return array
