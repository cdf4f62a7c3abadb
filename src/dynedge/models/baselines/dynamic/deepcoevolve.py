"""DeepCoevolve (Dai, Wang, Trivedi, Song 2016): co-evolving states that drive one point process per pair.

Legend: n events, N negatives, I items, d width of a state; f_u and f_i are states (coevolving_rnn.py updates them).

With τ the time since the state of user u or of item i last changed, the intensity of an event of the two is

    λ = exp(f_u · f_i + b) τ                    so that τ is Rayleigh distributed
    S = exp(−½ exp(f_u · f_i + b) τ²)           the survival probability: no event so far; the density is λ S

The loss is the negative log-likelihood: −Σ log λ over the events, plus the survival term Σ ∫ λ over all pairs. Each
event contributes the time since its user's previous event, with all items, of which N are sampled and weighted by
I/N; for an item whose state has changed meanwhile, the time since then. Items are ranked by their density at the time
of the query, in units of τ, or by their intensity.

Differences from the paper:
- Entities seen in training start at a learned vector of their own, all others at ξ.
- τ is log(1 + seconds), in units of its mean over a user's gaps that are not zero: gaps range from seconds to months,
  and with plain τ² a few long ones dominate the likelihood.
- Time starts at the first training event.
- b is initialized such that all pairs together produce one event per unit of time.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Self

import numpy as np
import torch
from torch import Tensor, nn

from dynedge.config import MAX_WIDTH, option
from dynedge.data.log import EventLog
from dynedge.models.base import LogShape, State, Step, Tensors, seeded
from dynedge.models.baselines.dynamic.coevolving_rnn import CoevolvingRNN
from dynedge.models.candidate_states import rows_before
from dynedge.models.dynamic_base import Forward
from dynedge.models.window_index import WindowIndex
from dynedge.ops.all_scores import all_scores
from dynedge.utils.array_type import Array

MIN_ELAPSED = 0.1  # in time units: shorter times are raised to it, or the events of a basket would dominate the loss
MAX_EXPONENT = 20.0  # of an intensity


@dataclass(frozen=True)
class DeepCoevolveConfig:
    """Settings of DeepCoevolve."""

    dim: int = option(64, "Width of states.", least=1, most=MAX_WIDTH)
    windows: int = option(300, "Number of windows (training steps) per epoch.", least=1)
    negatives: int = option(128, "Number of negative samples per event, for the survival term.", least=1)
    ranking: str = option("density", "Quantity by which items are ranked.", choices=("density", "intensity"))


class DeepCoevolve(CoevolvingRNN):
    time_unit: Tensor
    time_origin: Tensor

    def __init__(self, config: DeepCoevolveConfig, shape: LogShape, seen: tuple[Array, Array]) -> None:
        super().__init__(config, shape, seen, item_ids=True)
        self.log_rate = nn.Parameter(torch.tensor(-math.log(max(shape.items, 1))))
        self.register_buffer("time_unit", torch.ones((), dtype=torch.float64))
        self.register_buffer("time_origin", torch.zeros((), dtype=torch.float64))

    @classmethod
    def create(cls, config: DeepCoevolveConfig, log: EventLog, train_end: int, seed: int) -> Self:
        user, time = np.asarray(log.user[:train_end]), np.asarray(log.time[:train_end])
        seen = np.zeros(log.num_users, bool), np.zeros(log.num_items, bool)
        seen[0][user], seen[1][log.item[:train_end]] = True, True
        with seeded(seed):
            model = cls(config, LogShape.of(log), seen)
        order = np.argsort(user, kind="stable")
        gaps = np.diff(time[order])[np.diff(user[order]) == 0]
        gaps = gaps[gaps > 0]  # simultaneous events, as in a basket, tell nothing about waiting times
        if train_end:
            model.time_origin.fill_(float(time[0]))
        if len(gaps):
            model.time_unit.fill_(max(float(np.log1p(gaps).mean()), MIN_ELAPSED))
        return model

    @classmethod
    def restore(cls, config: DeepCoevolveConfig, shape: LogShape, tensors: Tensors) -> Self:
        users, items = (np.asarray(tensors[f"psi_row_{side}"] >= 0) for side in (0, 1))
        model = cls(config, shape, (users, items))
        model.load_state_dict(tensors)
        model.check_psi_rows()
        return model

    def forward_window(self, index: WindowIndex, state: State) -> Forward:
        arena = self.evolve(index, state)
        return Forward(arena[index.reads[0]], arena)

    def query(self, users: Tensor, times: Tensor, state: State) -> Tensor:
        return self.entity_states(0, users, state)

    # ---- the point process

    def _elapsed(self, time: Tensor, user_time: Tensor, item_time: Tensor) -> Tensor:
        """τ [n, C] in time units, from times of queries, users and items, float64[n], [n] and [n, C]."""
        last_change = torch.maximum(torch.maximum(user_time[:, None], item_time), self.time_origin)
        seconds = (time[:, None] - last_change).clamp_min(0)
        return (torch.log1p(seconds) / self.time_unit).clamp_min(MIN_ELAPSED).to(self.xi)

    def _intensity_and_survival(self, products: Tensor, elapsed: Tensor) -> tuple[Tensor, Tensor]:
        """(log λ, −log S)"""
        exponent = (products + self.log_rate).clamp_max(MAX_EXPONENT)
        return exponent + elapsed.log(), exponent.exp() * elapsed.square() / 2

    def window_loss(self, index: WindowIndex, forward: Forward, state: State, step: Step) -> Tensor:
        n, count = len(index.window), self.config.negatives
        items = torch.randint(self.shape.items, (n, count), generator=step.generator()).to(self.xi.device)
        items = torch.cat([index.item[:, None], items], 1)
        rows = rows_before(index, items, self.arange(n))
        in_window = (rows >= 0).flatten()
        outside = items.flatten()[~in_window].unique()  # type: ignore[no-untyped-call]
        vectors = torch.cat([forward.arena, self.item_vectors(outside, state)])
        row = torch.where(rows >= 0, rows, index.rows + torch.searchsorted(outside, items))
        products = torch.bmm(vectors[row], forward.query[:, :, None])[..., 0]
        times = torch.cat([self._row_times(index, state), state["item_time"][outside]])[row]
        elapsed = self._elapsed(index.time, self.previous_times(index, state)[0], times)
        log_intensity, survival = self._intensity_and_survival(products, elapsed)
        negatives = survival[:, 1:].sum() * (self.shape.items - 1) / count
        return survival[:, 0].sum() + negatives - log_intensity[:, 0].sum()

    def _row_times(self, index: WindowIndex, state: State) -> Tensor:
        """float64[R]: the times at which the states of the arena were written."""
        users, items = index.roots[:2]
        return torch.cat([state["user_time"][users], state["item_time"][items], index.time[index.place // 2]])

    def score(self, batch: WindowIndex, candidates: Tensor | None, state: State) -> Tensor:
        # The time of each item's last change before each event is read like a state of width 1.
        ones, stored = batch.time.new_ones(len(batch.window), 1), state["item_time"][:, None]
        times = all_scores(ones, stored, None, batch.item, self.arange(len(ones)), batch.time[:, None])
        elapsed = self._elapsed(batch.time, self.previous_times(batch, state)[0], times)
        scores = self._ranking_scores(super().score(batch, None, state), elapsed)
        return scores if candidates is None else scores.gather(1, candidates)

    def score_query(self, users: Tensor, times: Tensor, candidates: Tensor | None, state: State) -> Tensor:
        item_times = state["item_time"].expand(len(users), -1)
        elapsed = self._elapsed(times.to(item_times), state["user_time"][users], item_times)
        scores = self._ranking_scores(super().score_query(users, times, None, state), elapsed)
        return scores if candidates is None else scores.gather(1, candidates)

    def _ranking_scores(self, products: Tensor, elapsed: Tensor) -> Tensor:
        log_intensity, survival = self._intensity_and_survival(products, elapsed)
        return log_intensity - survival if self.config.ranking == "density" else log_intensity
