"""TGAT (Xu, Ruan, Korpeoglu, Kumar, Achan 2020): attention over the last neighbours, with a functional time encoding.

Legend: n events of a window, q queries, L neighbours stored, d width of a vector, T width of a time encoding, F
number of event features; Δ a time difference, ω frequencies, φ phases.

    Φ(Δ) = cos(ω Δ + φ)
    layer l of entity v at time t, with h of layer l − 1, and event e at time t_e with neighbour j:
        query W_q [h_v(t), Φ(0)]        key and value W [h_j(t_e), f_e, Φ(t − t_e)]
        h'_v = norm(h_v + a + MLP [a, x_v])        a: the attention's output, x_v: the learned id embedding of v

Layer 0 is x. Layer 2 needs a neighbour's layer 1 at the time of their common event, which is the same for every later
query: it is computed once per event, for user and item, and stored beside the neighbour's id. So two layers cost 4 L
per event, not L². In training, layer-1 vectors stored before the window are used without gradient.

Differences from the paper:
- ω starts from 1 down to 1e-9 per second. Its gradient is proportional to Δ, millions of seconds, and would dominate
  all others where gradients are clipped, so it is the logarithm of ω that is learned, with a gradient scaled down.
- The most recent L neighbours are used, not a uniform sample.
- x is learned, and 0 for entities not seen in training: the logs have no features of users and items. Item categories
  are not used.
- A user's layer 1 is that just before an event, an item's that just after.
- The query vector is a linear map of the user's layer 2 at the time of the query. A candidate is the item's layer 2
  at the item's own last event, with a time encoding of its age at the time of the query (candidate_age.py), x and a
  bias, so that all items are scored by one product. Layer 2 of all items anew for each event would take I L times as
  long.

Memory: (U + I) L (d + F) numbers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dynedge.config import MAX_WIDTH, option
from dynedge.data.log import EventLog
from dynedge.errors import UsageError
from dynedge.models.base import LogShape, State, seeded
from dynedge.models.baselines.dynamic.candidate_age import CandidateAge
from dynedge.models.baselines.dynamic.neighbour_base import NeighbourIndex, NeighbourModel, history_after, item_arena
from dynedge.models.capabilities import HasVectors
from dynedge.models.dynamic_base import Forward
from dynedge.models.entity_rows import Rows
from dynedge.models.ring_buffer import SIDES, History, RingIndex
from dynedge.models.window_index import WindowIndex
from dynedge.ops.gather_linear import gather_linear

BATCH = 8192  # vectors computed at once
GRADIENT_SCALE = 1e-3  # of the gradient of a frequency's logarithm


@dataclass(frozen=True)
class TGATConfig:
    """Settings of TGAT."""

    dim: int = option(64, "Width of vectors.", least=1, most=MAX_WIDTH)
    time_dim: int = option(16, "Width of the time encoding.", least=1, most=MAX_WIDTH)
    windows: int = option(150, "Number of windows (training steps) per epoch.", least=1)
    neighbours: int = option(20, "Number of most recent neighbours attended to.", least=1)
    heads: int = option(2, "Number of attention heads, a divisor of dim.", least=1)
    learn_frequencies: bool = option(True, "Learned frequencies of the time encoding; false: fixed ones.")
    candidate_age: bool = option(True, "Candidates scored also by the time since their last event.")
    negatives: int = option(512, "Number of negative samples, shared by a chunk of events.", least=1)
    full_softmax_up_to: int = option(4096, "Largest number of items for a softmax over all items.", least=0)
    dropout: float = option(0.3, "Dropout rate of the query vector.", least=0, most=1)


SEARCH = {
    "training.lr": (3e-4, 1e-3, 3e-3),
    "training.row_lr": (1e-3, 3e-3, 1e-2),
    "model.neighbours": (5, 10, 20),
    "model.windows": (150, 300, 600),
    "model.dropout": (0.1, 0.3, 0.5),
    "model.learn_frequencies": (True, False),
    "model.candidate_age": (True, False),
}


class TimeEncoding(nn.Module):
    """Φ(Δ) = cos(ω Δ + φ)."""

    initial: Tensor  # ω [T] before training

    def __init__(self, width: int, learned: bool = True) -> None:
        super().__init__()
        self.register_buffer("initial", torch.logspace(0, -9, width))
        self.log_factor = nn.Parameter(torch.zeros(width), requires_grad=learned)
        self.phase = nn.Parameter(torch.zeros(width))

    def forward(self, seconds: Tensor) -> Tensor:
        """Time encodings [.., T] of seconds float64[..]."""
        factor = self.log_factor * GRADIENT_SCALE + (self.log_factor * (1 - GRADIENT_SCALE)).detach()
        frequency = self.initial * factor.exp()
        return torch.cos(seconds.clamp_min(0).to(frequency)[..., None] * frequency + self.phase)


class Attention(nn.Module):
    """One attention layer of one side; the config has dim, time_dim and heads."""

    def __init__(self, config: Any, features: int) -> None:
        super().__init__()
        d, width = config.dim, config.dim + features + config.time_dim
        self.heads = config.heads
        self.query, self.key_value = nn.Linear(d + config.time_dim, d), nn.Linear(width, 2 * d)
        self.merge, self.out, self.norm = nn.Linear(2 * d, d), nn.Linear(d, d), nn.LayerNorm(d)

    def forward(
        self, h: Tensor, x: Tensor, phi_zero: Tensor, neighbours: list[Tensor], phi: Tensor, mask: Tensor
    ) -> Tensor:
        """[q, d], from h_v and x_v [q, d], Φ(0) [q, T], parts of the neighbours' h and f [q, L, ..], Φ [q, L, T]."""
        (count, length), width = mask.shape, h.shape[1] // self.heads
        parts = [(part.flatten(0, 1).contiguous(), None) for part in (*neighbours, phi)]
        key_value = gather_linear(parts, self.key_value.weight, self.key_value.bias)
        key_value = key_value.view(count, length, 2, self.heads, width)
        query = gather_linear([(h, None), (phi_zero, None)], self.query.weight, self.query.bias)
        logits = (key_value[:, :, 0] * query.view(count, 1, self.heads, width)).sum(3) * width**-0.5
        logits = logits.masked_fill(~mask[..., None], torch.finfo(logits.dtype).min)
        weight = logits.softmax(1) * mask[..., None]  # without neighbours the output is 0
        attended = (weight[..., None] * key_value[:, :, 1]).sum(1).flatten(1)
        merged = gather_linear([(attended, None), (x, None)], self.merge.weight, self.merge.bias, relu=True)
        output = h + attended + gather_linear([(merged, None)], self.out.weight, self.out.bias)
        normalized: Tensor = self.norm(output)
        return normalized


