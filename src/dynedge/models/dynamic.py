"""Models whose items have vectors that move with their events, and whose users ask by a vector of their own.

Legend: n events of a window, I items, d width of an item's vector, D of what is asked for (d, or 2d with ids),
R rows of the arena.

What such a model is, it says in a few verbs: what an event's user asks for, and what the event's item has become
afterwards. Loss, scores and questions follow: an item is read as it was just before the event, also inside a window,
and its score is an inner product. Beside the moving vector an item may have one of its own that stays (`ids`).
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from dynedge.data.log import EventLog
from dynedge.data.windows import Window, cut_windows
from dynedge.models.base import Loss, Model, State, Step
from dynedge.models.candidate_rows import find
from dynedge.models.modules import Shape
from dynedge.models.window_index import Prepared, index
from dynedge.ops.all_scores import all_scores
from dynedge.ops.sampled_softmax import CHUNK, CandidateColumns, sampled_softmax
from dynedge.plan.levels import NO_DNODES
from dynedge.plan.links import Linker
from dynedge.plan.schedule import build_schedule
from dynedge.utils.prefetch import prefetch_map


class Asked(NamedTuple):
    """A window's events as a model sees them."""

    wanted: Tensor  # [n, D]: what each event's user asks for, from what was before it
    arena: Tensor  # [R, d]: vectors in the numbering of the window's schedule; those of items are read
    more: tuple[Tensor, ...] = ()  # what `advance` needs besides


class Moving(Model):
    """`negatives` are drawn for each chunk of events; with no more than `full_up_to` items, all are candidates."""

    def __init__(self, shape: Shape, windows: int, negatives: int = 0, full_up_to: int = 0) -> None:
        super().__init__()
        self.shape, self.cuts, self.negatives, self.full_up_to = shape, windows, negatives, full_up_to

    # ---- what a model says of itself

    @abstractmethod
    def ask(self, prepared: Prepared, state: State) -> Asked:
        """With gradient, in training; the state stays."""

    @abstractmethod
    def question(self, users: Tensor, times: Tensor, state: State) -> Tensor:
        """[q, D]: what users would ask for at these times."""

    @abstractmethod
    def items_now(self, items: Tensor, state: State) -> Tensor:
        """[q, d]: the vectors of items as they stand."""

    @abstractmethod
    def advance(self, prepared: Prepared, asked: Asked, state: State) -> None:
        """The state moves past the window."""

    @property
    def ids(self) -> Tensor | None:
        """[I, d + 1]: vectors of the items' own, and biases."""
        return None

    def besides(self, prepared: Prepared, asked: Asked) -> Tensor | None:
        """What training adds to the window's summed error."""
        return None

    # ---- the contract

    @cached_property
    def _linker(self) -> Linker:
        return Linker(np.zeros(self.shape.users, bool), np.zeros(self.shape.items, bool))

    @property
    def like(self) -> Tensor:
        return next(self.parameters())

    def numbers(self, count: int) -> Tensor:
        return torch.arange(count, device=self.like.device)

    def num_windows(self, train_end: int) -> int:
        return self.cuts

    def windows(self, log: EventLog, train_end: int, first: int = 0) -> Iterator[Any]:
        cuts = cut_windows(train_end, self.cuts)[first:]
        return prefetch_map(lambda events: self.prepare(Window(log, events)), cuts, threads=1)

    def prepare(self, window: Window) -> Prepared:
        past = self._linker(window.user, window.item)
        return index(
            window, build_schedule(window.user, window.item, past, NO_DNODES), past, False, self.like, plain=True
        )

    def draw(self, prepared: Prepared, step: Step) -> Tensor | None:
        """int64[m, C]: the negatives of each chunk of events; none where all items are candidates."""
        if self.shape.items <= self.full_up_to:
            return None
        shape = -(-len(prepared.window) // CHUNK), self.negatives
        return torch.randint(self.shape.items, shape, generator=step.generator())

    def columns(self, prepared: Prepared, step: Step) -> CandidateColumns:
        drawn, chunks = self.draw(prepared, step), -(-len(prepared.window) // CHUNK)
        every = np.broadcast_to(np.arange(self.shape.items, dtype=np.int32), (chunks, self.shape.items))
        some = every if drawn is None else drawn.int().numpy()
        assert prepared.schedule is not None
        return find(prepared.schedule, prepared.window.item, some, self.shape.items, self.like.device)

    def error(self, prepared: Prepared, asked: Asked, state: State, step: Step) -> Tensor:
        """The sum over the window's events of −log softmax of the true item."""
        columns = self.columns(prepared, step)
        outside, true = self.items_now(columns.outside, state), (prepared.item, prepared.reads[1])
        return sampled_softmax(asked.wanted, asked.arena, outside, self.ids, columns, *true)

    def loss(self, prepared: Prepared, state: State, step: Step) -> Loss:
        n = max(len(prepared.window), 1)
        with self._exact():
            asked = self.ask(prepared, state)
            error = self.error(prepared, asked, state, step)
            more = self.besides(prepared, asked)
        self.advance(prepared, asked, state)
        told = error.detach() / n
        return Loss((error if more is None else error + more) / n, {"loss": told if told.is_cuda else float(told)})

    def score(self, prepared: Prepared, candidates: Tensor | None, state: State) -> Tensor:
        with self._exact():
            asked = self.ask(prepared, state)
            now = self.items_now(self.numbers(self.shape.items), state)
            found = all_scores(asked.wanted, now, self.ids, prepared.item, prepared.after, asked.arena)
        self.advance(prepared, asked, state)
        return found if candidates is None else found.gather(1, candidates)

    def observe(self, window: Window, state: State) -> None:
        prepared = self.prepare(window)
        with self._exact():
            self.advance(prepared, self.ask(prepared, state), state)

    def peek(self, users: Tensor, times: Tensor, candidates: Tensor | None, state: State) -> Tensor:
        with self._exact():
            wanted, now = self.question(users, times, state), self.items_now(self.numbers(self.shape.items), state)
            d = now.shape[1]
            found = wanted[:, :d] @ now.T
            if self.ids is not None:
                found = found + torch.addmm(self.ids[:, -1], wanted[:, d:], self.ids[:, :-1].T)
        return found if candidates is None else found.gather(1, candidates)

    def _exact(self) -> torch.autocast:
        """No bfloat16 on a GPU: products are small here, and scores must not tie."""
        return torch.autocast(self.like.device.type, enabled=False)
