"""Plan cache: the d-nodes chosen for the windows of a log, stored in LOG/plans/KEY.

Only the d-nodes and the statistics of each window are stored. Choosing d-nodes is the slow part; links, levels and
schedules are rebuilt from them at about 80 ns per event, faster than a disk reads their 64 bytes per event (70 M
events take 0.2 MB here instead of 4 GB). KEY is a hash of the training events and of the plan's configuration: rows
that are appended to the log do not invalidate the plan of the same training events (`train_end`). The
index carries a sha256 of the stored data; an entry that does not match is ignored and written again.
"""

from __future__ import annotations

import hashlib
import json
import operator
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np

from dynedge.data.log import EventLog
from dynedge.errors import DataError
from dynedge.utils.array_type import Array
from dynedge.utils.atomic_io import atomic_folder
from dynedge.utils.file_checks import check_regular, read_json_object

VERSION = 4  # raise it when the format changes, or when a method selects other d-nodes than before
FORMAT = "dynedge-plan"
FOLDER, DNODES, INDEX = "plans", "dnodes.npy", "plan.json"


@dataclass(frozen=True)
class PlanConfig:
    """Everything a plan depends on besides the log. At most one of max_dnodes, max_depth and parts is set."""

    train_end: int  # number of training events; only they are planned and counted for the thresholds
    windows: int = 300
    active_users: int | None = None  # n*: users with more training events are active; None means n* = ∞
    active_items: int | None = None
    method: str = "best"
    max_dnodes: int | None = None  # per window
    max_depth: int | None = None  # maximum length of a path
    parts: int | None = None  # per window, for cut-by-time
    # For windows of equal work, the largest number of a user's items that count as work; None: windows of equal size.
    listed: int | None = None

    def key(self, checksum: str) -> str:
        """The name of the cache entry for training events with this checksum."""
        text = json.dumps([VERSION, checksum, asdict(self)], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:32]


class WindowStats(NamedTuple):
    """Size of a planned window; `rows` is the number of states it writes."""

    events: int
    longest_path: int
    dnodes: int
    rows: int


class DNodeChoice(NamedTuple):
    """The d-nodes and the statistics of every window of a plan."""

    dnodes: list[Array]  # sorted codes 2·k + s, one array per window
    stats: list[WindowStats]


class PlanCache:
    """The cache entry of one log and configuration."""

    def __init__(self, log: EventLog, config: PlanConfig) -> None:
        assert log.path is not None
        checksum = log.prefix_checksum(config.train_end)
        self.folder = log.path / FOLDER / config.key(checksum)
        self._metadata = {"format": FORMAT, "version": VERSION, "events": checksum, "config": asdict(config)}

    def read(self, windows: list[range]) -> DNodeChoice | None:
        """The stored choice for these windows, or None if there is no valid entry."""
        try:
            check_regular(self.folder / DNODES)
            index = read_json_object(self.folder / INDEX)
            sha256, stats = index.pop("sha256"), index.pop("stats")
            if index != self._metadata or sha256 != self._digest(stats):
                return None
            codes = np.load(self.folder / DNODES, mmap_mode="r", allow_pickle=False)
            sizes = [WindowStats(*map(operator.index, window)) for window in stats]
            dnodes = np.split(codes, np.cumsum([window.dnodes for window in sizes])[:-1])
            valid = len(sizes) == len(windows) and all(map(_is_valid, dnodes, sizes, map(len, windows)))
        except (OSError, ValueError, KeyError, TypeError, AttributeError, IndexError, EOFError, DataError):
            return None
        return DNodeChoice(dnodes, sizes) if valid else None

    def write(self, choice: DNodeChoice) -> None:
        """Stores a choice atomically. Does nothing if the folder is not writable."""
        try:
            self.folder.parent.mkdir(exist_ok=True)
            with atomic_folder(self.folder, force=True, is_ours=lambda _: True) as folder:
                np.save(folder / DNODES, np.concatenate(choice.dnodes), allow_pickle=False)
                index = self._metadata | {"stats": choice.stats, "sha256": self._digest(choice.stats, folder)}
                (folder / INDEX).write_text(json.dumps(index) + "\n")
        except (OSError, DataError):
            pass

    def _digest(self, stats: Sequence[Sequence[int]], folder: Path | None = None) -> str:
        """sha256 of the statistics and of the file of d-nodes."""
        digest = hashlib.sha256(json.dumps(stats).encode())
        digest.update(((folder or self.folder) / DNODES).read_bytes())
        return digest.hexdigest()


def _is_valid(dnodes: Array, stats: WindowStats, events: int) -> bool:
    """Whether d-nodes of a file can be those of a window of `events` events: ascending and in range."""
    if dnodes.ndim != 1 or dnodes.dtype.kind != "i" or len(dnodes) != stats.dnodes:
        return False
    if stats.events != events or min(stats) < 0:
        return False
    return not len(dnodes) or bool(dnodes[0] >= 0 and dnodes[-1] < 2 * events and (np.diff(dnodes) > 0).all())
