"""`edge`, the default model: two experts under one contract, fused late.

The memory counts what followed what; the co-evolving recurrence has a state for every user and item. Each learns by
itself: trained together, the recurrence's fitted vectors look better on the training events than they are, and the
counts get too little weight. Their scores are added, with a weight for the recurrence that is chosen on the
validation events; zero is allowed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dynedge.data.log import EventLog
from dynedge.data.windows import Window
from dynedge.models.base import Among, Loss, Model, Reason, State, Step, all_items
from dynedge.models.count_memory import model as memory
from dynedge.models.count_memory.example_cache import WindowExamples
from dynedge.models.count_memory.model import Memory
from dynedge.models.edge import recurrence
from dynedge.models.edge.config import EdgeConfig
from dynedge.models.edge.recurrence import Recurrence
from dynedge.models.window_index import Prepared
from dynedge.ops.dispatch import SideStream
from dynedge.ops.ranks import ranks_of_weighted_sums
from dynedge.utils.arrays import Array

MEMORY, RECURRENCE = "memory.", "recurrence."
PIECE = 1 << 24  # scores held at once while the fusion is chosen


@dataclass(frozen=True, eq=False)
class Both:
    """A training window, for each expert."""

    evolved: Prepared
    counted: WindowExamples


class Edge(Model):
    grows = chooses = True
    weight: Tensor

    def __init__(self, config: EdgeConfig, memory: Memory, recurrence: Recurrence) -> None:
        super().__init__()
        self.config, self.memory, self.recurrence = config, memory, recurrence
        self.register_buffer("weight", torch.zeros(()))
        self._beside = SideStream()
        self._kept: dict[int, Both] = {}  # what a GPU repeats must be the same object each epoch

    # ---- training: each expert by itself

    def num_windows(self, train_end: int) -> int:
        return self.recurrence.num_windows(train_end)

    def windows(self, log: EventLog, train_end: int, first: int = 0) -> Iterator[Both]:
        parts = self.recurrence.windows(log, train_end, first), self.memory.windows(log, train_end, first)
        for number, (evolved, counted) in enumerate(zip(*parts, strict=True), first):
            both = self._kept.get(number)
            if both is None or both.evolved is not evolved:
                both = Both(evolved, counted)
            if self.repeats(both):
                self._kept[number] = both
            yield both

    def start(self) -> State:
        return _join(self.memory.start(), self.recurrence.start())

    def draw(self, prepared: Both, step: Step) -> Tensor | None:
        return self.recurrence.draw(prepared.evolved, step)

    def repeats(self, prepared: Both) -> bool:
        return self.recurrence.repeats(prepared.evolved)

    def passed(self, prepared: Both, state: State) -> None:
        with _parts(state) as (known, states):
            self.memory.passed(prepared.counted, known)
            self.recurrence.passed(prepared.evolved, states)

    def loss(self, prepared: Both, state: State, step: Step) -> Loss:
        with _parts(state) as (known, states):
            with self._beside.launch(self.weight.device):
                counted = self.memory.loss(prepared.counted, known, step)
            evolved = self.recurrence.loss(prepared.evolved, states, step)
            self._beside.wait()
        return Loss(counted.total + evolved.total, {**evolved.log, "memory_loss": counted.log["loss"]})

    def end_epoch(self, epoch: int) -> dict[str, float]:
        return self.recurrence.end_epoch(epoch)

    def facts(self) -> dict[str, Any]:
        return self.recurrence.facts()

    # ---- fusion

    @torch.no_grad()
    def calibrate(
        self, log: EventLog, events: range, state: State, among: Among = all_items
    ) -> tuple[dict[str, float], Array | None]:
        """Choose the recurrence's weight: the mean reciprocal rank decides."""
        if not events:
            return {"weight": float(self.weight)}, None
        known, states = _part(state, MEMORY), _part(state, RECURRENCE)
        weights = sorted({0.0, *self.config.weights})
        found = np.empty((len(weights), len(events)))
        one = among(Window(log, events[:1]))
        rows = max(1, min(PIECE // (self.memory.shape.items if one is None else one.numel()), 5000))
        for start in range(events.start, events.stop, rows):
            window = Window(log, range(start, min(start + rows, events.stop)))
            some = among(window)
            counted = self.memory.score(window, some, known)
            there = None if some is None else some.to(self.weight.device)
            evolved = self.recurrence.score(self.recurrence.prepare(window), there, states)
            true = torch.from_numpy(window.item).long() if some is None else torch.zeros(len(window)).long()
            place = slice(start - events.start, start - events.start + len(window))
            found[:, place] = ranks_of_weighted_sums(counted.to(evolved), evolved, weights, true.to(evolved.device))
        best = int((1 / found).mean(1).argmax())
        self.weight.fill_(weights[best])
        return {"weight": float(self.weight)}, found[best]

    def _fused(self, counted: Tensor, evolved: Tensor) -> Tensor:
        return torch.add(counted.to(evolved), evolved * self.weight)

    def prepare(self, window: Window) -> Any:
        return self.recurrence.prepare(window)

    def score(self, prepared: Any, candidates: Tensor | None, state: State) -> Tensor:
        with _parts(state) as (known, states):
            counted = self.memory.score(prepared.window, candidates, known)
            some = None if candidates is None else candidates.to(self.weight.device)
            evolved = self.recurrence.score(prepared, some, states)
        return self._fused(counted, evolved)

    def observe(self, window: Window, state: State) -> None:
        with _parts(state) as (known, states):
            self.memory.observe(window, known)
            self.recurrence.observe(window, states)

    def suppose(self, window: Window, state: State) -> Callable[[], None]:
        with _parts(state) as (known, states):
            undoing = self.memory.suppose(window, known), self.recurrence.suppose(window, states)

        def undo() -> None:
            for one in undoing:
                one()

        return undo

    def grow(self, users: int, items: int, state: State) -> None:
        with _parts(state) as (known, states):
            self.memory.grow(users, items, known)
            self.recurrence.grow(users, items, states)

    def seen(self, users: Tensor, state: State) -> Tensor | None:
        return self.memory.seen(users, _part(state, MEMORY))

    def states(self, side: int, rows: Tensor, state: State) -> Tensor:
        return self.recurrence.states(side, rows, _part(state, RECURRENCE))

    def item_rows(self, items: Tensor, state: State) -> Tensor:
        return self.recurrence.item_rows(items, _part(state, RECURRENCE))

    def asked(self, user: int, time: float, state: State) -> tuple[Tensor, Tensor]:
        users, times = torch.tensor([user]), torch.tensor([time], dtype=torch.float64)
        counted = self.memory.peek(users, times, None, _part(state, MEMORY))[0]
        added, query = self.recurrence.asked(user, time, _part(state, RECURRENCE))
        return self._fused(counted, added) if added.any() else counted, query * self.weight

    def vectors(self, state: State) -> tuple[Tensor, Tensor]:
        return self.recurrence.vectors(_part(state, RECURRENCE))

    def peek(self, users: Tensor, times: Tensor, candidates: Tensor | None, state: State) -> Tensor:
        counted = self.memory.peek(users, times, candidates, _part(state, MEMORY))
        device = self.weight.device
        some = None if candidates is None else candidates.to(device)
        evolved = self.recurrence.peek(users.to(device), times.to(device), some, _part(state, RECURRENCE))
        return self._fused(counted, evolved)

    def explain(self, user: int, time: float, items: Tensor, state: State) -> list[Reason]:
        """The states' share is their lift over the mean item's score, beside the memory's."""
        users, times = torch.tensor([user]), torch.tensor([time], dtype=torch.float64)
        counted = self.memory.peek(users, times, None, _part(state, MEMORY))[0]
        here = users.to(self.weight.device), times.to(self.weight.device)
        evolved = (self.weight * self.recurrence.peek(*here, None, _part(state, RECURRENCE))[0]).cpu()
        lifts = [(part[items] - part.clamp_min(-60).mean()).clamp_min(0).tolist() for part in (counted, evolved)]
        found = []
        for reason, of_counts, of_states in zip(
            self.memory.explain(user, time, items, _part(state, MEMORY)), *lifts, strict=True
        ):
            share = of_states / (of_counts + of_states) if of_states else 0.0
            shares = {name: (1 - share) * value for name, value in reason.shares.items()}
            found.append(Reason({**shares, "states": share}, reason.near))
        return found


def _part(state: State, prefix: str) -> State:
    return State({short: state[name] for short, name in _names(prefix, tuple(state))})


@cache
def _names(prefix: str, names: tuple[str, ...]) -> list[tuple[str, str]]:
    """Without their prefix, and with it: found once, since events may come one at a time."""
    return [(name[len(prefix) :], name) for name in names if name.startswith(prefix)]


@contextmanager
def _parts(state: State) -> Iterator[tuple[State, State]]:
    """The experts' states; what they have become is in the state afterwards, also where a tensor was replaced."""
    known, states = _part(state, MEMORY), _part(state, RECURRENCE)
    yield known, states
    state.update(_join(known, states))


def _join(known: State, states: State) -> State:
    parts = {MEMORY: known, RECURRENCE: states}
    return State({prefix + name: tensor for prefix, part in parts.items() for name, tensor in part.items()})


def create(config: EdgeConfig, log: EventLog, train_end: int, seed: int) -> Edge:
    counts = replace(config.memory, windows=config.recurrence.windows)
    experts = memory.create(counts, log, train_end, seed), recurrence.create(config.recurrence, log, train_end, seed)
    return Edge(config, *experts)


def restore(config: EdgeConfig, log: EventLog, tensors: dict[str, Tensor]) -> Edge:
    known, states = _part(State(tensors), MEMORY), _part(State(tensors), RECURRENCE)
    model = Edge(
        config, memory.restore(config.memory, log, known), recurrence.restore(config.recurrence, log, states)
    )
    model.load_state_dict(tensors)
    return model
