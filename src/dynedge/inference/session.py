"""A trained model with the state it is in now: new events move the state, and questions get answers.

Entities are rows here, as the model knows them, but for `observe`, to which anyone may be new; otherwise the users'
own ids are the business of answers.py and incoming.py.

Legend: n users asked about, I items, k items wanted.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from dynedge.data.id_index import GrowableIdIndex
from dynedge.data.log import EventLog
from dynedge.data.timestamps import format_timestamp
from dynedge.data.windows import Window
from dynedge.errors import DataError, UsageError
from dynedge.inference.event_input import Event
from dynedge.inference.late_events import Clock
from dynedge.inference.quantized_search import Sketch
from dynedge.models.base import State
from dynedge.runs.coverage import Coverage
from dynedge.runs.folder import (
    COVERAGE,
    CURRENT_STATE,
    LoadedRun,
    check_finished,
    is_run_folder,
    load_run,
    read_config,
)
from dynedge.training.precision import autocast
from dynedge.utils.arrays import Array
from dynedge.utils.atomic_io import atomic_folder
from dynedge.utils.file_lock import LOCK
from dynedge.utils.progress import Progress
from dynedge.utils.tensor_io import load_tensors, save_tensors, select_prefix, with_prefixes

WALK = 4096  # events taken in together
SCORES = 1 << 22  # held at once: users × items
SKETCHED = 4096  # items from which a sketch pays
NOBODY = -1  # in the place of an item: there is none to recommend


class Live:
    """`coverage` says what the state has taken in: the training events, unless it went on from there."""

    def __init__(self, folder: Path, trained: LoadedRun, coverage: Coverage) -> None:
        self.folder, self.config, self.ids = folder, trained.config, trained.log
        self.model, self.state, self.coverage = trained.model.eval(), trained.state, coverage
        self.users, self.items = GrowableIdIndex(trained.log.user_ids), GrowableIdIndex(trained.log.item_ids)
        self._size = len(self.users), len(self.items)  # what the model has rows for
        self._sketch: Sketch | None = None

    @classmethod
    def open(cls, folder: str | os.PathLike[str]) -> Live:
        """A run folder, without any data: in the state it was saved in, else in that at the end of its training."""
        path = Path(folder)
        check_finished(path)
        device = torch.device(read_config(path).training.device)
        usable = device.type == "cpu" or torch.cuda.is_available()
        trained = load_run(path, str(device) if usable else "cpu")
        live = cls(path, trained, Coverage.from_tensors(load_tensors(path / COVERAGE)))
        if (path / CURRENT_STATE).is_file():
            now = load_tensors(path / CURRENT_STATE)
            live.state = State(select_prefix(now, "state")).beside(live.state)
            live.coverage = Coverage.from_tensors(select_prefix(now, "coverage"))
        return live

    @property
    def device(self) -> torch.device:
        """Where it computes; some of the state may be on the host."""
        return next((parameter.device for parameter in self.model.parameters()), torch.device("cpu"))

    @property
    def time_unit(self) -> str:
        """What numbers that stand for times mean: the unit of the log's own."""
        return str(self.ids.metadata.get("time", {}).get("unit", "s"))

    def save(self, out: Path, *, force: bool = False) -> None:
        """A run folder with all that this one's has, and the state as it is now."""
        if self.users.added or self.items.added:
            raise UsageError("a run folder has the ids of its log alone; states with later ones live in a service.")
        now = with_prefixes(state=dict(self.state), coverage=self.coverage.tensors())
        with atomic_folder(out, force=force, is_ours=is_run_folder) as beside:
            left_out = shutil.ignore_patterns("checkpoints", LOCK, CURRENT_STATE)
            shutil.copytree(self.folder, beside, ignore=left_out, dirs_exist_ok=True)
            if self.coverage.events != Coverage.from_tensors(load_tensors(self.folder / COVERAGE)).events:
                save_tensors(beside / CURRENT_STATE, now)

    # ---- events

    @torch.no_grad()
    def take_in(self, log: EventLog, events: range, *, quiet: bool = True) -> None:
        """The state moves past these events of a log with the run's own rows, in the order of their times."""
        if events and log.time[events.start] < self.coverage.last_time:
            raise DataError(
                f"an event at {format_timestamp(float(log.time[events.start]))} comes before the newest one that "
                f"{self.folder} knows, at {format_timestamp(self.coverage.last_time)}: "
                "events are taken in in the order of time."
            )
        with Progress(f"walking {self.folder.name} forward", len(events), quiet=quiet) as progress:
            for start in range(events.start, events.stop, WALK):
                piece = range(start, min(start + WALK, events.stop))
                self._move(log, piece)
                progress.advance(len(piece))

    def _move(self, log: EventLog, piece: range) -> None:
        with autocast(self.config.training):
            self.model.observe(Window(log, piece), self.state)
        self.coverage.add(log, piece)
        self._moved(log.item[piece.start : piece.stop])

    def _moved(self, items: Array) -> None:
        if self._sketch is not None:
            self._sketch.update(self.model, self.state, np.unique(items).astype(np.int64))

    @cached_property
    def clock(self) -> Clock:
        return Clock(len(self.users), len(self.items), self.coverage.last_time)

    @torch.no_grad()
    def observe(self, events: Sequence[Event]) -> EventLog:
        """The states move past these events in the order given; who is new gets a row and starts as nobody known.

        Any split of the events into calls ends in the same bits. What comes back are the events as they were taken
        in, rows and times; `label` is 1 for those that were late (clock.py).
        """
        user = np.array([self.users.add(event.user) for event in events], np.int32)
        item = np.array([self.items.add(event.item) for event in events], np.int32)
        self.grow()
        time, late = self.clock.take(user, item, np.array([event.time for event in events], np.float64))
        log = replace(self._log(user, item, time, events), label=late.astype(np.float32))
        for start in range(0, len(log), WALK):
            self._move(log, range(start, min(start + WALK, len(log))))
        return log

    def _log(self, user: Array, item: Array, time: Array, events: Sequence[Event]) -> EventLog:
        features = np.zeros((len(events), self.ids.features.shape[1]), np.float32)
        for row, event in zip(features, events, strict=True):
            if event.features:
                row[:] = event.features
        return EventLog(user, item, time, self.ids.user_ids, self.ids.item_ids, features)

    def grow(self) -> None:
        """Everything has a row for every name."""
        users, items = len(self.users), len(self.items)
        if (users, items) != self._size:
            self.model.grow(users, items, self.state)
            self.coverage.grow(items)
            self.clock.grow(users, items)
            if self._sketch is not None:
                self._sketch.grow(self.model, self.state, items)
            self._size = users, items

    def walk_to(self, log: EventLog, time: float | None = None, *, quiet: bool = True) -> int:
        """Take in what a log with the run's own rows has beyond the known events, up to `time`; how many that is.

        In the run's own log, what is known is known by position; in another, by time. To a time before the newest
        known event it walks from the log's beginning, which only the run's own log has.
        """
        trained_on, position = self.ids.metadata.get("trained_on", {}), self.coverage.events
        own = log.fingerprint == trained_on.get("fingerprint")
        if time is not None and time < self.coverage.last_time:
            if not own:
                raise UsageError(
                    f"{self.folder} knows events up to {format_timestamp(self.coverage.last_time)}: "
                    f"going back to {format_timestamp(time)} takes "
                    f"the log it was trained on, {trained_on.get('path', 'which was in memory')}."
                )
            self.state, self.coverage = self.model.start(), Coverage.empty(len(self.coverage.item_counts))
            start = 0
        elif own and 0 < position <= len(log) and log.time[position - 1] == self.coverage.last_time:
            start = position
        else:
            start = int(np.searchsorted(log.time, self.coverage.last_time, "right"))
        stop = len(log) if time is None else int(np.searchsorted(log.time, time, "right"))
        self.take_in(log, range(start, max(start, stop)), quiet=quiet)
        return max(stop - start, 0)

    # ---- answers

    @torch.no_grad()
    def make_searchable(self, at_least: int = SKETCHED) -> None:
        """From now on the best of many items are found by a sketch of them, where the model's scores allow it."""
        many = len(self.items) >= at_least and self.device.type == "cpu" and len(self.users)
        if many and self.model.asked(0, self.coverage.last_time, self.state) is not None:
            self._sketch = Sketch(self.model, self.state, len(self.items))

    @contextmanager
    def supposing(self, event: Event) -> Iterator[None]:
        """Inside, an event has happened that did not: of users and items that are known."""
        rows = self.users.find(event.user), self.items.find(event.item)
        user, item = (np.array([row], np.int32) for row in rows)  # as `observe` has them
        log = self._log(user, item, self.clock.raised(user, item, np.array([event.time])), [event])
        newest = self.coverage.last_time
        with torch.no_grad(), autocast(self.config.training):
            undo = self.model.suppose(Window(log, range(1)), self.state)
        self._moved(log.item)
        self.coverage.last_time = max(newest, float(log.time[0]))
        try:
            yield
        finally:
            undo()
            self._moved(log.item)
            self.coverage.last_time = newest

    def recommend(
        self,
        users: Array,
        k: int,
        time: float | None = None,
        *,
        filter_seen: bool = False,
        after: Callable[[int], object] = lambda users: None,
    ) -> tuple[Array, Array]:
        """(items int64[n, k], scores float32[n, k]), best first; NOBODY where fewer items have any score.

        A bounded number of scores is held at once; `after` is told each piece's number of users.
        """
        if k < 1:
            raise UsageError(f"k {k} should be at least 1.")
        moment = self.coverage.last_time if time is None else time
        if moment < self.coverage.last_time:
            raise UsageError(
                f"time {format_timestamp(moment)} is before the newest event that {self.folder} knows, at "
                f"{format_timestamp(self.coverage.last_time)}; it answers for that moment or a later one."
            )
        shape, rows = (len(users), min(k, len(self.items))), max(1, SCORES // max(len(self.items), 1))
        items, scores = np.empty(shape, np.int64), np.empty(shape, np.float32)
        for start in range(0, len(users), rows):
            piece = slice(start, min(start + rows, len(users)))
            items[piece], scores[piece] = self._best(torch.from_numpy(users[piece]).long(), k, moment, filter_seen)
            after(piece.stop - piece.start)
        return items, scores

    @torch.no_grad()
    def _best(self, users: Tensor, k: int, moment: float, filter_seen: bool) -> tuple[Array, Array]:
        if self._sketch is not None:
            found = [self._searched(user, k, moment, filter_seen) for user in users.tolist()]
            return np.stack([items for items, _ in found]), np.stack([scores for _, scores in found])
        users = users.to(self.device)
        times = torch.full((len(users),), moment, dtype=torch.float64, device=self.device)
        with autocast(self.config.training):
            scores = self.model.peek(users, times, None, self.state).float()
        scores.nan_to_num_(nan=-torch.inf, posinf=torch.inf, neginf=-torch.inf)
        if filter_seen:
            scores.masked_fill_(self._seen(users), -torch.inf)
        best, items = scores.topk(min(k, scores.shape[1]))
        items = items.masked_fill(best == -torch.inf, NOBODY)
        return np.asarray(items.cpu()), np.asarray(best.cpu())

    def _searched(self, user: int, k: int, moment: float, filter_seen: bool) -> tuple[Array, Array]:
        asked = self.model.asked(user, moment, self.state)
        assert asked is not None and self._sketch is not None
        base, query = asked
        if filter_seen:
            base = base.masked_fill(self._seen(torch.tensor([user]))[0], -torch.inf)
        best, items = self._sketch.best(base, query, min(k, len(self.items)), self.model, self.state)
        return np.asarray(items.masked_fill(best == -torch.inf, NOBODY)), np.asarray(best)

    def _seen(self, users: Tensor) -> Tensor:
        seen = self.model.seen(users, self.state)
        if seen is None:
            raise UsageError(
                f"{self.folder}: the model {self.config.name} does not remember which items a user has had, so they "
                "cannot be left out; edge, memory, counts and the heuristics recent and …-unseen do."
            )
        return seen.to(users.device)

    def popular(self, k: int) -> tuple[Array, Array]:
        """What is told of somebody unknown: (items, their shares of all known events), best first."""
        items = np.argsort(-self.coverage.item_counts, kind="stable")[:k]
        items = items[self.coverage.item_counts[items] > 0]
        return items, (self.coverage.item_counts[items] / max(self.coverage.events, 1)).astype(np.float32)

    @torch.no_grad()
    def vectors(self) -> tuple[Array, Array]:
        """float32[users, …] and float32[items, …]: each user's and each item's vector, as it is now."""
        found = self.model.vectors(self.state)
        if found is None:
            raise UsageError(
                f"{self.folder}: the model {self.config.name} has no vectors of users and items; edge and recurrence "
                "have."
            )
        users, items = (np.asarray(part.float().cpu()) for part in found)
        return users, items
