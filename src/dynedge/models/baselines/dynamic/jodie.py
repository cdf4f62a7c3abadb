"""JODIE (Kumar, Zhang, Leskovec 2019): coupled recurrent networks, and a user's state projected to the time forward.

Legend: n events, d width of a state; ū and ī are static vectors, u and i states (coevolving_rnn.py updates them).

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
from dynedge.models.base import LogShape, State, Step
from dynedge.models.baselines.dynamic.coevolving_rnn import CoevolvingRNN
from dynedge.models.candidate_rows import rows_before
from dynedge.models.dynamic import Forward
from dynedge.models.window_index import WindowIndex
from dynedge.ops.gather_linear import gather_linear


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


class Jodie(CoevolvingRNN):
    def __init__(self, config: JodieConfig, shape: LogShape) -> None:
        nobody = np.zeros(shape.users, bool), np.zeros(shape.items, bool)
        super().__init__(config, shape, nobody)
        d = config.dim
        self.by_distance = config.loss == "mse"
        tables = torch.zeros(shape.users, d), torch.zeros(shape.items, d + 1)  # an item's bias is its last column
        if self.by_distance:
            tables = F.normalize(torch.randn(shape.users, d)), F.pad(F.normalize(torch.randn(shape.items, d)), (0, 1))
        self.user_static, self.item_static = (nn.Parameter(table, not self.by_distance) for table in tables)
        self.ahead = nn.Parameter(torch.zeros(d))
        self.wants = nn.Linear(4 * d, 2 * d)

    @property
    def candidate_ids(self) -> Tensor:
        if not self.by_distance:
            return self.item_static
        static = self.item_static[:, :-1]
        return torch.cat([F.pad(static, (0, 1)), -static.square().sum(1, keepdim=True)], 1)

    def _query(self, user: Tensor, users: Tensor, since: Tensor, last: Tensor, lasts: Tensor) -> Tensor:
        """[n, 2d], j̃: from users and their states, the time since, the last items (−1: none) and their states."""
        projected = (1 + self.ahead * since) * users
        there = (last >= 0)[:, None]
        static = F.embedding(last.clamp_min(0), self.item_static, sparse=True)[:, :-1]
        inputs = projected, F.embedding(user, self.user_static, sparse=True), lasts * there, static * there
        wanted = gather_linear([(part.contiguous(), None) for part in inputs], self.wants.weight, self.wants.bias)
        # a regressed vector with parts left out would be the shorter for it
        return wanted if self.by_distance else F.dropout(wanted, self.config.dropout, self.training)

    def forward_window(self, index: WindowIndex, state: State) -> Forward:
        arena = self.evolve(index, state)
        last = self.last_items(index, state)
        row = rows_before(index, last[:, None], self.arange(len(last)))[:, 0]
        stored = self.entity_states(1, last.clamp_min(0), state)
        lasts = torch.where((row >= 0)[:, None], arena[row.clamp_min(0)], stored)
        since = self.gap_features(index.time, self.previous_times(index, state)[0])[:, :1].to(arena)
        wanted = self._query(index.user, arena[index.reads[0]], since, last, lasts)
        return Forward(self._for_scores(wanted), self._with_length(arena))

    def query(self, users: Tensor, times: Tensor, state: State) -> Tensor:
        last = state["last_item"][users]
        since = self.gap_features(times, state["user_time"][users])[:, :1].to(self.xi)
        lasts = self.entity_states(1, last.clamp_min(0), state)
        return self._for_scores(self._query(users, self.entity_states(0, users, state), since, last, lasts))

    def item_vectors(self, items: Tensor, state: State) -> Tensor:
        return self._with_length(super().item_vectors(items, state))

    # −‖j̃ − [j, j̄]‖² is an inner product too, but for what all items share, with one more column: the square of j.

    def _for_scores(self, wanted: Tensor) -> Tensor:
        if not self.by_distance:
            return wanted
        dynamic, static = wanted[:, : self.config.dim], wanted[:, self.config.dim :]
        return torch.cat([F.pad(2 * dynamic, (0, 1), value=-1.0), F.pad(2 * static, (0, 1))], 1)

    def _with_length(self, states: Tensor) -> Tensor:
        if not self.by_distance:
            return states
        return torch.cat([states, states.square().sum(1, keepdim=True)], 1)

    def error(self, index: WindowIndex, forward: Forward, state: State, step: Step) -> Tensor:
        if not self.by_distance:
            return super().error(index, forward, state, step)
        d, states = self.config.dim, forward.arena[:, : self.config.dim]
        wanted = torch.cat([forward.query[:, :d], forward.query[:, d + 1 : -1]], 1) / 2
        true = torch.cat([states[index.reads[1]].detach(), self.item_static[index.item, :-1]], 1)
        own = torch.from_numpy(index.schedule.parents[:, 0]).long().to(states.device)
        moved = states[index.schedule.first_written :] - states[own]
        return (wanted - true).square().sum() + self.config.steady * moved.square().sum()

    def advance(self, index: WindowIndex, forward: Forward, state: State) -> None:
        super().advance(index, forward._replace(arena=forward.arena[:, : self.config.dim]), state)
