"""JODIE (Kumar, Zhang, Leskovec 2019): coupled recurrent networks, and a user's state projected to the time asked.

Legend: n events, d width of a state; ū and ī are static vectors, u and i states (models/coevolving.py moves them).

    û = (1 + w Δ) ∘ u                                      the projection: Δ since the user's last event
    j̃ = W₁ û + W₂ ū + W₃ i + W₄ ī + b                      the wanted item's vector, from the user's last item i
    score of item j = j̃ · [j, j̄] + b_j

What differs from the paper: static vectors are learned, of width d, not one-hot; the loss is −log softmax of
the true item's score among the drawn items (all of them where they are few). With `loss` "mse" it is the paper's,
‖j̃ − [j, j̄]‖² + ‖u' − u‖² + ‖i' − i‖², and items are ranked by that distance; static vectors then are random ones of
length 1 that stay, as one-hot ones did: learned, all would fall together into one point.
Whoever was not met in training has the static vector 0.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dynedge.config import option
from dynedge.data.log import EventLog
from dynedge.models.base import State, Step
from dynedge.models.candidate_rows import rows_before
from dynedge.models.coevolving import Coevolving, gaps
from dynedge.models.dynamic import Asked
from dynedge.models.modules import Shape
from dynedge.models.window_index import Prepared
from dynedge.ops.gather_linear import gather_linear
from dynedge.utils.arrays import Array


@dataclass(frozen=True)
class JodieConfig:
    """JODIE, for ranking."""

    dim: int = option(64, "width of states and static vectors", least=1)
    windows: int = option(300, "training windows an epoch is cut into", least=1)
    loss: str = option("softmax", "over the drawn items; or the paper's distance", choices=("softmax", "mse"))
    negatives: int = option(512, "items drawn for each chunk of events, beside the true ones", least=1)
    full_softmax_up_to: int = option(4096, "with no more items than this, all are candidates", least=0)
    dropout: float = option(0.3, "share of what a user wants that training leaves out, at random (softmax)", least=0)
    steady: float = option(1.0, "weight of how far states move, in the loss mse", least=0)


class Jodie(Coevolving):
    def __init__(self, config: JodieConfig, shape: Shape, categories: Array) -> None:
        asked = config.windows, config.negatives, config.full_softmax_up_to
        super().__init__(shape, config.dim, categories, None, *asked)
        self.config, d = config, config.dim
        self.by_distance = config.loss == "mse"
        tables = torch.zeros(shape.users, d), torch.zeros(shape.items, d + 1)  # an item's bias is its last column
        if self.by_distance:
            tables = F.normalize(torch.randn(shape.users, d)), F.pad(F.normalize(torch.randn(shape.items, d)), (0, 1))
        self.user_static, self.item_static = (nn.Parameter(table, not self.by_distance) for table in tables)
        self.ahead = nn.Parameter(torch.zeros(d))
        self.wants = nn.Linear(4 * d, 2 * d)

    @property
    def ids(self) -> Tensor:
        if not self.by_distance:
            return self.item_static
        static = self.item_static[:, :-1]
        return torch.cat([F.pad(static, (0, 1)), -static.square().sum(1, keepdim=True)], 1)

    def _wanted(self, user: Tensor, users: Tensor, since: Tensor, last: Tensor, lasts: Tensor) -> Tensor:
        """[n, 2d], j̃: from users and their states, the time since, the last items (−1: none) and their states."""
        projected = (1 + self.ahead * since) * users
        there = (last >= 0)[:, None]
        static = F.embedding(last.clamp_min(0), self.item_static, sparse=True)[:, :-1]
        inputs = projected, F.embedding(user, self.user_static, sparse=True), lasts * there, static * there
        wanted = gather_linear([(part.contiguous(), None) for part in inputs], self.wants.weight, self.wants.bias)
        # a regressed vector with parts left out would be the shorter for it
        return wanted if self.by_distance else F.dropout(wanted, self.config.dropout, self.training)

    def ask(self, prepared: Prepared, state: State) -> Asked:
        arena = self.evolve(prepared, state)
        last = self.last_items(prepared, state)
        row = rows_before(prepared, last[:, None], self.numbers(len(last)))[:, 0]
        lasts = torch.where((row >= 0)[:, None], arena[row.clamp_min(0)], self.states(1, last.clamp_min(0), state))
        since = gaps(prepared.time, self.times_before(prepared, state)[0])[:, :1].to(arena)
        wanted = self._wanted(prepared.user, arena[prepared.reads[0]], since, last, lasts)
        return Asked(self._for_scores(wanted), self._with_length(arena))

    def question(self, users: Tensor, times: Tensor, state: State) -> Tensor:
        last, since = state["last_item"][users], gaps(times, state["user_time"][users])[:, :1].to(self.xi)
        lasts = self.states(1, last.clamp_min(0), state)
        return self._for_scores(self._wanted(users, self.states(0, users, state), since, last, lasts))

    def items_now(self, items: Tensor, state: State) -> Tensor:
        return self._with_length(super().items_now(items, state))

    # −‖j̃ − [j, j̄]‖² is an inner product too, but for what all items share, with one more column: the square of j.

    def _for_scores(self, wanted: Tensor) -> Tensor:
        if not self.by_distance:
            return wanted
        dynamic, static = wanted[:, : self.dim], wanted[:, self.dim :]
        return torch.cat([F.pad(2 * dynamic, (0, 1), value=-1.0), F.pad(2 * static, (0, 1))], 1)

    def _with_length(self, states: Tensor) -> Tensor:
        if not self.by_distance:
            return states
        return torch.cat([states, states.square().sum(1, keepdim=True)], 1)

    def error(self, prepared: Prepared, asked: Asked, state: State, step: Step) -> Tensor:
        if not self.by_distance:
            return super().error(prepared, asked, state, step)
        d, states = self.dim, asked.arena[:, : self.dim]
        wanted = torch.cat([asked.wanted[:, :d], asked.wanted[:, d + 1 : -1]], 1) / 2
        true = torch.cat([states[prepared.reads[1]].detach(), self.item_static[prepared.item, :-1]], 1)
        assert prepared.schedule is not None
        own = torch.from_numpy(prepared.schedule.parents[:, 0]).long().to(states.device)
        moved = states[prepared.schedule.first_written :] - states[own]
        return (wanted - true).square().sum() + self.config.steady * moved.square().sum()

    def advance(self, prepared: Prepared, asked: Asked, state: State) -> None:
        self.move(prepared, asked.arena[:, : self.dim], state)


def restore(config: JodieConfig, log: EventLog, tensors: dict[str, Tensor]) -> Jodie:
    model = Jodie(config, Shape.of(log), np.asarray(log.item_categories))
    model.load_state_dict(tensors)
    return model


def create(config: JodieConfig, log: EventLog, train_end: int, seed: int) -> Jodie:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return Jodie(config, Shape.of(log), np.asarray(log.item_categories))
