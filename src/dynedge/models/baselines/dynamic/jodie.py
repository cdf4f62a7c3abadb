"""JODIE (Kumar, Zhang, Leskovec 2019): coupled recurrent networks, with user states projected forward in time.

Legend: n events, d width of a state; ū and ī are static vectors, u and i states (coevolving_rnn.py updates them); Δ
the time since the user's last event.

    û = (1 + w Δ) ∘ u                                      the projected user state
    j̃ = W₁ û + W₂ ū + W₃ i + W₄ ī + b                      the predicted item vector, with i the user's last item
    score of item j = j̃ · [j, j̄] + b_j

Differences from the paper:
- Static vectors are learned and of width d, not one-hot; entities not seen in training have the static vector 0.
- The loss is −log softmax of the true item's score among the sampled items (all items where they are few). With
  `loss` = "mse" it is the paper's, ‖j̃ − [j, j̄]‖² + ‖u' − u‖² + ‖i' − i‖², and items are ranked by that distance.
  Static vectors are then random unit vectors that are not trained, as one-hot vectors are not: trained, they would
  all collapse into one point. With `loss` = "triplet" items are ranked by distance too, and the loss of an event is
  the mean over sampled items k of max(0, margin + ‖j̃ − [j, j̄]‖² − ‖j̃ − [k, k̄]‖²), with trained static vectors.
- With `normalize_states`, as in the official code, states are scaled to length one where they are read for a
  prediction; the recurrence itself goes on with the states as they are.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dynedge.config import MAX_WIDTH, option
from dynedge.models.base import LogShape, State, Step
from dynedge.models.baselines.dynamic.coevolving_rnn import CoevolvingRNN
from dynedge.models.candidate_states import rows_before
from dynedge.models.dynamic_base import Forward
from dynedge.models.entity_rows import Rows
from dynedge.models.window_index import WindowIndex
from dynedge.ops.gather_linear import gather_linear


@dataclass(frozen=True)
class JodieConfig:
    """Settings of JODIE."""

    dim: int = option(64, "Width of states and static vectors.", least=1, most=MAX_WIDTH)
    windows: int = option(300, "Number of windows (training steps) per epoch.", least=1)
    loss: str = option(
        "softmax",
        "Training loss: a softmax over items, the paper's, or a margin between distances.",
        choices=("softmax", "mse", "triplet"),
    )
    normalize_states: bool = option(False, "States scaled to length one where they are read for a prediction.")
    margin: float = option(1.0, "Margin of the squared distances (triplet only).", least=0)
    negatives: int = option(512, "Number of negative samples, shared by a chunk of events.", least=1)
    full_softmax_up_to: int = option(4096, "Largest number of items for a softmax over all items.", least=0)
    dropout: float = option(0.3, "Dropout rate of the predicted item vector (softmax only).", least=0, most=1)
    state_change_weight: float = option(1.0, "Weight of the squared state changes in the loss (mse only).", least=0)


SEARCH = {
    "training.lr": (3e-4, 1e-3, 3e-3, 1e-2),
    "training.row_lr": (1e-3, 3e-3, 1e-2, 3e-2),
    "model.dropout": (0.0, 0.1, 0.3, 0.5),
    "model.windows": (150, 300, 600),
    "model.loss": ("softmax", "triplet"),
    "model.normalize_states": (False, True),
    "model.negatives": (64, 512),
}
TRIPLETS = 10  # sampled items per event


class Jodie(CoevolvingRNN):
    def __init__(self, config: JodieConfig, shape: LogShape) -> None:
        unseen = np.zeros(shape.users, bool), np.zeros(shape.items, bool)
        super().__init__(config, shape, unseen)
        d = config.dim
        self.by_distance = config.loss != "softmax"
        trained = config.loss != "mse"
        tables = torch.zeros(shape.users, d), torch.zeros(shape.items, d + 1)  # the last column: biases of items
        if self.by_distance:
            tables = F.normalize(torch.randn(shape.users, d)), F.pad(F.normalize(torch.randn(shape.items, d)), (0, 1))
        self.user_static, self.item_static = (nn.Parameter(table, trained) for table in tables)
        self.projection = nn.Parameter(torch.zeros(d))
        self.predict = nn.Linear(4 * d, 2 * d)

    def entity_rows(self) -> dict[str, Rows]:
        return super().entity_rows() | {"user_static": Rows(users=True), "item_static": Rows(items=True)}

    @property
    def candidate_ids(self) -> Tensor:
        if not self.by_distance:
            return self.item_static
        static = self.item_static[:, :-1]
        return torch.cat([F.pad(static, (0, 1)), -static.square().sum(1, keepdim=True)], 1)

    def _predicted_item(
        self, user: Tensor, user_states: Tensor, gap: Tensor, last_item: Tensor, item_states: Tensor
    ) -> Tensor:
        """j̃ [n, 2d], from users, their states and time gaps, their last items (−1: none) and these items' states."""
        user_states, item_states = self._read(user_states), self._read(item_states)
        projected = (1 + self.projection * gap) * user_states
        exists = (last_item >= 0)[:, None]
        static = F.embedding(last_item.clamp_min(0), self.item_static, sparse=True)[:, :-1]
        user_static = F.embedding(user, self.user_static, sparse=True)
        inputs = projected, user_static, item_states * exists, static * exists
        predicted = gather_linear(
            [(part.contiguous(), None) for part in inputs], self.predict.weight, self.predict.bias
        )
        # With dropout, a regression would learn vectors that are too short.
        return predicted if self.by_distance else F.dropout(predicted, self.config.dropout, self.training)

    def forward_window(self, index: WindowIndex, state: State) -> Forward:
        arena = self.evolve(index, state)
        last_item = self.last_items(index, state)
        row = rows_before(index, last_item.clamp_min(0)[:, None], self.arange(len(last_item)))[:, 0]
        stored = self.entity_states(1, last_item.clamp_min(0), state)
        item_states = torch.where((row >= 0)[:, None], arena[row.clamp_min(0)], stored)
        gap = self.gap_features(index.time, self.previous_times(index, state)[0])[:, :1].to(arena)
        predicted = self._predicted_item(index.user, arena[index.reads[0]], gap, last_item, item_states)
        vectors = self._append_squared_norm(self._read(arena))
        return Forward(self._query_vector(predicted), vectors, (arena,))

    def query(self, users: Tensor, times: Tensor, state: State) -> Tensor:
        last_item = state["last_item"][users]
        gap = self.gap_features(times, state["user_time"][users])[:, :1].to(self.xi)
        item_states = self.entity_states(1, last_item.clamp_min(0), state)
        user_states = self.entity_states(0, users, state)
        return self._query_vector(self._predicted_item(users, user_states, gap, last_item, item_states))

    def item_vectors(self, items: Tensor, state: State) -> Tensor:
        return self._append_squared_norm(self._read(super().item_vectors(items, state)))

    # Up to a constant shared by all items, −‖j̃ − [j, j̄]‖² is an inner product with one more column, the squared norm.

    def _query_vector(self, predicted: Tensor) -> Tensor:
        if not self.by_distance:
            return predicted
        dynamic, static = predicted[:, : self.config.dim], predicted[:, self.config.dim :]
        return torch.cat([F.pad(2 * dynamic, (0, 1), value=-1.0), F.pad(2 * static, (0, 1))], 1)

    def _read(self, states: Tensor) -> Tensor:
        """States [.., d] as a prediction reads them."""
        return F.normalize(states, dim=-1) if self.config.normalize_states else states

    def _append_squared_norm(self, states: Tensor) -> Tensor:
        if not self.by_distance:
            return states
        return torch.cat([states, states.square().sum(1, keepdim=True)], 1)

    def window_loss(self, index: WindowIndex, forward: Forward, state: State, step: Step) -> Tensor:
        if not self.by_distance:
            return super().window_loss(index, forward, state, step)
        d, states, vectors = self.config.dim, forward.extra[0], forward.arena[:, : self.config.dim]
        predicted = torch.cat([forward.query[:, :d], forward.query[:, d + 1 : -1]], 1) / 2
        if self.config.loss == "triplet":
            return self._triplet_loss(index, predicted, vectors, state, step)
        true = torch.cat([vectors[index.reads[1]].detach(), self.item_static[index.item, :-1]], 1)
        previous_rows = torch.as_tensor(index.schedule.parents[:, 0], device=states.device)
        change = states[index.schedule.first_written :] - states[previous_rows]
        return (predicted - true).square().sum() + self.config.state_change_weight * change.square().sum()

    def _triplet_loss(
        self, index: WindowIndex, predicted: Tensor, vectors: Tensor, state: State, step: Step
    ) -> Tensor:
        """The sum over events of the mean margin loss; the first column of `items` has the true items."""
        sampled = torch.randint(self.shape.items, (len(predicted), TRIPLETS), generator=step.generator())
        items = torch.cat([index.item[:, None], sampled.to(index.item.device)], 1)
        row = rows_before(index, items, self.arange(len(items)))
        stored = self._read(self.entity_states(1, items.flatten(), state)).view(*items.shape, self.config.dim)
        dynamic = torch.where((row >= 0)[..., None], vectors[row.clamp_min(0)], stored)
        static = F.embedding(items, self.item_static, sparse=True)[..., :-1]
        distance = (predicted[:, None] - torch.cat([dynamic, static], 2)).square().sum(2)
        return F.relu(self.config.margin + distance[:, :1] - distance[:, 1:]).mean(1).sum()

    def advance(self, index: WindowIndex, forward: Forward, state: State) -> None:
        super().advance(index, forward._replace(arena=forward.extra[0]), state)
