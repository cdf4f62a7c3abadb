"""GCMC (van den Berg, Kipf, Welling 2017) and two variants: a graph encoder of both sides and a bilinear decoder.

Legend: q entities, L neighbours stored, d width of a vector, H heads; v an entity of one side, j its neighbours of
the other side, N_v the set of them; x learned id embeddings.

    gcmc        h_v = relu(Σ_j m_j / √|N_v|)                       messages m = W x, for one-hot x a table
    gcmc-sage   h_v = relu(W [x_v, mean of x_j])                   GraphSAGE: in training, of sampled neighbours
    gcmc-gat    h_v = elu(Σ_j a_vj V x_j), v itself among j        a = softmax of leaky relu(s · V x_v + r · V x_j)
    all         z_v = W' h_v,        score of item i for user u = z_u · Q · z_i

Differences from the paper:
- There is one kind of interaction and no ratings, so the loss is not over ratings but −log softmax of the true item's
  score among sampled items (ten in the EDGE paper; here `negatives`, and all items where they are few).
- The graph consists of past events only, in training too: the pair to be predicted is not yet in it. After training
  it keeps growing, without learning.
- Only the last L events of each entity are stored, repeated neighbours as often as they occurred: memory is bounded,
  and a vector is computed from the current x whenever it is needed.
- Symmetric normalization is 1/√(|N_v| |N_j|); the second factor is left to the norm of m_j.
- GraphSAGE samples from the stored neighbours; outside of training all of them are averaged, which a sample's mean
  estimates.
- Ids not seen in training have x = 0. In `gcmc`, whose vectors consist of neighbours alone, they are not stored as
  neighbours: they carry no information and would displace neighbours that do.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Self

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dynedge.config import MAX_WIDTH, option
from dynedge.data.log import EventLog
from dynedge.data.windows import Window
from dynedge.errors import UsageError
from dynedge.models.base import LogShape, State
from dynedge.models.baselines.dynamic.neighbour_base import NeighbourIndex, NeighbourModel, history_after, item_arena
from dynedge.models.capabilities import HasVectors
from dynedge.models.dynamic_base import Forward
from dynedge.models.entity_rows import Rows
from dynedge.models.ring_buffer import NONE
from dynedge.models.window_index import WindowIndex
from dynedge.ops.gather_linear import gather_linear
from dynedge.utils.array_type import Array


@dataclass(frozen=True)
class GCMCConfig:
    """Settings of GCMC and its variants, which differ in the encoder."""

    encoder: str = option("convolution", "Aggregation of neighbours.", choices=("convolution", "sage", "gat"))
    dim: int = option(64, "Width of vectors.", least=1, most=MAX_WIDTH)
    windows: int = option(300, "Number of windows (training steps) per epoch.", least=1)
    neighbours: int = option(50, "Number of most recent neighbours stored per user and item.", least=1)
    sampled_neighbours: int = option(10, "Number of neighbours sampled in training (sage only).", least=1)
    heads: int = option(4, "Number of attention heads, a divisor of dim (gat only).", least=1)
    negatives: int = option(512, "Number of negative samples, shared by a chunk of events.", least=1)
    full_softmax_up_to: int = option(4096, "Largest number of items for a softmax over all items.", least=0)
    dropout: float = option(0.3, "Dropout rate of the encoder's output.", least=0, most=1)


RECIPES = {
    "gcmc": GCMCConfig(),
    "gcmc-sage": GCMCConfig(encoder="sage"),
    "gcmc-gat": GCMCConfig(encoder="gat", neighbours=20),
}


# User and item tables have dense gradients, so `row_lr` does not apply to them.
SEARCH = {
    "model.neighbours": (5, 10, 20, 50),
    "model.windows": (150, 300, 600),
    "model.dropout": (0.0, 0.1, 0.3, 0.5),
    "model.negatives": (10, 64, 512),
    "training.lr": (3e-4, 1e-3, 3e-3, 1e-2),
}


# An encoder maps entities int64[q], the tables x of their side and of the other one, and their neighbours int64[q, L]
# to h [q, d].


class Convolution(nn.Module):
    """Σ_j m_j / √|N_v|"""

    def __init__(self, config: GCMCConfig) -> None:
        super().__init__()

    def forward(self, entity: Tensor, tables: tuple[Tensor, Tensor], neighbours: Tensor) -> Tensor:
        count = (neighbours >= 0).sum(1, keepdim=True).clamp_min(1)
        return F.relu(_sum_rows(tables[1], neighbours) / count.sqrt())


class Sage(nn.Module):
    """W [x_v, mean of x_j]"""

    def __init__(self, config: GCMCConfig) -> None:
        super().__init__()
        self.sampled, self.combine = config.sampled_neighbours, nn.Linear(2 * config.dim, config.dim)

    def forward(self, entity: Tensor, tables: tuple[Tensor, Tensor], neighbours: Tensor) -> Tensor:
        count = (neighbours >= 0).sum(1, keepdim=True)
        if self.training:
            random = torch.rand(len(neighbours), self.sampled, device=neighbours.device)
            neighbours = neighbours.gather(1, (random * count).long().clamp_max_(neighbours.shape[1] - 1))
            count = (neighbours >= 0).sum(1, keepdim=True)
        mean = _sum_rows(tables[1], neighbours) / count.clamp_min(1)
        parts = [(F.embedding(entity, tables[0]), None), (mean, None)]
        return gather_linear(parts, self.combine.weight, self.combine.bias, relu=True)


class Gat(nn.Module):
    """Σ_j a_vj V x_j, head by head"""

    def __init__(self, config: GCMCConfig) -> None:
        super().__init__()
        if config.dim % config.heads:
            raise UsageError(f"--heads {config.heads} should divide --dim {config.dim}.")
        self.heads, width = config.heads, config.dim // config.heads
        self.transform = nn.ModuleList(nn.Linear(config.dim, config.dim, bias=False) for _ in range(2))
        self.attention = nn.Parameter(torch.randn(2, config.heads, width) * width**-0.5)

    def forward(self, entity: Tensor, tables: tuple[Tensor, Tensor], neighbours: Tensor) -> Tensor:
        transformed = (transform(table) for transform, table in zip(self.transform, tables, strict=True))
        own, other = (table.unflatten(1, (self.heads, -1)) for table in transformed)  # [.., H, d / H]
        target = (own * self.attention[0]).sum(2)[entity]  # [q, H]
        sources = (other * self.attention[1]).sum(2)  # [N, H]
        self_source = (own * self.attention[1]).sum(2)[entity]
        padding, rows = (neighbours < 0)[..., None], neighbours.clamp_min(0)
        logits = torch.cat([self_source[:, None], sources[rows].masked_fill(padding, -torch.inf)], 1)
        weight = F.leaky_relu(target[:, None] + logits, 0.2).softmax(1)  # [q, 1 + L, H]
        sums = [
            F.embedding_bag(rows, x.contiguous(), mode="sum", per_sample_weights=a.contiguous())
            for x, a in zip(other.unbind(1), weight[:, 1:].unbind(2), strict=True)
        ]
        return F.elu(weight[:, 0, :, None] * own[entity] + torch.stack(sums, 1)).flatten(1)


ENCODERS: dict[str, type[nn.Module]] = {"convolution": Convolution, "sage": Sage, "gat": Gat}


def _sum_rows(table: Tensor, rows: Tensor) -> Tensor:
    """[q, d]: the sums of the table's rows int64[q, L]; NONE adds nothing."""
    return F.embedding_bag(rows.clamp_min(0), table, mode="sum", per_sample_weights=(rows != NONE).to(table))


