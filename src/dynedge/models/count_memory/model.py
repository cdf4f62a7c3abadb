"""The memory: counts of what followed what, mixed by a gate that learns whom to believe when.

One of the two experts of `edge`, and with constant weights the plain rules (models/rules.py). Everything it knows of
the events is in its State (store.py); what it learns are two small networks (learning.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cached_property
from operator import is_

import numpy as np
import torch
from torch import Tensor

from dynedge.data.log import EventLog
from dynedge.data.windows import Window
from dynedge.models.base import Loss, Model, Reason, State, Step, told
from dynedge.models.count_memory import contexts as store
from dynedge.models.count_memory import explain as reasons
from dynedge.models.count_memory import gating as learning
from dynedge.models.count_memory import scoring as mixing
from dynedge.models.count_memory.config import TABLES, MemoryConfig
from dynedge.models.count_memory.contexts import SOURCES
from dynedge.models.count_memory.examples import Lesson, Lessons
from dynedge.models.growable import wide
from dynedge.models.modules import Shape
from dynedge.ops.thread_pool import run_side_by_side

COPIED = 1 << 18  # bytes that are copied while an event is answered, less than can be
HELD = 1 << 32  # bytes of all copies, at most
OF_USERS = np.array([name == "user" for name in TABLES])


class Memory(Model):
    grows = True

    def __init__(self, config: MemoryConfig, shape: Shape, seed: int = 0) -> None:
        super().__init__()
        self.config, self.shape, self._seed = config, shape, seed
        self.keep = np.array([name in config.contexts for name in TABLES])
        self.fading = store.fadings(config.half_lives, config.longest)
        sources = 1 + len(config.half_lives) + SOURCES
        self._made: tuple[list[Tensor], store.Store | None] = [], None
        self._copies: tuple[list[Tensor], list[tuple[store.Store, store.Found]]] = [], []
        self._asked = 0  # events, since there are no copies
        self.mixture = learning.Mixture(torch.zeros(sources), config.gate, config.reshape)
        self._all_alike = learning.Mixture(torch.zeros(sources), 0, 0).weights()
        self._lessons = Lessons(self.start, self._read, config.windows, config.span, config.examples)

    @cached_property
    def _found(self) -> store.Found:
        return store.room(wide(self.shape.items))

    def _store(self, state: State, events: int = 0) -> store.Store:
        """With room for `events` more. Made once for the same tensors: it is most of what one question costs."""
        if events:
            store.make_room(state, events)
        tensors, made = self._made
        same = made is not None and made.items == self.shape.items and len(tensors) == len(state)
        if made is None or not same or not all(map(is_, tensors, state.values())):
            made = store.of(state, self.shape.items)
            self._made = list(state.values()), made
        return made

    def grow(self, users: int, items: int, state: State) -> None:
        self.shape = replace(self.shape, users=users, items=items)
        self._copies = [], []
        store.grow(state, users, items)
        if items > len(self._found.slot):
            del self._found

    def num_windows(self, train_end: int) -> int:
        return self.config.windows

    def windows(self, log: EventLog, train_end: int, first: int = 0) -> Iterator[Lesson]:
        return self._lessons.of(log, train_end, first)

    def prepare(self, window: Window) -> Window:
        return window

    def start(self) -> State:
        return store.empty(self.shape.users, self.shape.items, len(self.config.half_lives))

    def _read(self, window: Window, number: int, older: int, count: int, state: State) -> learning.Examples:
        """Up to `count` examples from a window; the state moves past it, and of its first `older` events only counts
        what users have had and what is popular. Candidates are those that rank high if all sources count."""
        n, draw = len(window) - older, np.random.default_rng([self._seed, number])
        count = min(n, count)
        sampled = np.zeros(n, np.bool_)
        sampled[draw.choice(n, count, replace=False) if n else []] = True
        examples = learning.room(count, len(self._all_alike.gate_start))
        known, columns = self._store(state, len(window)), (window.user, window.item, window.time)
        mixing.follow(known, self.fading, self.keep & OF_USERS, *(column[:older] for column in columns))
        rest = *(column[older:] for column in columns), sampled, draw.random(count)
        learning.collect(known, self.fading, self.keep, self._all_alike, *rest, self._found, examples)
        return learning.tensors(examples, self.mixture.start)

    def loss(self, prepared: Lesson, state: State, step: Step) -> Loss:
        mixed, reshaped = self.mixture.loss(prepared.examples)
        count = max(len(reshaped), 1)
        return Loss((mixed + reshaped).sum() / count, {"loss": told(reshaped.detach().sum() / count)})

    def passed(self, prepared: Lesson, state: State) -> None:
        if prepared.end is not None:
            state.update(prepared.end)

    def observe(self, window: Window, state: State) -> None:
        known = self._store(state, len(window))
        mixing.follow(known, self.fading, self.keep, window.user, window.item, window.time)

    def suppose(self, window: Window, state: State) -> Callable[[], None]:
        if len(window) != 1:
            return super().suppose(window, state)
        undo = store.suppose(self._store(state, 1), int(window.user[0]), int(window.item[0]))
        self.observe(window, state)
        return undo

    def score(self, prepared: Window, candidates: Tensor | None, state: State) -> Tensor:
        """Each thread has a copy of what is remembered, moves it past all events, and answers what none has taken."""
        weights, columns = self.mixture.weights(), (prepared.user, prepared.item, prepared.time)
        out = torch.empty((len(prepared), self.shape.items) if candidates is None else candidates.shape)
        some = np.empty((0, 0), np.int64) if candidates is None else candidates.cpu().numpy()
        rooms, taken = self._rooms(state, len(prepared)), np.zeros(len(prepared), np.int64)

        def walk(part: int) -> None:
            known, found = rooms[part]
            mixing.walk(known, self.fading, self.keep, weights, *columns, taken, found, some, out.numpy())

        run_side_by_side(walk, len(rooms))
        return out.log_()

    def _rooms(self, state: State, events: int) -> list[tuple[store.Store, store.Found]]:
        """What is remembered and room for answers, for each thread that is to walk past so many events.

        Copies are kept: all of them move past the same events. They are made once so much has been asked that
        copying would have taken less, or where the state is no longer the one they are copies of.
        """
        own = self._store(state, events)
        tensors, copies = self._copies
        same = len(tensors) == len(state) and all(map(is_, tensors, state.values()))
        if not same or any(known.clock[0] != own.clock[0] for known, _ in copies):
            copies = []
        if not copies:
            self._asked += events
            size = sum(tensor.nbytes for tensor in state.values()) + sum(array.nbytes for array in self._found)
            more = min(torch.get_num_threads() - 1, HELD // size)
            if more > 0 and self._asked * COPIED >= more * size:
                made = (store.of(state.clone(), self.shape.items) for _ in range(more))
                copies, self._asked = [(known, store.room(len(self._found.slot))) for known in made], 0
            self._copies = list(state.values()), copies
        return [(own, self._found), *copies]

    def peek(self, users: Tensor, times: Tensor, candidates: Tensor | None, state: State) -> Tensor:
        out = torch.empty(len(users), self.shape.items)
        known, columns = self._store(state), (users.cpu().numpy(), times.cpu().double().numpy())
        mixing.peek(known, self.fading, self.keep, self.mixture.weights(), *columns, self._found, out.numpy())
        return out.log_() if candidates is None else out.gather(1, candidates.cpu()).log_()

    def seen(self, users: Tensor, state: State) -> Tensor | None:
        if "user" not in self.config.contexts:
            return None
        out = torch.zeros(len(users), self.shape.items, dtype=torch.bool)
        store.own_items(self._store(state).user, users.cpu().numpy(), out.numpy())
        return out

    def explain(self, user: int, time: float, items: Tensor, state: State) -> list[Reason]:
        weights, half_lives = self.mixture.weights(), len(self.config.half_lives)
        shares, near = np.zeros((len(items), len(weights.gate_start)), np.float32), np.zeros(len(items), np.int64)
        known = self._store(state), self.fading, self.keep, weights
        reasons.explain(*known, user, time, items.numpy(), self._found, shares, near)
        named = (reasons.by_name(row, half_lives) for row in shares)
        return [Reason(one, int(other)) for one, other in zip(named, near, strict=True)]


def create(config: MemoryConfig, log: EventLog, train_end: int, seed: int) -> Memory:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return Memory(config, Shape.of(log), seed)


def restore(config: MemoryConfig, log: EventLog, tensors: dict[str, Tensor]) -> Memory:
    model = Memory(config, Shape.of(log))
    model.load_state_dict(tensors)
    return model
