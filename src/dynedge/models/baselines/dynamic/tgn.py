"""TGN (Rossi, Chamberlain, Frasca, Eynard, Monti, Bronstein 2020): a memory per entity, attention over neighbours.

Legend: n events of a window, q queries, L neighbours stored, d width of a vector, T width of a time encoding, R rows
of the arena; s the memory of an entity, x its learned id embedding, Φ a time encoding (tgat.py), Δ the time since its
previous event.

    an event of u and i:  s'_u = GRU(message [s_i, f, Φ(Δ_u)], s_u)        s'_i = GRU(message [s_u, f, Φ(Δ_i)], s_i)
    embedding of u at t:  attention with the query [s_u + x_u, Φ(0)] over the last items j, [s_j + x_j, Φ(t − t_j)]

Differences from the paper:
- Every event updates both memories before the next event reads them, by the levels of the window's schedule. The
  paper updates them once per batch, so that its result depends on the batch size.
- Neighbours are read with their memory just before the query; the features of an event reach the memory only.
- A candidate is its memory, with a time encoding of its age (candidate_age.py), its id embedding and a bias, so that
  all items are scored by one product. The paper computes an embedding of each candidate and an MLP of each pair.
- x is learned, and 0 for entities not seen in training. Memories start at a learned vector, not at 0.
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
from dynedge.data.windows import Window
from dynedge.errors import UsageError
from dynedge.models.base import LogShape, State, seeded
from dynedge.models.baselines.dynamic.candidate_age import CandidateAge
from dynedge.models.baselines.dynamic.tgat import Attention, TimeEncoding
from dynedge.models.candidate_states import rows_before
from dynedge.models.coevolving_base import ENTITY_TENSORS, NEVER, CoevolvingModel
from dynedge.models.dynamic_base import Forward
from dynedge.models.entity_rows import Rows
from dynedge.models.ring_buffer import History, RingBuffers, RingIndex
from dynedge.models.state_checks import check_names
from dynedge.models.window_index import WindowIndex
from dynedge.ops.gather_linear import gather_linear, gather_rows
from dynedge.ops.level_gru import level_gru
from dynedge.ops.read_states import read_states


@dataclass(frozen=True)
class TGNConfig:
    """Settings of TGN."""

    dim: int = option(64, "Width of memories and embeddings.", least=1, most=MAX_WIDTH)
    time_dim: int = option(16, "Width of the time encoding.", least=1, most=MAX_WIDTH)
    windows: int = option(300, "Number of windows (training steps) per epoch.", least=1)
    neighbours: int = option(10, "Number of most recent neighbours attended to.", least=1)
    heads: int = option(2, "Number of attention heads, a divisor of dim.", least=1)
    negatives: int = option(512, "Number of negative samples, shared by a chunk of events.", least=1)
    full_softmax_up_to: int = option(4096, "Largest number of items for a softmax over all items.", least=0)
    dropout: float = option(0.3, "Dropout rate of the query vector.", least=0, most=1)


SEARCH = {
    "training.lr": (3e-4, 1e-3, 3e-3),
    "training.row_lr": (1e-3, 3e-3, 1e-2),
    "model.neighbours": (5, 10, 20),
    "model.windows": (150, 300, 600),
    "model.dropout": (0.1, 0.3, 0.5),
}


@dataclass(frozen=True, eq=False)
class TGNIndex(WindowIndex):
    """A window, indexed also for the ring buffers of users."""

    ring: RingIndex


class TGN(CoevolvingModel):
    def __init__(self, config: TGNConfig, shape: LogShape) -> None:
        if config.dim % config.heads:
            raise UsageError(f"--heads {config.heads} should divide --dim {config.dim}.")
        super().__init__(config, shape)
        d, width, bound = config.dim, shape.features + config.time_dim, config.dim**-0.5

        def uniform(*size: int) -> nn.Parameter:
            return nn.Parameter(torch.empty(size).uniform_(-bound, bound))

        self.ring_buffers = RingBuffers(0, shape.users, config.neighbours)
        self.xi = nn.Parameter(0.1 * torch.randn(2, d))
        self.own, self.other, self.feature = uniform(2, 3 * d, d), uniform(2, 3 * d, d), uniform(2, 3 * d, width)
        self.bias, self.own_bias = uniform(2, 3 * d), uniform(2, 3 * d)
        self.time_encoding = TimeEncoding(config.time_dim)
        self.attention = Attention(config, 0)
        self.age = CandidateAge(d, config.time_dim)
        self.query_out = nn.Linear(d, 2 * d)
        sizes = (shape.users, d), (shape.items, d + 2 * config.time_dim + 1)  # the last column: biases of candidates
        self.x = nn.ParameterList(nn.Parameter(torch.zeros(size)) for size in sizes)
        self.add_learned_vectors(np.zeros(shape.users, bool), np.zeros(shape.items, bool), d)

    @classmethod
    def create(cls, config: TGNConfig, log: EventLog, train_end: int, seed: int) -> Self:
        with seeded(seed):
            model = cls(config, LogShape.of(log))
            for table, ids in zip(model.x, (log.user, log.item), strict=True):
                seen = np.unique(ids[:train_end])
                table.data[seen, : config.dim] = 0.1 * torch.randn(len(seen), config.dim)
        return model

    def entity_rows(self) -> dict[str, Rows]:
        return super().entity_rows() | {"x.0": Rows(users=True), "x.1": Rows(items=True)}

    @property
    def candidate_ids(self) -> Tensor:
        return self.x[1]

    def start(self) -> State:
        return State(super().start() | self.ring_buffers.start(self.xi.device))

    def check_state(self, state: State) -> None:
        check_names(state, (*ENTITY_TENSORS, *self.ring_buffers.start(torch.device("cpu"))))
        self.check_entities(state)
        self.ring_buffers.check(state, self.shape.items)

    def prepare(self, window: Window) -> TGNIndex:
        ring = self.ring_buffers.index(window, self.xi.device)
        return TGNIndex(**vars(super().prepare(window)), ring=ring)

    # ---- memory

    def _evolve(self, index: WindowIndex, state: State) -> Tensor:
        """The arena of a window [R, d]: the memories at its start, then those that its events write."""
        inputs = []
        for side, previous in enumerate(self.previous_times(index, state)):
            gap = self.time_encoding(index.time - previous) * (previous >= 0)[:, None]
            parts = [(index.features.to(self.xi), None), (gap.to(self.xi), None)]
            inputs.append(gather_linear(parts, self.feature[side], self.bias[side]))
        roots = read_states([(self.entity_table(side, state), index.roots[side]) for side in (0, 1)])
        written = gather_rows(torch.stack(inputs, 1).flatten(0, 1), index.place)
        return torch.cat([roots, level_gru(roots, written, self.own, self.other, self.own_bias, index.schedule)])

    def _item_times(self, index: WindowIndex, state: State) -> Tensor:
        """float64[R]: the time of the last event of each row of the arena, for rows of items."""
        users, items = index.roots[:2]
        before = torch.full((len(users),), NEVER, dtype=torch.float64, device=self.xi.device)
        return torch.cat([before, state["item_time"][items], index.time[index.place // 2]])

    # ---- embedding

    def _query_of(self, users: Tensor, memory: Tensor, time: Tensor, history: History, neighbours: Tensor) -> Tensor:
        """[q, 2d + 2T], from the users' memories [q, d] and those of their neighbours [q, L, d]."""
        d = self.config.dim
        own = memory + F.embedding(users, self.x[0], sparse=True)
        ids = F.embedding(history.partner.clamp_min(0), self.x[1], sparse=True)[..., :d]
        phi_zero, phi = self.time_encoding(torch.zeros_like(time)), self.time_encoding(time[:, None] - history.time)
        embedding = self.attention(own, own, phi_zero, [neighbours + ids], phi, history.partner >= 0)
        query = gather_linear([(embedding, None)], self.query_out.weight, self.query_out.bias) * d**-0.5
        query = F.dropout(query, self.config.dropout, self.training)
        return self.age.query(query, embedding, time)

    def forward_window(self, index: WindowIndex, state: State) -> Forward:
        assert isinstance(index, TGNIndex)
        arena, history = self._evolve(index, state), self.ring_buffers.history_before(index.ring, state)
        partners = history.partner.clamp_min(0)
        row = rows_before(index, partners, self.arange(len(partners)))
        stored = self.entity_states(1, partners.flatten(), state).view(*partners.shape, self.config.dim)
        neighbours = torch.where((row >= 0)[..., None], arena[row.clamp_min(0)], stored)
        query = self._query_of(index.user, arena[index.reads[0]], index.time, history, neighbours)
        return Forward(query, torch.cat([arena, self.age.item_columns(self._item_times(index, state))], 1))

    def query(self, users: Tensor, times: Tensor, state: State) -> Tensor:
        history = self.ring_buffers.current_history(users, state)
        partners = history.partner.clamp_min(0)
        neighbours = self.entity_states(1, partners.flatten(), state).view(*partners.shape, self.config.dim)
        return self._query_of(users, self.entity_states(0, users, state), times.double(), history, neighbours)

    def item_vectors(self, items: Tensor, state: State) -> Tensor:
        return torch.cat([super().item_vectors(items, state), self.age.item_columns(state["item_time"][items])], 1)

    def advance(self, index: WindowIndex, forward: Forward, state: State) -> None:
        assert isinstance(index, TGNIndex)
        super().advance(index, forward._replace(arena=forward.arena[:, : self.config.dim]), state)
        self.ring_buffers.advance(index.ring, state)