class GCMC(NeighbourModel, HasVectors):
    def __init__(self, config: GCMCConfig, shape: LogShape) -> None:
        super().__init__(config, shape)
        d = config.dim
        self.x = nn.ParameterList(nn.Parameter(0.1 * torch.randn(count, d)) for count in (shape.users, shape.items))
        self.encoders = nn.ModuleList(ENCODERS[config.encoder](config) for _ in range(2))
        self.dense = nn.Linear(d, d)
        self.decoder = nn.Parameter(torch.eye(d))

    def entity_rows(self) -> dict[str, Rows]:
        return {"x.0": Rows(users=True), "x.1": Rows(items=True)}

    @classmethod
    def create(cls, config: GCMCConfig, log: EventLog, train_end: int, seed: int) -> Self:
        model = super().create(config, log, train_end, seed)
        for table, ids in zip(model.x, (log.user, log.item), strict=True):
            unseen = np.bincount(ids[:train_end], minlength=len(table)) == 0
            table.data[torch.from_numpy(unseen)] = 0.0
        return model

    @cached_property
    def _seen(self) -> list[Array]:
        """bool[U], bool[I]: the entities seen in training."""
        return [(x.detach() != 0).any(1).cpu().numpy() for x in self.x]

    def continued_batch(self, window: Window, state: State) -> NeighbourIndex:
        """Entities that training has not seen get an embedding."""
        generator = torch.Generator().manual_seed(window.events.start)
        for table, seen, ids in zip(self.x, self._seen, (window.user, window.item), strict=True):
            new = np.unique(ids[~seen[ids]])
            table.data[new] = 0.1 * torch.randn(len(new), table.shape[1], generator=generator).to(table)
            seen[new] = True
        return self.prepare(window)

    def stored_events(self, side: int, window: Window) -> Array | None:
        if self.config.encoder != "convolution":
            return None
        return self._seen[1 - side][window.user if side else window.item]

    def _vectors(self, side: int, entities: Tensor, neighbours: Tensor) -> Tensor:
        """z [q, d]"""
        hidden = self.encoders[side](entities, (self.x[side], self.x[1 - side]), neighbours)
        hidden = F.dropout(hidden, self.config.dropout, self.training)
        return gather_linear([(hidden, None)], self.dense.weight, self.dense.bias)

    def _query_of(self, users: Tensor, neighbours: Tensor) -> Tensor:
        no_bias = torch.zeros_like(self.decoder[0])
        return gather_linear([(self._vectors(0, users, neighbours), None)], self.decoder, no_bias)

    def forward_window(self, index: WindowIndex, state: State) -> Forward:
        user_history, item_history = self.histories_before(index, state)
        assert isinstance(index, NeighbourIndex)
        updated = self._vectors(1, index.item, history_after(item_history, index.rings[1]).partner)
        initial = self.item_vectors(index.roots[1], state)
        return Forward(self._query_of(index.user, user_history.partner), item_arena(index, initial, updated))

    def query(self, users: Tensor, times: Tensor, state: State) -> Tensor:
        return self._query_of(users, self.current_history(0, users, state).partner)

    def item_vectors(self, items: Tensor, state: State) -> Tensor:
        return self._vectors(1, items, self.current_history(1, items, state).partner)

    def vectors(self, state: State) -> tuple[Tensor, Tensor]:
        users, items = self.arange(self.shape.users), self.arange(self.shape.items)
        return self._vectors(0, users, self.current_history(0, users, state).partner), self.item_vectors(items, state)
