"""The plan of a whole log: every window linked, cut and scheduled, in parallel and ahead of whoever trains.

What is cached, beside the log's columns in LOG/plans/KEY, is only which d-nodes were chosen and what they give.
Choosing them is the slow part; links, levels and the schedule come back from them at about 80 ns an event, faster
than a disk reads their 64 bytes an event: 70 M events are 0.2 MB here instead of 4 GB. KEY names the contents of the
log and every setting; the index carries a sha256 of all of it, and what does not match is planned anew.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import NamedTuple, TypeVar

import numpy as np

from dynedge.data.log import EventLog
from dynedge.data.splits import Split
from dynedge.data.statistics import degrees
from dynedge.data.windows import cut_windows
from dynedge.errors import DataError, UsageError
from dynedge.plan import dnodes
from dynedge.plan.cost_model import Cost, depth_within, measure
from dynedge.plan.levels import NO_CUT, levels
from dynedge.plan.links import ACTIVE, Linker, active
from dynedge.plan.schedule import Schedule, build
from dynedge.utils.arrays import Array
from dynedge.utils.atomic_io import atomic_folder
from dynedge.utils.prefetch import prefetch_map

VERSION = 1  # of what is cached: raise it when a method chooses other d-nodes than before
FORMAT = "dynedge-plan"
FOLDER, CODES, INDEX = "plans", "codes.npy", "plan.json"

Result = TypeVar("Result")


@dataclass(frozen=True)
class Setting:
    """What a plan depends on, besides the log. The first `train_end` events are planned, and count for thresholds."""

    train_end: int
    windows: int = 300
    active_users: int | None = None  # n*: more training events than this make a user active; None: n* = ∞
    active_items: int | None = None
    method: str = "best"
    k: int | None = None  # asked by number of d-nodes a window,
    depth: int | None = None  # or by the longest path allowed,
    parts: int | None = None  # or by parts (cut-by-time)

    def key(self, fingerprint: str) -> str:
        text = json.dumps([VERSION, fingerprint, asdict(self)], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:32]


class Stats(NamedTuple):
    """One window in numbers; `rows` are the states it writes."""

    events: int
    longest_path: int
    dnodes: int
    rows: int


class Planned(NamedTuple):
    """One window, ready to run: its positions in the log, its schedule, its numbers."""

    events: range
    schedule: Schedule
    stats: Stats


class Question(NamedTuple):
    """A way of asking for d-nodes: Question("best", k=160)."""

    method: str
    k: int | None = None
    depth: int | None = None
    parts: int | None = None

    def choose(self, prev: Array) -> Array:
        return NO_CUT if self.k == 0 else self._select(prev)

    def check(self) -> None:
        """Refuse what no method answers now, not in a thread."""
        self._select(np.zeros((0, 2), np.int32))

    def _select(self, prev: Array) -> Array:
        return dnodes.select(prev, self.method, k=self.k, depth=self.depth, parts=self.parts)


def plan(
    log: EventLog,
    *,
    split: Split | None = None,
    windows: int = 300,
    active_users: int | None = None,
    active_items: int | None = None,
    method: str = "best",
    k: int | None = None,
    depth: int | None = None,
    parts: int | None = None,
    budget: float | None = None,
    cost: Cost | None = None,
    threads: int | None = None,
    cache: bool = True,
) -> Plan:
    """The plan of a log's training events, asked by one of k, depth, parts, or a budget of seconds an epoch.

    Asked by none it cuts nothing. A budget is met by the greatest depth that `cost` predicts to fit; without a
    cost this machine's CPU is measured. `threads` 0 plans each window only when the consumer asks for it.
    """
    train_end, _ = (split or log.split).bounds(len(log))
    asked = {"k": k, "depth": depth, "parts": parts}
    if sum(value is not None for value in (*asked.values(), budget)) > 1:
        raise UsageError("ask for d-nodes in one way: by number, by depth, by parts or by budget.")

    def of(method: str, **question: int | None) -> Plan:
        setting = Setting(train_end, windows, active_users, active_items, method, **question)
        return Plan(log, setting, threads=threads, cache=cache)

    if budget is not None:
        uncut = of("best", k=0).stats
        longest_paths, rows = [window.longest_path for window in uncut], sum(window.rows for window in uncut)
        return of(method, depth=depth_within(budget, longest_paths, rows, cost or measure()))
    if asked == {"k": None, "depth": None, "parts": None}:
        return of("best", k=0)
    return of(method, **asked)


class Plan:
    """Iterate it, as often as there are epochs: each window in order, as `Planned`.

    The first pass chooses the d-nodes; they are kept, and cached on disk when it ends, so later passes only build.
    Schedules are not kept; who has 36 to 64 bytes an event to spare, and a device that outruns the building, keeps
    them by `list(plan)`.
    """

    def __init__(self, log: EventLog, setting: Setting, *, threads: int | None = None, cache: bool = True) -> None:
        self.log, self.setting = log, setting
        self.threads = len(os.sched_getaffinity(0)) if threads is None else threads
        self.windows = cut_windows(setting.train_end, setting.windows)
        self._question = Question(setting.method, setting.k, setting.depth, setting.parts)
        self._question.check()
        self._cache = Cache(log, setting) if cache and log.path else None
        self._chosen = self._cache.read() if self._cache else None
        self.from_cache = self._chosen is not None

    def __len__(self) -> int:
        return len(self.windows)

    def __iter__(self) -> Iterator[Planned]:
        if self._chosen is not None:
            yield from self._each(self._schedule)
            return
        cuts, stats = [], []
        for planned in self._each(self._schedule):
            cuts.append(planned.schedule.codes)
            stats.append(planned.stats)
            yield planned
        self._keep(Chosen(cuts, stats))

    def since(self, first: int) -> Iterator[Planned]:
        """The windows from number `first` on; all d-nodes are chosen before, if no pass has."""
        self._choose()
        return self._each(self._schedule, range(first, len(self)))

    @property
    def stats(self) -> list[Stats]:
        """Every window in numbers; chooses d-nodes if no pass has, without building schedules."""
        return self._choose().stats

    @property
    def cuts(self) -> list[Array]:
        """Every window's d-nodes: how many φ vectors training needs, and for which states."""
        return self._choose().cuts

    def survey(self, questions: Sequence[Question], of: Iterable[int] | None = None) -> Iterator[list[Stats]]:
        """For each of some windows (else all), what each question would give. Chooses nothing."""

        def ask(w: int, user: Array, item: Array, prev: Array) -> list[Stats]:
            return [_stats(prev, cut, levels(prev, cut)) for cut in (question.choose(prev) for question in questions)]

        return self._each(ask, of)

    def _each(self, work: Callable[..., Result], of: Iterable[int] | None = None) -> Iterator[Result]:
        """work(w, user, item, prev) for each window, in threads ahead of the consumer."""
        linker = self.linker  # here, so that threads do not count the log's events twice

        def run(w: int) -> Result:
            start, stop = self.windows[w].start, self.windows[w].stop
            # Copies: numba compiles once for them, instead of once more for a read-only map.
            user, item = np.array(self.log.user[start:stop]), np.array(self.log.item[start:stop])
            return work(w, user, item, linker(user, item))

        return prefetch_map(run, range(len(self)) if of is None else of, self.threads)

    @cached_property
    def linker(self) -> Linker:
        """Links any of the log's events, with this plan's active entities."""

        def mask(ids: Array, n: int, threshold: int | None) -> Array:
            counts = np.zeros(n) if threshold is None else degrees(ids[: self.setting.train_end], n)
            return active(counts, threshold)

        return Linker(
            mask(self.log.user, self.log.num_users, self.setting.active_users),
            mask(self.log.item, self.log.num_items, self.setting.active_items),
        )

    def _schedule(self, w: int, user: Array, item: Array, prev: Array) -> Planned:
        cut = self._question.choose(prev) if self._chosen is None else self._chosen.cuts[w]
        level = levels(prev, cut)
        return Planned(self.windows[w], build(user, item, prev, cut, level), _stats(prev, cut, level))

    def _choose(self) -> Chosen:
        if self._chosen is not None:
            return self._chosen

        def cut_and_stats(w: int, user: Array, item: Array, prev: Array) -> tuple[Array, Stats]:
            cut = self._question.choose(prev)
            return cut.astype(np.int32), _stats(prev, cut, levels(prev, cut))

        found = list(self._each(cut_and_stats))
        return self._keep(Chosen([cut for cut, _ in found], [stats for _, stats in found]))

    def _keep(self, chosen: Chosen) -> Chosen:
        self._chosen = chosen
        if self._cache:
            self._cache.write(chosen)
        return chosen


