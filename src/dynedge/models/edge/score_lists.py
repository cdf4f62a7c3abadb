"""Score lists: for each event some items whose scores get a learned bonus, by the buckets they are in.

Two sources are merged: the items that the user already interacted with (repeat_bonus.py) and those that lately
followed the user's last item (successors.py). An item that both list gets the sum of both bonuses.

Legend: n events of a window, L listed items of all events together.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from dynedge.data.windows import Window
from dynedge.models.base import State
from dynedge.models.edge import repeat_bonus, successors
from dynedge.models.edge.repeat_bonus import RepeatLists
from dynedge.models.growable import grown
from dynedge.ops.list_values import list_values
from dynedge.ops.sampled_softmax import ScoreBonus
from dynedge.plan.schedule import NO_ROW, Schedule
from dynedge.utils.array_type import Array
from dynedge.utils.numba_compile import compiled

FIRST_SUCCESSOR = repeat_bonus.BUCKETS
GATES = 2  # one for each source
NONE = FIRST_SUCCESSOR + successors.BUCKETS  # bucket of an item that a source does not list
LISTED = 64  # listed items that an event has as candidates, where negatives are sampled


class ScoreLists(NamedTuple):
    """The listed items of each event; event k has start[k] to start[k + 1] − 1."""

    start: Tensor  # int64[n + 1]
    event: Tensor  # int64[L]
    item: Tensor  # int64[L], each at most once per event
    bucket: Tensor  # int64[L, 2]: of the repeats and of the successors, or NONE

    def values(self, values: Tensor, gates: Tensor) -> Tensor:
        """[L]: the score offsets, given the learned value of each bucket, times 1 + the event's gates [n, 2]."""
        return list_values(values, gates, self.start, self.event, self.bucket)

    def bonus(self, values: Tensor, gates: Tensor) -> ScoreBonus:
        return ScoreBonus(self.start, self.event, self.item, self.values(values, gates))

    def of_candidates(self, candidates: Tensor) -> Tensor:
        """int64[n, C]: the entry of each candidate int64[n, C] of an event, or L."""
        return torch.from_numpy(_find(self.start.numpy(), self.item.numpy(), candidates.cpu().numpy()))

    def thinned(self, window: Window, most: int) -> tuple[ScoreLists, Tensor]:
        """At most `most` items per event, drawn at equal distances, besides the event's own; and log weights [L].

        A weight is the number of entries that one stands for.
        """
        drawn, start, weight = _thin(self.start.numpy(), self.item.numpy(), window.item, window.events.start, most)
        kept = (part[torch.from_numpy(drawn)] for part in (self.event, self.item, self.bucket))
        return ScoreLists(torch.from_numpy(start), *kept), torch.from_numpy(weight)

    def tensors(self) -> tuple[Tensor, ...]:
        return tuple(self)

    def to(self, device: torch.device) -> ScoreLists:
        return ScoreLists(*(part.to(device) for part in self))


class ListedCandidates(NamedTuple):
    """Lists of which the items are further candidates in training, with the rows they are read from."""

    lists: ScoreLists
    log_weight: Tensor  # float32[L]
    row: Tensor  # int64[L]: of the pool [arena | outside], just before the event
    outside: Tensor  # int64: items without an event in the window

    def tensors(self) -> tuple[Tensor, ...]:
        return *self.lists, self.log_weight, self.row, self.outside

    def to(self, device: torch.device) -> ListedCandidates:
        return ListedCandidates(self.lists.to(device), *(part.to(device) for part in self[1:]))


def listed_candidates(lists: ScoreLists, window: Window, schedule: Schedule, most: int) -> ListedCandidates:
    """At most `most` listed items per event, drawn from its list, as candidates of the event alone."""
    drawn, log_weight = lists.thinned(window, most)
    rows = schedule.rows_before(drawn.item.numpy(), drawn.event.numpy()).astype(np.int64)
    is_outside = rows == NO_ROW
    outside, place = np.unique(drawn.item.numpy()[is_outside], return_inverse=True)
    rows[is_outside] = schedule.rows + place
    return ListedCandidates(drawn, log_weight, torch.from_numpy(rows), torch.from_numpy(outside))


