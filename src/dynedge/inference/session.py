"""A trained model with its current state: applies new events and answers recommendation queries.

Users and items are rows here, except in `observe`, which takes events with external ids and adds unknown ones.

Legend: n users, I items, k items per user.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from dynedge.data.id_index import ExternalId, GrowableIdIndex
from dynedge.data.item_metadata import ItemMetadata
from dynedge.data.log import EventLog
from dynedge.data.run_rows import RunIds
from dynedge.data.timestamps import format_timestamp
from dynedge.data.windows import Window
from dynedge.errors import DataError, UsageError
from dynedge.inference.event_input import COLUMNS, Event, encode_events
from dynedge.inference.late_events import LateEventPolicy
from dynedge.inference.quantized_search import TENS, QuantizedSearch
from dynedge.inference.rules import NO_ITEM, BoundRules, Rules
from dynedge.models.base import NonFiniteStateError, State
from dynedge.models.capabilities import Growable, HasVectors, RemembersSeen, Searchable, apply_with_undo, capable
from dynedge.models.registry import models_with
from dynedge.runs.event_coverage import Coverage
from dynedge.runs.folder import (
    ADDED_IDS,
    CURRENT_STATE,
    RUN_FILES,
    LoadedRun,
    check_finished,
    damage_in,
    is_run_folder,
    load_run,
    read_added_ids,
    read_config,
    read_coverage,
)
from dynedge.runs.manifest import write_manifest
from dynedge.runs.run_config import usable_device
from dynedge.training.precision import autocast
from dynedge.utils.array_type import Array
from dynedge.utils.atomic_io import atomic_folder, write_text
from dynedge.utils.file_lock import LOCK
from dynedge.utils.progress import Progress
from dynedge.utils.tensor_io import Tensors, load_tensors, save_tensors, select_prefix, with_prefixes

OBSERVE_EVENTS = 4096  # events applied to the state together
MAX_SCORES = 1 << 22  # scores in memory at once: users × items
QUANTIZED_ITEMS = 4096  # from this many items, quantized search is faster than scoring all of them
SHOWN_MODELS = 8  # model names in a message
NO_RULES = Rules()

C = TypeVar("C")


def check_k(k: int) -> None:
    """Raises UsageError unless `k` is a number of items."""
    if isinstance(k, bool) or not isinstance(k, int | np.integer):
        raise UsageError(f"k {k!r} should be a whole number.")
    if k < 1:
        raise UsageError(f"k {k} should be at least 1.")


class Session:
    """A run in use: model, state, coverage (which events the state contains) and the external ids of both sides.

    `run_log` has the ids and the metadata of the training log, and no events.
    """

    def __init__(self, folder: Path, trained: LoadedRun, coverage: Coverage) -> None:
        self.folder, self.config, self.run_log = folder, trained.config, trained.log
        self.model, self.state, self.coverage = trained.model.eval(), trained.state, coverage
        self.users = GrowableIdIndex(trained.log.user_ids)
        self.items = self.users if trained.log.one_population else GrowableIdIndex(trained.log.item_ids)
        self.item_metadata = ItemMetadata(trained.log)
        self._size = len(self.users), len(self.items)  # rows that the model has
        self._search: QuantizedSearch | None = None
        self._newest_pairs: set[tuple[int, int]] = set()  # user and item of applied events at the newest time
        self.not_applied = 0  # events left out because they would have made a state infinite

    @classmethod
    def open(cls, folder: str | os.PathLike[str]) -> Session:
        """Opens a run folder in its saved state, or in the state at the end of training; needs no log."""
        path = Path(folder)
        check_finished(path)
        trained = load_run(path, usable_device(read_config(path).training))
        session = cls(path, trained, read_coverage(path, trained.log.num_items))
        if (path / CURRENT_STATE).exists():
            saved = load_tensors(path / CURRENT_STATE)
            session.add_ids(*read_added_ids(path))
            with damage_in(path / CURRENT_STATE):
                session.restore(select_prefix(saved, "state"), select_prefix(saved, "coverage"))
            session.__dict__.pop("late_events", None)  # it is of the end of training
        return session

    def add_ids(self, users: Iterable[ExternalId], items: Iterable[ExternalId]) -> None:
        """Adds users and items without events, in this order."""
        for ids, added in ((self.users, users), (self.items, items)):
            for external_id in added:
                ids.add(external_id)
        self.grow()

    def restore(self, state: Tensors, coverage: Tensors) -> None:
        """Replaces state and coverage by those of a file; DataError, with nothing changed, if they do not fit."""
        self.model.check_state(State(state))
        self.coverage = Coverage.from_tensors(coverage, len(self.items))
        self.state = State(state).placed_like(self.state)

    @cached_property
    def device(self) -> torch.device:
        """The device of the model's parameters; parts of the state may be in host memory."""
        return self.model.device

    @property
    def time_unit(self) -> str:
        """The unit of numeric timestamps, as in the training log."""
        return str(self.run_log.metadata.get("time", {}).get("unit", "s"))

    def save(self, out: Path, *, force: bool = False) -> None:
        """Writes a copy of the run folder with the current state."""
        added = {"users": self.users.added, "items": self.items.added}
        current = with_prefixes(state=dict(self.state), coverage=self.coverage.tensors())
        with atomic_folder(out, force=force, is_ours=is_run_folder) as partial:
            excluded = shutil.ignore_patterns("checkpoints", LOCK, CURRENT_STATE, ADDED_IDS)
            shutil.copytree(self.folder, partial, ignore=excluded, dirs_exist_ok=True)
            if self.coverage.events != read_coverage(self.folder, self.run_log.num_items).events:
                save_tensors(partial / CURRENT_STATE, current)
                if any(added.values()):
                    write_text(partial / ADDED_IDS, json.dumps(added) + "\n")
            write_manifest(partial, RUN_FILES)

    # ---- events

    def encode(self, events: Any, columns: tuple[str, str, str] = COLUMNS) -> EventLog:
        """Returns events of a caller (event_input.py) in the rows of this session, which grows for new ids."""
        can_grow = capable(self.model, Growable) is not None
        ids = RunIds(self.run_log, self.users, self.items, can_grow)
        try:
            return encode_events(ids, events, columns, self.time_unit)
        finally:
            self.grow()

    def update(self, log: EventLog) -> int:
        """Applies the events of an encoded log that are not known yet; returns their number.

        An event is known if it is older than the newest applied one, or if this session has applied an event of the
        same user and item at that time.
        """
        newest = self.coverage.last_time
        is_new = np.asarray(log.time) >= newest
        for k in np.flatnonzero(np.asarray(log.time) == newest).tolist():
            is_new[k] = (int(log.user[k]), int(log.item[k])) not in self._newest_pairs
        if not is_new.all():
            names = "user", "item", "time", "features"
            columns: dict[str, Any] = {name: np.asarray(getattr(log, name))[is_new] for name in names}
            log = replace(log, **columns, label=None, event_id=None)
        self.apply(log, range(len(log)))
        return len(log)

    @torch.no_grad()
    def apply(self, log: EventLog, events: range, *, quiet: bool = True) -> None:
        """Applies events of a log that has the run's rows; they may not be older than the newest applied event."""
        if events and log.time[events.start] < self.coverage.last_time:
            raise DataError(
                f"an event at {format_timestamp(float(log.time[events.start]))} is older than the newest event of "
                f"{self.folder}, at {format_timestamp(self.coverage.last_time)}; "
                "events must be applied in order of time."
            )
        with Progress(f"applying events to {self.folder.name}", len(events), quiet=quiet) as progress:
            for start in range(events.start, events.stop, OBSERVE_EVENTS):
                batch = range(start, min(start + OBSERVE_EVENTS, events.stop))
                self._observe(log, batch)
                progress.advance(len(batch))
        if self.not_applied:
            reason = f"{self.not_applied:,} events were not applied: they would have made states infinite"
            print(f"dynedge: warning: {reason}.", file=sys.stderr)

    def _observe(self, log: EventLog, batch: range) -> None:
        """Applies events; one that would make a state infinite is left out and counted in `not_applied`."""
        try:
            with autocast(self.config.training):
                self.model.observe(Window(log, batch), self.state)
        except NonFiniteStateError:
            if len(batch) == 1:
                self.not_applied += 1
                return
            middle = (batch.start + batch.stop) // 2
            self._observe(log, range(batch.start, middle))
            self._observe(log, range(middle, batch.stop))
            return
        before = self.coverage.last_time
        self.coverage.add(log, batch)
        if self.coverage.last_time > before:
            self._newest_pairs.clear()
        at_newest = batch.start + np.flatnonzero(log.time[batch.start : batch.stop] == self.coverage.last_time)
        self._newest_pairs.update((int(log.user[k]), int(log.item[k])) for k in at_newest)
        self._update_search(log.item[batch.start : batch.stop])

    def _update_search(self, items: Array) -> None:
        if self._search is not None:
            self._search.update(self.state, np.unique(items).astype(np.int64))

    @cached_property
    def late_events(self) -> LateEventPolicy:
        return LateEventPolicy(len(self.users), len(self.items), self.coverage.last_time)

    @torch.no_grad()
    def observe(self, events: Sequence[Event]) -> EventLog:
        """Applies events in the given order; new users and items get rows and the initial state.

        Any split of the events into calls gives bitwise the same state. Returns the events as applied, with rows and
        effective times; `label` is 1 for late events (late_events.py).
        """
        user = np.array([self.users.add(event.user) for event in events], np.int32)
        item = np.array([self.items.add(event.item) for event in events], np.int32)
        self.grow()
        time, late = self.late_events.apply(user, item, np.array([event.time for event in events], np.float64))
        log = self._log(user, item, time, events, late.astype(np.float32))
        for start in range(0, len(log), OBSERVE_EVENTS):
            self._observe(log, range(start, min(start + OBSERVE_EVENTS, len(log))))
        return log

    def _log(
        self, user: Array, item: Array, time: Array, events: Sequence[Event], label: Array | None = None
    ) -> EventLog:
        features = np.zeros((len(events), self.run_log.features.shape[1]), np.float32)
        for row, event in zip(features, events, strict=True):
            if event.features:
                row[:] = event.features
        return EventLog(user, item, time, self.run_log.user_ids, self.run_log.item_ids, features, label)

    def grow(self) -> None:
        """Grows every table to the current number of users and items."""
        users, items = len(self.users), len(self.items)
        if (users, items) != self._size:
            growable = self.require(Growable, "accepts no users or items beyond its training log")
            growable.grow(users, items, self.state)
            self.coverage.grow(items)
            self.late_events.grow(users, items)
            if self._search is not None:
                self._search.grow(self.state, items)
            self._size = users, items

    def advance_to(self, log: EventLog, time: float | None = None, *, quiet: bool = True) -> int:
        """Applies the events of a log that the state does not contain yet, up to `time`; returns their number.

        In the training log, covered events are recognised by position; in another log, by time. For a `time` before
        the newest covered event the state restarts from the beginning, which needs the training log.
        """
        trained_on, position = self.run_log.metadata.get("trained_on", {}), self.coverage.events
        is_training_log = log.fingerprint == trained_on.get("fingerprint")
        if time is not None and time < self.coverage.last_time:
            if not is_training_log:
                raise UsageError(
                    f"{self.folder} contains events up to {format_timestamp(self.coverage.last_time)}: going back to "
                    f"{format_timestamp(time)} needs the log it was trained on, "
                    f"{trained_on.get('path', 'which was in memory')}."
                )
            self.state, self.coverage = self.model.start(), Coverage.empty(len(self.coverage.item_counts))
            self._newest_pairs.clear()
            start = 0
        elif is_training_log and 0 < position <= len(log) and log.time[position - 1] == self.coverage.last_time:
            start = position
        else:
            start = int(np.searchsorted(log.time, self.coverage.last_time, "right"))
        stop = len(log) if time is None else int(np.searchsorted(log.time, time, "right"))
        self.apply(log, range(start, max(start, stop)), quiet=quiet)
        return max(stop - start, 0)

    @contextmanager
    def hypothetical(self, event: Event) -> Iterator[None]:
        """Context in which an event of a known user and item has been applied; it is undone on exit."""
        rows = self.users.find(event.user), self.items.find(event.item)
        user, item = (np.array([row], np.int32) for row in rows)  # the dtype of `observe`
        log = self._log(user, item, self.late_events.effective_time(user, item, np.array([event.time])), [event])
        newest = self.coverage.last_time
        with torch.no_grad(), autocast(self.config.training):
            undo = apply_with_undo(self.model, Window(log, range(1)), self.state)
        self._update_search(log.item)
        self.coverage.last_time = max(newest, float(log.time[0]))
        try:
            yield
        finally:
            undo()
            self._update_search(log.item)
            self.coverage.last_time = newest

    # ---- queries

    @torch.no_grad()
    def enable_quantized_search(self, min_items: int = QUANTIZED_ITEMS) -> None:
        """Uses quantized search from now on, if there are enough items and the model's scores allow it."""
        enough = len(self.items) >= min_items and self.device.type == "cpu" and len(self.users)
        searchable = capable(self.model, Searchable)
        if enough and searchable is not None:
            self._search = QuantizedSearch(searchable, self.state, len(self.items))

    def top_items(
        self,
        users: Array,
        k: int,
        time: float | None = None,
        rules: Rules = NO_RULES,
        *,
        after: Callable[[int], object] = lambda users: None,
    ) -> tuple[Array, Array]:
        """Returns the k best items of each user: (items int64[n, k], scores float32[n, k]), best first.

        Padded with NO_ITEM where fewer items are eligible. Memory for scores is bounded; `after(n)` reports progress
        in users.
        """
        check_k(k)
        query_time = self.coverage.last_time if time is None else time
        if query_time < self.coverage.last_time:
            raise UsageError(
                f"time {format_timestamp(query_time)} is before the newest event of {self.folder}, at "
                f"{format_timestamp(self.coverage.last_time)}; recommendations are for that time or later."
            )
        bound = self._bind(rules)
        shape, batch = (len(users), min(k, len(self.items))), max(1, MAX_SCORES // max(len(self.items), 1))
        items, scores = np.empty(shape, np.int64), np.empty(shape, np.float32)
        for start in range(0, len(users), batch):
            part = slice(start, min(start + batch, len(users)))
            rows = torch.from_numpy(users[part]).long()
            items[part], scores[part] = self._top_items(rows, shape[1], query_time, bound)
            after(part.stop - part.start)
        return items, scores

    def _bind(self, rules: Rules) -> BoundRules:
        return rules.bind(self.items, self.item_metadata, self._unit_item_vectors)

    @torch.no_grad()
    def _top_items(self, users: Tensor, k: int, time: float, rules: BoundRules) -> tuple[Array, Array]:
        if self._search is not None:
            lists = [self._search_items(user, k, time, rules) for user in users.tolist()]
            return np.stack([items for items, _ in lists]), np.stack([scores for _, scores in lists])
        users = users.to(self.device)
        times = torch.full((len(users),), time, dtype=torch.float64, device=self.device)
        with autocast(self.config.training):
            scores = self.model.score_query(users, times, None, self.state).float()
        scores.nan_to_num_(nan=-torch.inf, posinf=torch.inf, neginf=-torch.inf)
        if rules.filter_seen:
            scores.masked_fill_(self._seen(users), -torch.inf)
        return rules.best(rules.adjust(scores), k)

    def _search_items(self, user: int, k: int, time: float, rules: BoundRules) -> tuple[Array, Array]:
        search = self._search
        assert search is not None
        base, vector = search.model.query_vector(user, time, self.state)
        if rules.filter_seen:
            base = base.masked_fill(self._seen(torch.tensor([user]))[0], -torch.inf)
        adjusted, largest = rules.adjust(base), TENS + rules.largest_boost

        def best(number: int) -> tuple[Tensor, Tensor]:
            return search.top_k(adjusted, vector, number, self.state, largest)

        return rules.best_of_one(best, k, len(self.items))

    def _seen(self, users: Tensor) -> Tensor:
        model = self.require(RemembersSeen, "does not remember which items a user has seen")
        return model.seen_items(users, self.state).to(users.device)

    def popular(self, k: int, rules: Rules = NO_RULES) -> tuple[Array, Array]:
        """Returns the k most frequent items and their shares of all events, the fallback for unknown users.

        Boosts and the minimum score are of the model's scores, and do not apply to shares.
        """
        counts = self.coverage.item_counts[: len(self.items)]
        shares = (counts / max(self.coverage.events, 1)).astype(np.float32)
        eligible = torch.from_numpy(np.where(shares > 0, shares, -np.inf).astype(np.float32))
        bound = replace(self._bind(rules), boost=None, min_score=-np.inf)
        order = torch.sort(bound.adjust(eligible), descending=True, stable=True)
        items, scores = bound.best_of_one(lambda n: (order.values[:n], order.indices[:n]), k, len(self.items))
        found = items != NO_ITEM
        return items[found], scores[found]

    @torch.no_grad()
    def _unit_item_vectors(self) -> Tensor:
        """float32[I, d]: the centred vectors of all items, of length one."""
        vectors = self.require(HasVectors, "has no item vectors, which diversity needs").vectors(self.state)[1]
        items = vectors.float().flatten(1)
        return torch.nn.functional.normalize(items - items.mean(0), dim=1)

    @torch.no_grad()
    def vectors(self) -> tuple[Array, Array]:
        """Returns the current vectors of all users and of all items, float32[users, …] and float32[items, …]."""
        vectors = self.require(HasVectors, "has no vectors of users and items").vectors(self.state)
        users, items = (np.asarray(part.float().cpu()) for part in vectors)
        return users, items

    def require(self, capability: type[C], otherwise: str) -> C:
        """Returns the model if it has a capability; else raises UsageError with the names of models that have it."""
        model = capable(self.model, capability)
        if model is None:
            names = models_with(capability)
            more = f" and {len(names) - SHOWN_MODELS} more" if len(names) > SHOWN_MODELS else ""
            able = ", ".join(names[:SHOWN_MODELS]) + more
            raise UsageError(f"{self.folder}: the model {self.config.name} {otherwise}; models that can: {able}.")
        return model
