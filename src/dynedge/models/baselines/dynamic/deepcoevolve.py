"""DeepCoevolve (Dai, Wang, Trivedi, Song 2016): co-evolving states that drive point processes, one for each pair.

Legend: n events, N negatives, I items, d width of a state; f_u and f_i are states (models/coevolving.py moves them).

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

import numpy as np
import torch
from torch import Tensor, nn

from dynedge.config import option
from dynedge.data.log import EventLog
from dynedge.models.base import State, Step
from dynedge.models.candidate_rows import rows_before
from dynedge.models.coevolving import Coevolving
from dynedge.models.dynamic import Asked
from dynedge.models.modules import Shape
from dynedge.models.window_index import Prepared
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


class DeepCoevolve(Coevolving):
    unit: Tensor
    origin: Tensor

    def __init__(self, config: DeepCoevolveConfig, shape: Shape, categories: Array, met: tuple[Array, Array]) -> None:
        asked = config.windows, config.negatives
        super().__init__(shape, config.dim, categories, met, *asked, item_ids=True)
        self.config = config
        self.rate = nn.Parameter(torch.tensor(-math.log(max(shape.items, 1))))
        self.register_buffer("unit", torch.ones((), dtype=torch.float64))
        self.register_buffer("origin", torch.zeros((), dtype=torch.float64))

    def ask(self, prepared: Prepared, state: State) -> Asked:
        arena = self.evolve(prepared, state)
        return Asked(arena[prepared.reads[0]], arena)

    def question(self, users: Tensor, times: Tensor, state: State) -> Tensor:
        return self.states(0, users, state)

    def advance(self, prepared: Prepared, asked: Asked, state: State) -> None:
        self.move(prepared, asked.arena, state)

    # ---- the point process

    def _waited(self, time: Tensor, user_time: Tensor, item_time: Tensor) -> Tensor:
        """τ [n, C]: how long neither has moved, in units; times float64[n], [n] and [n, C]."""
        moved = torch.maximum(torch.maximum(user_time[:, None], item_time), self.origin)
        return (torch.log1p((time[:, None] - moved).clamp_min(0)) / self.unit).clamp_min(EARLIEST).to(self.xi)

    def _likelihood(self, products: Tensor, waited: Tensor) -> tuple[Tensor, Tensor]:
        """(log λ, −log S)"""
        exponent = (products + self.rate).clamp_max(LARGEST)
        return exponent + waited.log(), exponent.exp() * waited.square() / 2

    def error(self, prepared: Prepared, asked: Asked, state: State, step: Step) -> Tensor:
        n, drawn = len(prepared.window), self.negatives
        items = torch.randint(self.shape.items, (n, drawn), generator=step.generator()).to(self.xi.device)
        items = torch.cat([prepared.item[:, None], items], 1)
        rows = rows_before(prepared, items, self.numbers(n))
        inside = (rows >= 0).flatten()
        outside = items.flatten()[~inside].unique()  # type: ignore[no-untyped-call]
        pool = torch.cat([asked.arena, self.items_now(outside, state)])
        place = torch.where(rows >= 0, rows, prepared.rows + torch.searchsorted(outside, items))
        products = torch.bmm(pool[place], asked.wanted[:, :, None])[..., 0]
        times = torch.cat([self._row_times(prepared, state), state["item_time"][outside]])[place]
        waited = self._waited(prepared.time, self.times_before(prepared, state)[0], times)
        intensity, survival = self._likelihood(products, waited)
        others = survival[:, 1:].sum() * (self.shape.items - 1) / drawn
        return survival[:, 0].sum() + others - intensity[:, 0].sum()

    def _row_times(self, prepared: Prepared, state: State) -> Tensor:
        """float64[R]: when the states of the arena were written."""
        assert prepared.schedule is not None
        events = torch.from_numpy(prepared.schedule.event).long().to(self.xi.device)
        users, items = prepared.roots[:2]
        return torch.cat([state["user_time"][users], state["item_time"][items], prepared.time[events]])

    def score(self, prepared: Prepared, candidates: Tensor | None, state: State) -> Tensor:
        # When each item last moved, before each event, is a state of width 1.
        ones, now = prepared.time.new_ones(len(prepared.window), 1), state["item_time"][:, None]
        times = all_scores(ones, now, None, prepared.item, self.numbers(len(ones)), prepared.time[:, None])
        waited = self._waited(prepared.time, self.times_before(prepared, state)[0], times)
        found = self._ranked(super().score(prepared, None, state), waited)
        return found if candidates is None else found.gather(1, candidates)

    def peek(self, users: Tensor, times: Tensor, candidates: Tensor | None, state: State) -> Tensor:
        last = state["item_time"].expand(len(users), -1)
        waited = self._waited(times.to(last), state["user_time"][users], last)
        found = self._ranked(super().peek(users, times, None, state), waited)
        return found if candidates is None else found.gather(1, candidates)

    def _ranked(self, products: Tensor, waited: Tensor) -> Tensor:
        intensity, survival = self._likelihood(products, waited)
        return intensity - survival if self.config.ranked_by == "density" else intensity


def restore(config: DeepCoevolveConfig, log: EventLog, tensors: dict[str, Tensor]) -> DeepCoevolve:
    met = np.asarray(tensors["user_begins"] >= 0), np.asarray(tensors["item_begins"] >= 0)
    model = DeepCoevolve(config, Shape.of(log), np.asarray(log.item_categories), met)
    model.load_state_dict(tensors)
    return model


def create(config: DeepCoevolveConfig, log: EventLog, train_end: int, seed: int) -> DeepCoevolve:
    met = np.zeros(log.num_users, bool), np.zeros(log.num_items, bool)
    met[0][log.user[:train_end]], met[1][log.item[:train_end]] = True, True
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = DeepCoevolve(config, Shape.of(log), np.asarray(log.item_categories), met)
    user, time = np.asarray(log.user[:train_end]), np.asarray(log.time[:train_end])
    order = np.argsort(user, kind="stable")
    gaps = np.diff(time[order])[np.diff(user[order]) == 0]
    gaps = gaps[gaps > 0]  # what comes at once, as in a basket, tells nothing of how long users wait
    if train_end:
        model.origin.fill_(float(time[0]))
    if len(gaps):
        model.unit.fill_(max(float(np.log1p(gaps).mean()), EARLIEST))
    return model