def _stats(prev: Array, cut: Array, level: Array) -> Stats:
    return Stats(len(prev), int(level.max(initial=0)), len(cut), int(np.count_nonzero(prev != ACTIVE)))


class Chosen(NamedTuple):
    """Every window's d-nodes and numbers."""

    cuts: list[Array]
    stats: list[Stats]


class Cache:
    """One plan's place on disk. What is there is whole and of this log and setting, or it is not read."""

    def __init__(self, log: EventLog, setting: Setting) -> None:
        assert log.path is not None
        self.folder = log.path / FOLDER / setting.key(log.fingerprint)
        self._card = {"format": FORMAT, "version": VERSION, "log": log.fingerprint, "setting": asdict(setting)}

    def read(self) -> Chosen | None:
        try:
            index = json.loads((self.folder / INDEX).read_bytes())
            sha256, stats = index.pop("sha256"), index.pop("stats")
            if index != self._card or sha256 != self._digest(stats):
                return None
            codes = np.load(self.folder / CODES, mmap_mode="r", allow_pickle=False)
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return None
        found = [Stats(*window) for window in stats]
        return Chosen(np.split(codes, np.cumsum([window.dnodes for window in found])[:-1]), found)

    def write(self, chosen: Chosen) -> None:
        """Whole or not at all; a place that cannot be written just keeps no plans."""
        try:
            self.folder.parent.mkdir(exist_ok=True)
            with atomic_folder(self.folder, force=True, is_ours=lambda _: True) as place:
                np.save(place / CODES, np.concatenate(chosen.cuts), allow_pickle=False)
                index = self._card | {"stats": chosen.stats, "sha256": self._digest(chosen.stats, place)}
                (place / INDEX).write_text(json.dumps(index) + "\n")
        except (OSError, DataError):
            pass

    def _digest(self, stats: Sequence[Sequence[int]], folder: Path | None = None) -> str:
        """Over the numbers and the file of codes."""
        digest = hashlib.sha256(json.dumps(stats).encode())
        digest.update(((folder or self.folder) / CODES).read_bytes())
        return digest.hexdigest()
