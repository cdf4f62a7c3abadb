"""The memory: counts of what followed what, mixed by a gate that learns whom to believe when.

One of the two experts of `edge`, and with constant weights the plain rules (models/rules.py). Everything it knows of
the events is in its State (store.py); what it learns are two small networks (learning.py).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from dynedge.config import option
from dynedge.events.log import EventLog
from dynedge.events.split import windows
from dynedge.models.contract import Loss, Model, Reason, State, Step, Window
from dynedge.models.layers import Shape
from dynedge.models.memory import learning, mixing, reasons, store
from dynedge.models.memory.store import SOURCES, TABLES
from dynedge.models.room import wide


@dataclass(frozen=True)
class MemoryConfig:
    """The memory. Half-lives are in events of the log."""

    contexts: tuple[str, ...] = option(TABLES, "what is counted: user, last, pair, own, near")
    half_lives: tuple[float, ...] = option((1e12, 20000.0, 2000.0, 300.0, 50.0), "of popularity")
    longest: int = option(
        512, "items listed for an item or a pair; the half that matters least is set aside", least=2
    )
    gate: int = option(
        16, "hidden units that weigh the sources by the question's facts; 0: constant weights", least=0
    )
    reshape: int = option(
        32, "hidden units that reshape known items' probabilities; 0: a factor for seen ones", least=0
    )
    examples: int = option(6000, "events an epoch learns from, spread over the training events", least=1)
    windows: int = option(300, "training windows an epoch is cut into", least=1)


class Memory(Model):
    grows = True

    def __init__(self, config: MemoryConfig, shape: Shape) -> None:
        super().__init__()
        self.config, self.shape = config, shape
        self.keep = np.array([name in config.contexts for name in TABLES])
        self.fading = store.fadings(config.half_lives, config.longest)
        sources = 1 + len(config.half_lives) + SOURCES
        self.mixture = learning.Mixture(torch.zeros(sources), config.gate, config.reshape)

    @cached_property
    def _found(self) -> store.Found:
        return store.room(wide(self.shape.items))

    def grow(self, users: int, items: int, state: State) -> None:
        self.shape = replace(self.shape, users=users, items=items)
        store.grow(state, users, items)
        if items > len(self._found.slot):
            del self._found

    def num_windows(self, train_end: int) -> int:
        return self.config.windows

    def windows(self, log: EventLog, train_end: int, first: int = 0) -> Iterator[Window]:
        for cut in list(windows(train_end, self.config.windows))[first:]:
            yield Window(log, cut)

    def prepare(self, window: Window) -> Window:
        return window

    def start(self) -> State:
        return store.empty(self.shape.users, self.shape.items, len(self.config.half_lives))

    def loss(self, prepared: Window, state: State, step: Step) -> Loss:
        n, draw = len(prepared), np.random.default_rng([step.seed, step.epoch, step.window])
        count = min(n, max(1, round(self.config.examples / self.config.windows)))
        sampled = np.zeros(n, np.bool_)
        sampled[draw.choice(n, count, replace=False) if n else []] = True
        weights = self.mixture.weights()
        examples = learning.room(count if n else 0, len(weights.gate_start))
        columns = prepared.user, prepared.item, prepared.time, sampled, draw.random(count)
        known = store.of(state, self.shape.items, n)
        learning.collect(known, self.fading, self.keep, weights, *columns, self._found, examples)
        mixed, reshaped = self.mixture.loss(examples)
        total = (mixed + reshaped).sum() / max(count, 1)
        return Loss(total, {"loss": float(reshaped.detach().sum()) / max(count, 1)})

    def observe(self, window: Window, state: State) -> None:
        known = store.of(state, self.shape.items, len(window))
        mixing.follow(known, self.fading, self.keep, window.user, window.item, window.time)

    def score(self, prepared: Window, candidates: Tensor | None, state: State) -> Tensor:
        out = torch.empty(len(prepared), self.shape.items)
        known, columns = (
            store.of(state, self.shape.items, len(prepared)),
            (prepared.user, prepared.item, prepared.time),
        )
        mixing.walk(known, self.fading, self.keep, self.mixture.weights(), *columns, self._found, out.numpy())
        return self._chosen(out, candidates)

    def peek(self, users: Tensor, times: Tensor, candidates: Tensor | None, state: State) -> Tensor:
        out = torch.empty(len(users), self.shape.items)
        known, columns = store.of(state, self.shape.items), (users.numpy(), times.double().numpy())
        mixing.peek(known, self.fading, self.keep, self.mixture.weights(), *columns, self._found, out.numpy())
        return self._chosen(out, candidates)

    def seen(self, users: Tensor, state: State) -> Tensor | None:
        if "user" not in self.config.contexts:
            return None
        out = torch.zeros(len(users), self.shape.items, dtype=torch.bool)
        store.own_items(store.of(state, self.shape.items).user, users.numpy(), out.numpy())
        return out

    def explain(self, user: int, time: float, items: Tensor, state: State) -> list[Reason]:
        weights, half_lives = self.mixture.weights(), len(self.config.half_lives)
        shares, near = np.zeros((len(items), len(weights.gate_start)), np.float32), np.zeros(len(items), np.int64)
        known = store.of(state, self.shape.items), self.fading, self.keep, weights
        reasons.explain(*known, user, time, items.numpy(), self._found, shares, near)
        named = (reasons.by_name(row, half_lives) for row in shares)
        return [Reason(one, int(other)) for one, other in zip(named, near, strict=True)]

    def _chosen(self, out: Tensor, candidates: Tensor | None) -> Tensor:
        return out.log_() if candidates is None else out.gather(1, candidates).log_()


def create(config: MemoryConfig, log: EventLog, train_end: int, seed: int) -> Memory:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return Memory(config, Shape.of(log))


def restore(config: MemoryConfig, log: EventLog, tensors: dict[str, Tensor]) -> Memory:
    model = Memory(config, Shape.of(log))
    model.load_state_dict(tensors)
    return model
