"""GraphMixer (Cong, Zhang, Kang, Yuan, Wu, Zhou, Tong, Mahdavi 2023): an MLP-Mixer over an entity's last events.

Legend: q entities, L neighbours stored, d width of a vector, T width of a time encoding; x learned id embeddings, Φ
the fixed time encoding cos(ω Δ).

    tokens of entity v at t:  y_j = W [Φ(t − t_j), x_j] + b for its last events j; b where there are fewer
    mixer:  Y ← Y + W₂ gelu(W₁ norm(Y)) over the L tokens,  Y ← Y + W₄ gelu(W₃ norm(Y)) over the d channels
    z_v = W₅ [mean of Y, x_v + mean of x_j]

Differences from the paper:
- x are learned embeddings, 0 for entities not seen in training: the logs have no features of users and items. The
  paper mixes features of events; these logs have few or none, so a neighbour's embedding takes their place.
- The node encoder averages all stored neighbours, not those of a fixed time span.
- A user is encoded at the time of the query. A candidate is encoded at its own last event, with a time encoding of
  its age (candidate_age.py), its id embedding and a bias. The paper's classifier is an MLP of both; here all items
  are scored by one product.
- The loss is −log softmax of the true item's score among all items, or among sampled ones.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dynedge.config import MAX_WIDTH, option
from dynedge.data.log import EventLog
from dynedge.models.base import LogShape, State, seeded
from dynedge.models.baselines.dynamic.candidate_age import CandidateAge
from dynedge.models.baselines.dynamic.neighbour_base import NeighbourIndex, NeighbourModel, history_after, item_arena
from dynedge.models.baselines.dynamic.tgat import BATCH
from dynedge.models.capabilities import HasVectors
from dynedge.models.dynamic_base import Forward
from dynedge.models.entity_rows import Rows
from dynedge.models.ring_buffer import SIDES, History
from dynedge.models.window_index import WindowIndex
from dynedge.ops.gather_linear import gather_linear


@dataclass(frozen=True)
class GraphMixerConfig:
    """Settings of GraphMixer."""

    dim: int = option(64, "Width of vectors.", least=1, most=MAX_WIDTH)
    time_dim: int = option(16, "Width of the time encoding.", least=1, most=MAX_WIDTH)
    windows: int = option(300, "Number of windows (training steps) per epoch.", least=1)
    neighbours: int = option(20, "Number of most recent events that are mixed.", least=1)
    negatives: int = option(512, "Number of negative samples, shared by a chunk of events.", least=1)
    full_softmax_up_to: int = option(4096, "Largest number of items for a softmax over all items.", least=0)
    dropout: float = option(0.3, "Dropout rate of the query vector.", least=0, most=1)


SEARCH = {
    "training.lr": (3e-4, 1e-3, 3e-3),
    "training.row_lr": (1e-3, 3e-3, 1e-2),
    "model.neighbours": (10, 20, 30),
    "model.windows": (150, 300, 600),
    "model.dropout": (0.1, 0.3, 0.5),
}


class MLP(nn.Module):
    """Two linear layers over the last dimension of [a, b, c]; a row does not depend on the number of rows."""

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(width, hidden), nn.Linear(hidden, width)

    def forward(self, inputs: Tensor) -> Tensor:
        rows = inputs.flatten(0, 1).contiguous()
        hidden = F.gelu(gather_linear([(rows, None)], self.first.weight, self.first.bias))
        return gather_linear([(hidden, None)], self.second.weight, self.second.bias).view(inputs.shape)


class Mixer(nn.Module):
    """The link encoder of one side: [q, d] from tokens [q, L, ..]."""

    def __init__(self, config: GraphMixerConfig) -> None:
        super().__init__()
        d, length = config.dim, config.neighbours
        self.token = nn.Linear(config.time_dim + d, d)
        self.norms = nn.ModuleList(nn.LayerNorm(d) for _ in range(3))
        self.across, self.within = MLP(length, max(length // 2, 1)), MLP(d, 2 * d)

    def forward(self, phi: Tensor, neighbours: Tensor) -> Tensor:
        parts = [(part.flatten(0, 1).contiguous(), None) for part in (phi, neighbours)]
        tokens = gather_linear(parts, self.token.weight, self.token.bias).view(neighbours.shape)
        tokens = tokens + self.across(self.norms[0](tokens).transpose(1, 2)).transpose(1, 2)
        tokens = tokens + self.within(self.norms[1](tokens))
        mixed: Tensor = self.norms[2](tokens).mean(1)
        return mixed


class GraphMixer(NeighbourModel, HasVectors):
    frequency: Tensor  # ω [T]

    def __init__(self, config: GraphMixerConfig, shape: LogShape) -> None:
        super().__init__(config, shape)
        d = config.dim
        sizes = (shape.users, d), (shape.items, d + 2 * config.time_dim + 1)  # the last column: biases of candidates
        self.x = nn.ParameterList(nn.Parameter(torch.zeros(size)) for size in sizes)
        self.register_buffer("frequency", torch.logspace(0, -9, config.time_dim))
        self.mixers = nn.ModuleList(Mixer(config) for _ in SIDES)
        self.combine_users, self.combine_items = (nn.Linear(2 * d, d) for _ in SIDES)
        self.age = CandidateAge(d, config.time_dim)
        self.query_out = nn.Linear(d, 2 * d)

    @classmethod
    def create(cls, config: GraphMixerConfig, log: EventLog, train_end: int, seed: int) -> Self:
        with seeded(seed):
            model = cls(config, LogShape.of(log))
            for table, ids in zip(model.x, (log.user, log.item), strict=True):
                seen = np.unique(ids[:train_end])
                table.data[seen, : config.dim] = 0.1 * torch.randn(len(seen), config.dim)
        return model

    def entity_rows(self) -> dict[str, Rows]:
        return {"x.0": Rows(users=True), "x.1": Rows(items=True)}

    @property
    def candidate_ids(self) -> Tensor:
        return self.x[1]

    def _encode(self, side: int, entity: Tensor, time: Tensor, history: History) -> Tensor:
        """z [q, d] of entities at these times."""
        d, mask = self.config.dim, history.partner >= 0
        own = F.embedding(entity, self.x[side], sparse=True)[:, :d]
        neighbours = F.embedding(history.partner.clamp_min(0), self.x[1 - side], sparse=True)[..., :d]
        neighbours = neighbours * mask[..., None]
        gap = (time[:, None] - history.time).clamp_min(0).to(self.frequency)
        phi = torch.cos(gap[..., None] * self.frequency) * mask[..., None]
        mixed = self.mixers[side](phi, neighbours)
        node = own + neighbours.sum(1) / mask.sum(1, keepdim=True).clamp_min(1)
        combine = self.combine_users if side == 0 else self.combine_items
        return gather_linear([(mixed, None), (node, None)], combine.weight, combine.bias)

    def _encode_now(self, side: int, entities: Tensor, time: Tensor | None, state: State) -> Tensor:
        """z [q, d] of entities in this state, at a time; None: at the time of their own last event."""
        vectors = [self.frequency.new_zeros(0, self.config.dim)]
        for start in range(0, len(entities), BATCH):
            rows = slice(start, start + BATCH)
            history = self.current_history(side, entities[rows], state)
            at = history.time[:, 0] if time is None else time[rows].to(history.time)
            vectors.append(self._encode(side, entities[rows], at, history))
        return torch.cat(vectors)

    def _query_of(self, user: Tensor, time: Tensor) -> Tensor:
        d = self.config.dim
        query = gather_linear([(user, None)], self.query_out.weight, self.query_out.bias) * d**-0.5
        query = F.dropout(query, self.config.dropout, self.training)
        return self.age.query(query, user, time)

    def forward_window(self, index: WindowIndex, state: State) -> Forward:
        assert isinstance(index, NeighbourIndex)
        user_history, item_history = self.histories_before(index, state)
        users = self._encode(0, index.user, index.time, user_history)
        updated = self._encode(1, index.item, index.time, history_after(item_history, index.rings[1]))
        updated = torch.cat([updated, self.age.item_columns(index.time)], 1)
        initial = self.item_vectors(index.roots[1], state)
        return Forward(self._query_of(users, index.time), item_arena(index, initial, updated))

    def query(self, users: Tensor, times: Tensor, state: State) -> Tensor:
        return self._query_of(self._encode_now(0, users, times, state), times.double())

    def item_vectors(self, items: Tensor, state: State) -> Tensor:
        last = self.current_history(1, items, state).time[:, 0]
        return torch.cat([self._encode_now(1, items, None, state), self.age.item_columns(last)], 1)

    def vectors(self, state: State) -> tuple[Tensor, Tensor]:
        """Encodings of every user and item at the time of its last event."""
        users, items = self.arange(self.shape.users), self.arange(self.shape.items)
        return self._encode_now(0, users, None, state), self._encode_now(1, items, None, state)
