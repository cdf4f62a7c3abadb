"""DeepCoevolve (Dai, Wang, Trivedi, Song 2016): co-evolving states that drive point processes, one for each pair.

Legend: n events, N negatives, I items, d width of a state; f_u and f_i are states (coevolving_rnn.py updates them).

The intensity of user u meeting item i, with τ the time since either of their states moved last:

    λ = exp(f_u · f_i + b) τ                    so that τ is Rayleigh distributed:
    S = exp(−½ exp(f_u · f_i + b) τ²)           nothing has happened so far;  the density is λ S

The loss is the negative log-likelihood, −Σ log λ over the events and, for what did not happen, the survival term
Σ ∫ λ over all pairs: each event's user brings its time since its last event, with all items, of which N are drawn
and weighted by I/N; of an item that has moved meanwhile, the stretch since. Items are ranked by their density at the
time asked, in units of τ, or by their intensity.

Decisions: every entity met in training starts at a learned vector of its own, others at ξ. τ is log(1 + seconds), in
units of its mean between a user's events that do not come at once: gaps go from seconds to months, and with plain τ²
a few long ones were all the likelihood knew of. Before the first training event nothing could happen. b starts so
that all pairs together are one event in one unit of time.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Self

import numpy as np
import torch
from torch import Tensor, nn

from dynedge.config import option
from dynedge.data.log import EventLog
from dynedge.models.base import LogShape, State, Step, Tensors, seeded
from dynedge.models.baselines.dynamic.coevolving_rnn import CoevolvingRNN
from dynedge.models.candidate_rows import rows_before
from dynedge.models.dynamic import Forward
from dynedge.models.window_index import WindowIndex
from dynedge.ops.all_scores import all_scores
from dynedge.utils.arrays import Array

EARLIEST = 0.1  # units of time: what comes sooner counts as this, or a basket's events would outweigh all others
LARGEST = 20.0  # exponent of an intensity


@dataclass(frozen=True)
class DeepCoevolveConfig:
    """DeepCoevolve."""

    dim: int = option(64, "width of states", least=1)
    windows: int = option(300, "training windows an epoch is cut into", least=1)
    negatives: int = option(128, "items drawn for each event's survival term", least=1)
    ranked_by: str = option("density", "what items are ranked by", choices=("density", "intensity"))


class DeepCoevolve(CoevolvingRNN):
    unit: Tensor
    origin: Tensor

    def __init__(self, config: DeepCoevolveConfig, shape: LogShape, seen: tuple[Array, Array]) -> None:
        super().__init__(config, shape, seen, item_ids=True)
        self.rate = nn.Parameter(torch.tensor(-math.log(max(shape.items, 1))))
        self.register_buffer("unit", torch.ones((), dtype=torch.float64))
        self.register_buffer("origin", torch.zeros((), dtype=torch.float64))

    @classmethod
    def create(cls, config: DeepCoevolveConfig, log: EventLog, train_end: int, seed: int) -> Self:
        user, time = np.asarray(log.user[:train_end]), np.asarray(log.time[:train_end])
        seen = np.zeros(log.num_users, bool), np.zeros(log.num_items, bool)
        seen[0][user], seen[1][log.item[:train_end]] = True, True
        with seeded(seed):
            model = cls(config, LogShape.of(log), seen)
        order = np.argsort(user, kind="stable")
        gaps = np.diff(time[order])[np.diff(user[order]) == 0]
        gaps = gaps[gaps > 0]  # events at the same time, as in a basket, say nothing about how long users wait
        if train_end:
            model.origin.fill_(float(time[0]))
        if len(gaps):
            model.unit.fill_(max(float(np.log1p(gaps).mean()), EARLIEST))
        return model

    @classmethod
    def restore(cls, config: DeepCoevolveConfig, shape: LogShape, tensors: Tensors) -> Self:
        users, items = (np.asarray(tensors[f"psi_row_{side}"] >= 0) for side in (0, 1))
        model = cls(config, shape, (users, items))
        model.load_state_dict(tensors)
        return model

    def forward_window(self, index: WindowIndex, state: State) -> Forward:
        arena = self.evolve(index, state)
        return Forward(arena[index.reads[0]], arena)

    def query(self, users: Tensor, times: Tensor, state: State) -> Tensor:
        return self.entity_states(0, users, state)

    # ---- the point process

    def _waited(self, time: Tensor, user_time: Tensor, item_time: Tensor) -> Tensor:
        """τ [n, C]: how long neither has moved, in units; times float64[n], [n] and [n, C]."""
        moved = torch.maximum(torch.maximum(user_time[:, None], item_time), self.origin)
        return (torch.log1p((time[:, None] - moved).clamp_min(0)) / self.unit).clamp_min(EARLIEST).to(self.xi)

    def _likelihood(self, products: Tensor, waited: Tensor) -> tuple[Tensor, Tensor]:
        """(log λ, −log S)"""
        exponent = (products + self.rate).clamp_max(LARGEST)
        return exponent + waited.log(), exponent.exp() * waited.square() / 2

    def error(self, index: WindowIndex, forward: Forward, state: State, step: Step) -> Tensor:
        n, drawn = len(index.window), self.config.negatives
        items = torch.randint(self.shape.items, (n, drawn), generator=step.generator()).to(self.xi.device)
        items = torch.cat([index.item[:, None], items], 1)
        rows = rows_before(index, items, self.arange(n))
        inside = (rows >= 0).flatten()
        outside = items.flatten()[~inside].unique()  # type: ignore[no-untyped-call]
        pool = torch.cat([forward.arena, self.item_vectors(outside, state)])
        place = torch.where(rows >= 0, rows, index.rows + torch.searchsorted(outside, items))
        products = torch.bmm(pool[place], forward.query[:, :, None])[..., 0]
        times = torch.cat([self._row_times(index, state), state["item_time"][outside]])[place]
        waited = self._waited(index.time, self.previous_times(index, state)[0], times)
        intensity, survival = self._likelihood(products, waited)
        others = survival[:, 1:].sum() * (self.shape.items - 1) / drawn
        return survival[:, 0].sum() + others - intensity[:, 0].sum()

    def _row_times(self, index: WindowIndex, state: State) -> Tensor:
        """float64[R]: when the states of the arena were written."""
        events = torch.from_numpy(index.schedule.event).long().to(self.xi.device)
        users, items = index.roots[:2]
        return torch.cat([state["user_time"][users], state["item_time"][items], index.time[events]])

    def score(self, batch: WindowIndex, candidates: Tensor | None, state: State) -> Tensor:
        # When each item last moved, before each event, is a state of width 1.
        ones, now = batch.time.new_ones(len(batch.window), 1), state["item_time"][:, None]
        times = all_scores(ones, now, None, batch.item, self.arange(len(ones)), batch.time[:, None])
        waited = self._waited(batch.time, self.previous_times(batch, state)[0], times)
        found = self._ranked(super().score(batch, None, state), waited)
        return found if candidates is None else found.gather(1, candidates)

    def score_query(self, users: Tensor, times: Tensor, candidates: Tensor | None, state: State) -> Tensor:
        last = state["item_time"].expand(len(users), -1)
        waited = self._waited(times.to(last), state["user_time"][users], last)
        found = self._ranked(super().score_query(users, times, None, state), waited)
        return found if candidates is None else found.gather(1, candidates)

    def _ranked(self, products: Tensor, waited: Tensor) -> Tensor:
        intensity, survival = self._likelihood(products, waited)
        return intensity - survival if self.config.ranked_by == "density" else intensity
