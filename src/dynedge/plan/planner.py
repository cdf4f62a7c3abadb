"""Planner: links, d-nodes and schedules of a log's training windows, computed in threads ahead of the consumer."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property
from typing import NamedTuple, TypeVar

import numpy as np

from dynedge.data.log import EventLog
from dynedge.data.splits import Split
from dynedge.data.statistics import degrees
from dynedge.data.windows import cut_windows
from dynedge.errors import UsageError
from dynedge.plan.cost_model import CostModel, max_depth_within, measure_cpu
from dynedge.plan.dnodes import select_dnodes
from dynedge.plan.levels import NO_DNODES, levels
from dynedge.plan.links import ACTIVE, Linker, active_mask
from dynedge.plan.plan_cache import DNodeChoice, PlanCache, PlanConfig, WindowStats
from dynedge.plan.schedule import Schedule, build_schedule
from dynedge.plan.window_work import windows_of_equal_work
from dynedge.utils.array_type import Array
from dynedge.utils.prefetch import prefetch_map

Result = TypeVar("Result")


class PlannedWindow(NamedTuple):
    """One window ready to run: its positions in the log, its schedule and its statistics."""

    events: range
    schedule: Schedule
    stats: WindowStats


class DNodeRequest(NamedTuple):
    """A d-node method with the limit it is given, such as DNodeRequest("best", max_dnodes=160)."""

    method: str
    max_dnodes: int | None = None
    max_depth: int | None = None
    parts: int | None = None

    def select(self, prev: Array, time: Array) -> Array:
        """The d-nodes of a window, given its links and the times of its events."""
        return NO_DNODES if self.max_dnodes == 0 else self._select(prev, time)

    def check(self) -> None:
        """Raises UsageError if the method does not exist or does not accept the limit."""
        self._select(np.zeros((0, 2), np.int32), np.zeros(0))

    def _select(self, prev: Array, time: Array) -> Array:
        limits = {"max_dnodes": self.max_dnodes, "max_depth": self.max_depth, "parts": self.parts}
        return select_dnodes(prev, self.method, **limits, time=time)


def plan_log(
    log: EventLog,
    *,
    split: Split | None = None,
    windows: int = 300,
    active_users: int | None = None,
    active_items: int | None = None,
    method: str = "best",
    max_dnodes: int | None = None,
    max_depth: int | None = None,
    parts: int | None = None,
    budget: float | None = None,
    cost: CostModel | None = None,
    threads: int | None = None,
    cache: bool = True,
) -> Plan:
    """The plan of a log's training events, with at most one of max_dnodes, max_depth, parts or budget.

    Without any of them no d-nodes are used. A budget, in seconds per epoch, is met with the greatest depth that
    `cost` predicts to fit; the default cost model is measured on this machine's CPU. With `threads` 0 each window is
    planned only when the consumer asks for it.
    """
    train_end, _ = (split or log.split).bounds(len(log))
    limits = {"max_dnodes": max_dnodes, "max_depth": max_depth, "parts": parts}
    if sum(value is not None for value in (*limits.values(), budget)) > 1:
        raise UsageError("give only one of max_dnodes, max_depth, parts and budget.")

    def make(method: str, **limits: int | None) -> Plan:
        config = PlanConfig(train_end, windows, active_users, active_items, method, **limits)
        return Plan(log, config, threads=threads, cache=cache)

    if budget is not None:
        uncut = make("best", max_dnodes=0).stats
        longest_paths, rows = [window.longest_path for window in uncut], sum(window.rows for window in uncut)
        return make(method, max_depth=max_depth_within(budget, longest_paths, rows, cost or measure_cpu()))
    if all(value is None for value in limits.values()):
        return make("best", max_dnodes=0)
    return make(method, **limits)


class Plan:
    """Iterable over the planned windows of a log, in order; iterate it once per epoch.

    The first pass chooses the d-nodes, which are cached in memory, and on disk when the pass ends. Later passes only
    build schedules. Schedules are not cached: `list(plan)` stores them at 36 to 64 bytes per event, which pays only
    for a device that is faster than building them.
    """

    def __init__(self, log: EventLog, config: PlanConfig, *, threads: int | None = None, cache: bool = True) -> None:
        self.log, self.config = log, config
        self.threads = len(os.sched_getaffinity(0)) if threads is None else threads
        self.windows = _cut(log, config)
        self._request = DNodeRequest(config.method, config.max_dnodes, config.max_depth, config.parts)
        self._request.check()
        self._cache = PlanCache(log, config) if cache and log.path else None
        self._choice = self._cache.read(self.windows) if self._cache else None
        self.from_cache = self._choice is not None

    def __len__(self) -> int:
        return len(self.windows)

    def __iter__(self) -> Iterator[PlannedWindow]:
        if self._choice is not None:
            yield from self._map_windows(self._plan_window)
            return
        dnodes, stats = [], []
        for planned in self._map_windows(self._plan_window):
            dnodes.append(planned.schedule.dnodes)
            stats.append(planned.stats)
            yield planned
        self._store(DNodeChoice(dnodes, stats))

    def windows_from(self, first: int, stop: int | None = None) -> Iterator[PlannedWindow]:
        """The planned windows from number `first` on, up to `stop`. Chooses all d-nodes first, if not yet done."""
        self._choose()
        return self._map_windows(self._plan_window, range(first, len(self) if stop is None else stop))

    @property
    def stats(self) -> list[WindowStats]:
        """The statistics of every window. Chooses the d-nodes, if not yet done, without building schedules."""
        return self._choose().stats

    @property
    def dnodes(self) -> list[Array]:
        """The d-nodes of every window, as sorted codes 2·k + s: training needs one vector φ for each."""
        return self._choose().dnodes

    def compare_methods(
        self, requests: Sequence[DNodeRequest], windows: Iterable[int] | None = None
    ) -> Iterator[list[WindowStats]]:
        """For each window (default: all), the statistics that each request would give. The plan does not change."""

        def compare(w: int, user: Array, item: Array, prev: Array) -> list[WindowStats]:
            selected = [request.select(prev, self._time(w)) for request in requests]
            return [_window_stats(prev, dnodes, levels(prev, dnodes)) for dnodes in selected]

        return self._map_windows(compare, windows)

    def _map_windows(self, work: Callable[..., Result], windows: Iterable[int] | None = None) -> Iterator[Result]:
        """work(w, user, item, prev) for each window, in threads ahead of the consumer."""
        linker = self.linker  # evaluated here, so that threads do not count the log's events twice

        def run(w: int) -> Result:
            start, stop = self.windows[w].start, self.windows[w].stop
            # Copies: numba would compile the kernels once more for a read-only memory map.
            user, item = np.array(self.log.user[start:stop]), np.array(self.log.item[start:stop])
            return work(w, user, item, linker(user, item))

        return prefetch_map(run, range(len(self)) if windows is None else windows, self.threads)

    def _time(self, w: int) -> Array:
        return self.log.time[self.windows[w].start : self.windows[w].stop]

    @cached_property
    def linker(self) -> Linker:
        """Links any events of the log, with the active entities of this plan."""

        def mask(ids: Array, n: int, threshold: int | None) -> Array:
            counts = np.zeros(n) if threshold is None else degrees(ids[: self.config.train_end], n)
            return active_mask(counts, threshold)

        return Linker(
            mask(self.log.user, self.log.num_users, self.config.active_users),
            mask(self.log.item, self.log.num_items, self.config.active_items),
        )

    def _plan_window(self, w: int, user: Array, item: Array, prev: Array) -> PlannedWindow:
        dnodes = self._request.select(prev, self._time(w)) if self._choice is None else self._choice.dnodes[w]
        level = levels(prev, dnodes)
        schedule = build_schedule(user, item, prev, dnodes, level)
        return PlannedWindow(self.windows[w], schedule, _window_stats(prev, dnodes, level))

    def _choose(self) -> DNodeChoice:
        if self._choice is not None:
            return self._choice

        def choose(w: int, user: Array, item: Array, prev: Array) -> tuple[Array, WindowStats]:
            dnodes = self._request.select(prev, self._time(w))
            return dnodes.astype(np.int32), _window_stats(prev, dnodes, levels(prev, dnodes))

        windows = list(self._map_windows(choose))
        return self._store(DNodeChoice([dnodes for dnodes, _ in windows], [stats for _, stats in windows]))

    def _store(self, choice: DNodeChoice) -> DNodeChoice:
        self._choice = choice
        if self._cache:
            self._cache.write(choice)
        return choice


def _cut(log: EventLog, config: PlanConfig) -> list[range]:
    """The windows of the training events."""
    if config.listed is None:
        return cut_windows(config.train_end, config.windows)
    return windows_of_equal_work(log, config.train_end, config.listed, config.windows)


def _window_stats(prev: Array, dnodes: Array, level: Array) -> WindowStats:
    return WindowStats(len(prev), int(level.max(initial=0)), len(dnodes), int(np.count_nonzero(prev != ACTIVE)))
