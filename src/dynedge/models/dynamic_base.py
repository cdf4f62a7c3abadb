"""DynamicModel: base of models whose items have vectors that change with their events, scored by inner products.

Legend: n events of a window, q users or items, I items, d width of an item's vector, D of a query (d, or 2d with item
ids), R rows of a window's arena.

A subclass says which query vector each event's user has, and which vector the event's item has afterwards. Loss,
scores and queries follow from that: an item is read as it was just before the event, also inside a window. Beside the
changing vector an item may have an id embedding and a bias (`candidate_ids`).
"""

from __future__ import annotations

from abc import abstractmethod
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from dynedge.data.windows import Window
from dynedge.models.base import Loss, Model, State, Step, check_finite, loggable
from dynedge.models.candidate_states import candidates_of_chunks, num_chunks
from dynedge.models.window_index import WindowIndex, index_window
from dynedge.ops.all_scores import all_scores
from dynedge.ops.sampled_softmax import sampled_softmax
from dynedge.plan.levels import NO_DNODES
from dynedge.plan.links import Linker
from dynedge.plan.schedule import build_schedule


class Forward(NamedTuple):
    """What a model computes of a window's events."""

    query: Tensor  # [n, D]: of each event's user, from what came before it
    arena: Tensor  # [R, d]: vectors in the numbering of the window's schedule; those of items are scored
    extra: tuple[Any, ...] = ()  # what `advance` or the loss needs besides


class DynamicModel(Model):
    """Events of a chunk share `config.negatives`; with at most `full_softmax_up_to` items, all are candidates."""

    in_float32 = True  # no bfloat16 on a GPU: products are small here, and scores must not tie
    has_level_kernels = False  # whether Triton kernels compute the levels of its windows on a GPU

    # ---- what a subclass computes

    @abstractmethod
    def forward_window(self, index: WindowIndex, state: State) -> Forward:
        """Queries and item vectors of a window, with gradient in training; the state does not change."""

    @abstractmethod
    def query(self, users: Tensor, times: Tensor, state: State) -> Tensor:
        """[q, D]: the query vectors of users at these times."""

    @abstractmethod
    def item_vectors(self, items: Tensor, state: State) -> Tensor:
        """[q, d]: the vectors of items in this state."""

    def all_item_vectors(self, state: State) -> Tensor:
        """[I, d]: the vectors of all items for a question asked now."""
        return self.item_vectors(self.arange(self.shape.items), state)

    @abstractmethod
    def advance(self, index: WindowIndex, forward: Forward, state: State) -> None:
        """Advances the state past the window."""

    @property
    def candidate_ids(self) -> Tensor | None:
        """[I, d + 1]: id embeddings of items, and biases."""
        return None

    # ---- the contract

    @cached_property
    def _linker(self) -> Linker:
        return Linker(np.zeros(self.shape.users, bool), np.zeros(self.shape.items, bool))

    @property
    def like(self) -> Tensor:
        """A tensor of the model's device and precision."""
        return next(self.parameters())

    def arange(self, count: int) -> Tensor:
        return torch.arange(count, device=self.like.device)

    @property
    def full_softmax(self) -> bool:
        """Whether all items are candidates in training."""
        return self.shape.items <= int(getattr(self.config, "full_softmax_up_to", 0))

    def prepare(self, window: Window) -> WindowIndex:
        past = self._linker(window.user, window.item)
        schedule = build_schedule(window.user, window.item, past, NO_DNODES)
        return index_window(window, schedule, past, self.like, triton=self.has_level_kernels)

    def sample_negatives(self, batch: WindowIndex, step: Step) -> Tensor | None:
        """int64[m, C]: the negatives of each chunk of events; None where all items are candidates."""
        if self.full_softmax:
            return None
        shape = num_chunks(len(batch.window)), self.config.negatives
        return torch.randint(self.shape.items, shape, generator=step.generator()).to(self.like.device)

    def window_loss(self, batch: WindowIndex, forward: Forward, state: State, step: Step) -> Tensor:
        """The sum over the window's events of −log softmax of the true item."""
        candidates = candidates_of_chunks(batch, self.sample_negatives(batch, step), self.shape.items)
        outside, true = self.item_vectors(candidates.outside, state), (batch.item, batch.reads[1])
        scored = forward.query, forward.arena, outside, self.candidate_ids, candidates
        return sampled_softmax(*scored, *true, item_row_after=batch.after)

    def loss(self, batch: WindowIndex, state: State, step: Step) -> Loss:
        n = max(len(batch.window), 1)
        with self._precision():
            forward = self.forward_window(batch, state)
            window_loss = self.window_loss(batch, forward, state, step)
        self.advance(batch, forward, state)
        return Loss(window_loss / n, {"loss": loggable(window_loss.detach() / n)})

    def score(self, batch: WindowIndex, candidates: Tensor | None, state: State) -> Tensor:
        with self._precision():
            forward = self.forward_window(batch, state)
            scores = self.window_scores(batch, forward, candidates, state)
        self.advance(batch, forward, state)
        return scores

    def window_scores(self, batch: WindowIndex, forward: Forward, candidates: Tensor | None, state: State) -> Tensor:
        """[n, I] or [n, C]: each candidate as it was just before the event."""
        vectors = self.item_vectors(self.arange(self.shape.items), state)
        scores = all_scores(forward.query, vectors, self.candidate_ids, batch.item, batch.after, forward.arena)
        return scores if candidates is None else scores.gather(1, candidates)

    def observe(self, window: Window, state: State) -> None:
        batch = self.prepare(window)
        with self._precision():
            forward = self.forward_window(batch, state)
            check_finite(forward.arena, *forward.extra)
            self.advance(batch, forward, state)

    def score_query(self, users: Tensor, times: Tensor, candidates: Tensor | None, state: State) -> Tensor:
        with self._precision():
            query = self.query(users, times, state)
        scores = self.query_scores(query, state)
        return scores if candidates is None else scores.gather(1, candidates)

    def query_scores(self, query: Tensor, state: State) -> Tensor:
        """[q, I]: the scores of all items for query vectors [q, D]."""
        with self._precision():
            vectors = self.all_item_vectors(state)
        d, ids = vectors.shape[1], self.candidate_ids
        with torch.autocast(query.device.type, enabled=False):  # scores in bfloat16 would tie
            scores = query[:, :d] @ vectors.T
            if ids is not None:
                scores = scores + torch.addmm(ids[:, -1], query[:, d:], ids[:, :-1].T)
        return scores

    def _precision(self) -> torch.autocast:
        device = self.like.device.type
        return torch.autocast(device, enabled=not self.in_float32 and torch.is_autocast_enabled(device))