@dataclass(frozen=True)
class ListSources:
    """Which sources a model has. The lists are kept on the host, wherever the model computes."""

    repeats: bool
    successors: bool

    def __bool__(self) -> bool:
        return self.repeats or self.successors

    def start(self, users: int, items: int) -> State:
        """The state before the first event."""
        state = repeat_bonus.empty_lists() if self.repeats else State()
        state.update(successors.empty_lists(users, items) if self.successors else {})
        return state

    def check(self, users: int, items: int, state: State) -> None:
        """Raises DataError unless the lists in a state from a file are in range."""
        if self.repeats:
            repeat_bonus.check(state, users, items)
        if self.successors:
            successors.check(state, users, items)

    def start_values(self, items: int) -> Tensor:
        """The value of each bucket before training."""
        return torch.cat([torch.zeros(repeat_bonus.BUCKETS), successors.start_values(items)])

    def grow(self, users: int, items: int, state: State) -> None:
        if self.successors:
            state[successors.ITEMS] = grown(state[successors.ITEMS], items, successors.NONE)
            state[successors.COUNT] = grown(state[successors.COUNT], items, 0)
            state[successors.LAST] = grown(state[successors.LAST], users, successors.NONE)

    def before_events(self, window: Window, state: State) -> ScoreLists:
        """The lists as they are before each event of the window, on the host; counts its events in the state."""
        n = len(window)
        repeats = repeat_bonus.lists_before_events(window, state) if self.repeats else _no_lists(n)
        following = successors.lists_before_events(window, state) if self.successors else _no_lists(n)
        return _merged(repeats, following)

    def now(self, users: Tensor, times: Tensor, state: State) -> ScoreLists:
        """The current lists of these users, on the host; the state stays as it is."""
        n = len(users)
        repeats = repeat_bonus.lists_now(users, times, state) if self.repeats else _no_lists(n)
        following = successors.lists_now(users, state) if self.successors else _no_lists(n)
        return _merged(repeats, following)

    def count_events(self, window: Window, state: State) -> None:
        """Counts the events of a window in the state."""
        if self.repeats:
            repeat_bonus.count_events(window, state)
        if self.successors:
            successors.count_events(window, state)

    def save_for_undo(self, window: Window, state: State) -> Callable[[], None]:
        """Saves what counting a window of one event will change, and returns the function that restores it."""
        undo = [repeat_bonus.save_for_undo(window, state)] if self.repeats else []
        undo += [successors.save_for_undo(window, state)] if self.successors else []

        def restore() -> None:
            for source in undo:
                source()

        return restore


def _no_lists(events: int) -> RepeatLists:
    empty = torch.zeros(0, dtype=torch.int32)
    return RepeatLists(torch.zeros(events + 1, dtype=torch.int64), empty, empty)


def _merged(repeats: RepeatLists, following: RepeatLists) -> ScoreLists:
    return ScoreLists(*map(torch.from_numpy, _merge(*(part.numpy() for part in (*repeats, *following)))))


@compiled
def _find(start: Array, item: Array, candidates: Array) -> Array:
    """As ScoreLists.of_candidates."""
    found = np.full(candidates.shape, len(item), np.int64)
    most = 0
    for i in item:
        most = max(most, i)
    place = np.full(most + 1, -1, np.int64)
    for k in range(len(start) - 1):
        for e in range(start[k], start[k + 1]):
            place[item[e]] = e
        for c in range(candidates.shape[1]):
            i = candidates[k, c]
            if i <= most and place[i] >= start[k]:
                found[k, c] = place[i]
    return found


@compiled
def _thin(start: Array, item: Array, true: Array, first: int, most: int) -> tuple[Array, Array, Array]:
    """(entries kept, where those of each event start, log of the number of entries that each stands for)."""
    drawn, size = np.empty(len(item), np.int64), 0
    weight, thinned = np.zeros(len(item), np.float32), np.zeros(len(start), np.int64)
    for k in range(len(start) - 1):
        length, own = start[k + 1] - start[k], -1
        for e in range(start[k], start[k + 1]):
            if item[e] == true[k]:
                own = e
        if length <= most:
            for e in range(start[k], start[k + 1]):
                drawn[size] = e
                size += 1
        else:
            offset = ((first + k) * 2654435761 % 2**32) / 2**32
            seen = False
            for j in range(most):
                drawn[size] = start[k] + min(int((offset + j) * length / most), length - 1)
                weight[size] = np.log(length / most)
                seen = seen or drawn[size] == own
                size += 1
            if own >= 0 and not seen:
                drawn[size] = own
                size += 1
        thinned[k + 1] = size
    return drawn[:size].copy(), thinned, weight[:size].copy()


@compiled
def _merge(
    start: Array, item: Array, bucket: Array, start_2: Array, item_2: Array, bucket_2: Array
) -> tuple[Array, Array, Array, Array]:
    """(start, event, item, bucket) of ScoreLists."""
    merged_start, most = np.zeros(len(start), np.int64), len(item) + len(item_2)
    events, items, buckets = np.empty(most, np.int64), np.empty(most, np.int64), np.empty((most, 2), np.int64)
    place, size = np.full(1 + max(_largest(item), _largest(item_2)), -1, np.int64), 0
    for k in range(len(start) - 1):
        first = size
        for j in range(start[k], start[k + 1]):
            items[size], buckets[size, 0], buckets[size, 1], place[item[j]] = item[j], bucket[j], NONE, size
            size += 1
        for j in range(start_2[k], start_2[k + 1]):
            at = place[item_2[j]]
            if at < first:
                at, items[size], buckets[size, 0] = size, item_2[j], NONE
                size += 1
            buckets[at, 1] = FIRST_SUCCESSOR + bucket_2[j]
        events[first:size] = k
        merged_start[k + 1] = size
    return merged_start, events[:size], items[:size], buckets[:size]


@compiled
def _largest(numbers: Array) -> int:
    largest = 0
    for number in numbers:
        largest = max(largest, number)
    return largest