class TGAT(NeighbourModel, HasVectors):
    def __init__(self, config: TGATConfig, shape: LogShape) -> None:
        if config.dim % config.heads:
            raise UsageError(f"--heads {config.heads} should divide --dim {config.dim}.")
        super().__init__(config, shape)
        d = config.dim
        age_columns = 2 * config.time_dim if config.candidate_age else 0
        sizes = (shape.users, d), (shape.items, d + age_columns + 1)  # the last column: biases of candidates
        self.x = nn.ParameterList(nn.Parameter(torch.zeros(size)) for size in sizes)
        self.time_encoding = TimeEncoding(config.time_dim, config.learn_frequencies)
        self.age = CandidateAge(d, config.time_dim) if config.candidate_age else None
        self.first, self.second = (nn.ModuleList(Attention(config, shape.features) for _ in SIDES) for _ in range(2))
        self.query_out = nn.Linear(d, 2 * d)

    def entity_rows(self) -> dict[str, Rows]:
        return {"x.0": Rows(users=True), "x.1": Rows(items=True)}

    @classmethod
    def create(cls, config: TGATConfig, log: EventLog, train_end: int, seed: int) -> Self:
        with seeded(seed):
            model = cls(config, LogShape.of(log))
            for table, ids in zip(model.x, (log.user, log.item), strict=True):
                seen = np.unique(ids[:train_end])
                table.data[seen, : config.dim] = 0.1 * torch.randn(len(seen), config.dim)
        return model

    @property
    def candidate_ids(self) -> Tensor:
        return self.x[1]

    def start(self) -> State:
        """Ring buffers, and `*_neighbours` [.., L, d + F]: the neighbours' layer 1 and the events' features."""
        state, width = super().start(), self.config.dim + self.shape.features
        for name, count in zip(SIDES, (self.shape.users, self.shape.items), strict=True):
            state[f"{name}_neighbours"] = self.like.new_zeros(count, self.config.neighbours, width)
        return state

    # ---- layers

    def _time_encodings(self, time: Tensor, history: History) -> tuple[Tensor, Tensor]:
        """Φ(0), and Φ of the time since each event of the history."""
        return self.time_encoding(torch.zeros_like(time)), self.time_encoding(time[:, None] - history.time)

    def _id_embeddings(self, side: int, ids: Tensor) -> Tensor:
        """x [.., d]"""
        return F.embedding(ids, self.x[side], sparse=True)[..., : self.config.dim]

    def _layer1(self, side: int, entity: Tensor, time: Tensor, history: History, features: Tensor) -> Tensor:
        """h [q, d] of the first layer; features [q, L, F] are those of the history's events."""
        x, (phi_zero, phi) = self._id_embeddings(side, entity), self._time_encodings(time, history)
        partners = self._id_embeddings(1 - side, history.partner.clamp_min(0))
        layer: Tensor = self.first[side](x, x, phi_zero, [partners, features], phi, history.partner >= 0)
        return layer

    def _layer2(
        self, side: int, h: Tensor, entity: Tensor, time: Tensor, history: History, neighbours: Tensor
    ) -> Tensor:
        """h [q, d] of the second layer; neighbours [q, L, d + F]: their first layer, and the events' features."""
        x, (phi_zero, phi) = self._id_embeddings(side, entity), self._time_encodings(time, history)
        layer: Tensor = self.second[side](h, x, phi_zero, [neighbours], phi, history.partner >= 0)
        return layer

    def _layer2_now(self, side: int, entities: Tensor, time: Tensor | None, state: State) -> Tensor:
        """[q, d]: entities in this state, at a time; None: at the time of their own last event."""
        history, vectors = self.current_history(side, entities, state), []
        _, slot = self.ring_buffers[side].slots(entities, torch.zeros_like(entities), state)
        time = history.time[:, 0] if time is None else time.to(history.time)
        for start in range(0, len(entities), BATCH):
            rows = slice(start, start + BATCH)
            neighbours = state[f"{SIDES[side]}_neighbours"][entities[rows, None], slot[rows]]
            inputs = entities[rows], time[rows], History(history.partner[rows], history.time[rows])
            layer1 = self._layer1(side, *inputs, neighbours[..., self.config.dim :])
            vectors.append(self._layer2(side, layer1, *inputs, neighbours))
        return torch.cat(vectors) if vectors else self.like.new_zeros(0, self.config.dim)

    # ---- a window

    def forward_window(self, index: WindowIndex, state: State) -> Forward:
        """`extra`: for users and for items [n, d + F], the neighbour's first layer and the event's features."""
        assert isinstance(index, NeighbourIndex)
        (user_ring, item_ring), d = index.rings, self.config.dim
        user, item, time, features = index.user, index.item, index.time, index.features.to(self.like)
        user_history, item_history = self.histories_before(index, state)
        item_history = history_after(item_history, item_ring)
        stored = [self._stored_neighbours(side, ring, state) for side, ring in enumerate(index.rings)]
        history_features = [
            _before_events(ring, features, old[..., d:]) for ring, old in zip(index.rings, stored, strict=True)
        ]
        user1 = self._layer1(0, user, time, user_history, history_features[0])
        item1 = self._layer1(1, item, time, item_history, _after_events(features, history_features[1]))
        for_user, for_item = torch.cat([item1, features], 1), torch.cat([user1, features], 1)
        user2 = self._layer2(0, user1, user, time, user_history, _before_events(user_ring, for_user, stored[0]))
        item_neighbours = _after_events(for_item, _before_events(item_ring, for_item, stored[1]))
        item2 = self._layer2(1, item1, item, time, item_history, item_neighbours)
        initial, updated = self.item_vectors(index.roots[1], state), self._with_age(item2, time)
        return Forward(self._query_of(user2, time), item_arena(index, initial, updated), (for_user, for_item))

    def _stored_neighbours(self, side: int, ring: RingIndex, state: State) -> Tensor:
        """[n, L, d + F]: those of events before the window."""
        _, slot = self.ring_buffers[side].slots(ring.entity, ring.num_before, state)
        return state[f"{SIDES[side]}_neighbours"][ring.entity[:, None], slot]

    def _with_age(self, vectors: Tensor, last: Tensor) -> Tensor:
        """Vectors of items with the columns of their age, from the times of their last events."""
        return vectors if self.age is None else torch.cat([vectors, self.age.item_columns(last)], 1)

    def _query_of(self, user: Tensor, time: Tensor) -> Tensor:
        query = gather_linear([(user, None)], self.query_out.weight, self.query_out.bias) * self.config.dim**-0.5
        query = F.dropout(query, self.config.dropout, self.training)
        return query if self.age is None else self.age.query(query, user, time)

    def query(self, users: Tensor, times: Tensor, state: State) -> Tensor:
        return self._query_of(self._layer2_now(0, users, times, state), times.double())

    def item_vectors(self, items: Tensor, state: State) -> Tensor:
        last = self.current_history(1, items, state).time[:, 0]
        return self._with_age(self._layer2_now(1, items, None, state), last)

    def vectors(self, state: State) -> tuple[Tensor, Tensor]:
        """Layer 2 of every user and item at the time of its last event."""
        users, items = self.arange(self.shape.users), self.arange(self.shape.items)
        return self._layer2_now(0, users, None, state), self._layer2_now(1, items, None, state)

    @torch.no_grad()
    def advance(self, index: WindowIndex, forward: Forward, state: State) -> None:
        assert isinstance(index, NeighbourIndex)
        for side, ring in enumerate(index.rings):
            positions = self.ring_buffers[side].write_positions(ring, state)
            state[f"{SIDES[side]}_neighbours"][positions] = forward.extra[side][ring.surviving]
        super().advance(index, forward, state)


def _before_events(ring: RingIndex, window_rows: Tensor, stored: Tensor) -> Tensor:
    """[n, L, w]: for the histories before the events, from the window's rows [n, w] or the stored ones [n, L, w]."""
    return torch.where((ring.in_window >= 0)[..., None], window_rows[ring.in_window.clamp_min(0)], stored)


def _after_events(newest: Tensor, before: Tensor) -> Tensor:
    """[n, L, w]: for the histories after the events."""
    return torch.cat([newest[:, None], before[:, :-1]], 1)
