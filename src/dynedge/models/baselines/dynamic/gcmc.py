"""GCMC (van den Berg, Kipf, Welling 2017) and two variants: a graph encoder for both sides, a bilinear decoder.

Legend: q entities, L neighbours kept, d width of a vector, H heads. An entity v of one side met the entities j of the
other; x are learned vectors of ids.

    gcmc        h_v = relu(Σ_j m_j / √|N_v|)                       messages m = W x, of one-hot x a table
    gcmc-sage   h_v = relu(W [x_v, mean of x_j])                   GraphSAGE: in training a sample of the neighbours
    gcmc-gat    h_v = elu(Σ_j a_vj V x_j), v itself among j        a = softmax of leaky relu(s · V x_v + r · V x_j)
    all         z_v = W' h_v,        score of item i for user u = z_u · Q · z_i

Ratings are one kind of meeting here, so the loss is not over ratings but −log softmax of the true item's score among
drawn ones (EDGE's paper: ten; here as many as `negatives` says, and all where items are few).

The graph is what has happened so far, in training too: the pair that is to be predicted is not yet in it. It goes on
growing after training, without learning. Of each entity the last L meetings are kept, repeats as often as they came:
memory is bounded, and a vector is made from the current x whenever it is asked for. Symmetric normalisation is
1/√(|N_v| |N_j|); the second factor is left to the length of m_j. A sample is drawn from the kept neighbours; outside
of training all of them are averaged, which a sample's mean estimates. Ids that training does not meet start at x = 0.
In `gcmc`, whose vectors are made of neighbours alone, they are nobody's neighbours: they would say nothing, and push
out those who do.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Self

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dynedge.config import option
from dynedge.data.log import EventLog
from dynedge.data.windows import Window
from dynedge.errors import UsageError
from dynedge.models.base import LogShape, State
from dynedge.models.baselines.dynamic.neighbours import NeighbourIndex, NeighbourModel, after, arena
from dynedge.models.capabilities import HasVectors
from dynedge.models.dynamic import Forward
from dynedge.models.ring_buffer import NONE
from dynedge.models.window_index import WindowIndex
from dynedge.ops.gather_linear import gather_linear
from dynedge.utils.arrays import Array


@dataclass(frozen=True)
class GCMCConfig:
    """GCMC; the encoder makes the variant."""

    encoder: str = option("convolution", "how neighbours are put together", choices=("convolution", "sage", "gat"))
    dim: int = option(64, "width of vectors", least=1)
    windows: int = option(300, "training windows an epoch is cut into", least=1)
    neighbours: int = option(50, "meetings kept of each user and item", least=1)
    sampled: int = option(10, "of them drawn in training (sage)", least=1)
    heads: int = option(4, "of the attention (gat); they divide dim", least=1)
    negatives: int = option(512, "items drawn for each chunk of events, beside the true ones", least=1)
    full_softmax_up_to: int = option(4096, "with no more items than this, all are candidates", least=0)
    dropout: float = option(0.3, "share of h that training leaves out, at random", least=0)


RECIPES = {
    "gcmc": GCMCConfig(),
    "gcmc-sage": GCMCConfig(encoder="sage"),
    "gcmc-gat": GCMCConfig(encoder="gat", neighbours=20),
}


# Item and user tables are learned densely: only `lr` moves them.
SEARCH = {
    "model.neighbours": (5, 10, 20, 50),
    "model.windows": (150, 300, 600),
    "model.dropout": (0.0, 0.1, 0.3, 0.5),
    "model.negatives": (10, 64, 512),
    "training.lr": (3e-4, 1e-3, 3e-3, 1e-2),
}


class Convolution(nn.Module):
    """Σ_j m_j / √|N_v|"""

    def __init__(self, config: GCMCConfig) -> None:
        super().__init__()

    def forward(self, own: Tensor, tables: tuple[Tensor, Tensor], partner: Tensor) -> Tensor:
        count = (partner >= 0).sum(1, keepdim=True).clamp_min(1)
        return F.relu(_sums(tables[1], partner) / count.sqrt())


class Sage(nn.Module):
    """W [x_v, mean of x_j]"""

    def __init__(self, config: GCMCConfig) -> None:
        super().__init__()
        self.sampled, self.join = config.sampled, nn.Linear(2 * config.dim, config.dim)

    def forward(self, own: Tensor, tables: tuple[Tensor, Tensor], partner: Tensor) -> Tensor:
        count = (partner >= 0).sum(1, keepdim=True)
        if self.training:
            draw = torch.rand(len(partner), self.sampled, device=partner.device)
            partner = partner.gather(1, (draw * count).long().clamp_max_(partner.shape[1] - 1))
            count = (partner >= 0).sum(1, keepdim=True)
        mean = _sums(tables[1], partner) / count.clamp_min(1)
        parts = [(F.embedding(own, tables[0]), None), (mean, None)]
        return gather_linear(parts, self.join.weight, self.join.bias, relu=True)


class Gat(nn.Module):
    """Σ_j a_vj V x_j, head by head"""

    def __init__(self, config: GCMCConfig) -> None:
        super().__init__()
        if config.dim % config.heads:
            raise UsageError(f"gcmc-gat: {config.heads} heads do not divide a width of {config.dim}; change one.")
        self.heads, width = config.heads, config.dim // config.heads
        self.turn = nn.ModuleList(nn.Linear(config.dim, config.dim, bias=False) for _ in range(2))
        self.pull = nn.Parameter(torch.randn(2, config.heads, width) * width**-0.5)

    def forward(self, own: Tensor, tables: tuple[Tensor, Tensor], partner: Tensor) -> Tensor:
        turned = (turn(table) for turn, table in zip(self.turn, tables, strict=True))
        mine, theirs = (table.unflatten(1, (self.heads, -1)) for table in turned)  # [.., H, d / H]
        here, there = (mine * self.pull[0]).sum(2)[own], (theirs * self.pull[1]).sum(2)  # [q, H], [N, H]
        itself = (mine * self.pull[1]).sum(2)[own]
        missing, named = (partner < 0)[..., None], partner.clamp_min(0)
        pulls = torch.cat([itself[:, None], there[named].masked_fill(missing, -torch.inf)], 1)
        share = F.leaky_relu(here[:, None] + pulls, 0.2).softmax(1)  # [q, 1 + L, H]
        heads = zip(theirs.unbind(1), share[:, 1:].unbind(2), strict=True)
        met = [
            F.embedding_bag(named, x.contiguous(), mode="sum", per_sample_weights=a.contiguous()) for x, a in heads
        ]
        return F.elu(share[:, 0, :, None] * mine[own] + torch.stack(met, 1)).flatten(1)


ENCODERS: dict[str, type[nn.Module]] = {"convolution": Convolution, "sage": Sage, "gat": Gat}


def _sums(table: Tensor, partner: Tensor, share: Tensor | None = None) -> Tensor:
    """[q, d]: of the rows that `partner` int64[q, L] names, each times its share; NONE names none."""
    weights = (partner != NONE).to(table) if share is None else share
    return F.embedding_bag(partner.clamp_min(0), table, mode="sum", per_sample_weights=weights)


class GCMC(NeighbourModel, HasVectors):
    def __init__(self, config: GCMCConfig, shape: LogShape) -> None:
        super().__init__(config, shape)
        d = config.dim
        self.x = nn.ParameterList(nn.Parameter(0.1 * torch.randn(count, d)) for count in (shape.users, shape.items))
        self.encoders = nn.ModuleList(ENCODERS[config.encoder](config) for _ in range(2))
        self.dense = nn.Linear(d, d)
        self.decode = nn.Parameter(torch.eye(d))

    @classmethod
    def create(cls, config: GCMCConfig, log: EventLog, train_end: int, seed: int) -> Self:
        model = super().create(config, log, train_end, seed)
        for table, ids in zip(model.x, (log.user, log.item), strict=True):
            unseen = np.bincount(ids[:train_end], minlength=len(table)) == 0
            table.data[torch.from_numpy(unseen)] = 0.0
        return model

    @cached_property
    def _met(self) -> list[Array]:
        """bool[U], bool[I]: those that training meets."""
        return [(x.detach() != 0).any(1).cpu().numpy() for x in self.x]

    def entering(self, side: int, window: Window) -> Array | None:
        if self.config.encoder != "convolution":
            return None
        return self._met[1 - side][window.user if side else window.item]

    def _vectors(self, side: int, entities: Tensor, partner: Tensor) -> Tensor:
        """z [q, d]"""
        hidden = self.encoders[side](entities, (self.x[side], self.x[1 - side]), partner)
        hidden = F.dropout(hidden, self.config.dropout, self.training)
        return gather_linear([(hidden, None)], self.dense.weight, self.dense.bias)

    def _query(self, users: Tensor, partner: Tensor) -> Tensor:
        nothing = torch.zeros_like(self.decode[0])
        return gather_linear([(self._vectors(0, users, partner), None)], self.decode, nothing)

    def forward_window(self, index: WindowIndex, state: State) -> Forward:
        of_user, of_item = self.histories(index, state)
        assert isinstance(index, NeighbourIndex)
        moved = self._vectors(1, index.item, after(of_item, index.rings[1]).partner)
        at_start = self.item_vectors(index.roots[1], state)
        return Forward(self._query(index.user, of_user.partner), arena(index, at_start, moved))

    def query(self, users: Tensor, times: Tensor, state: State) -> Tensor:
        return self._query(users, self.now(0, users, state).partner)

    def item_vectors(self, items: Tensor, state: State) -> Tensor:
        return self._vectors(1, items, self.now(1, items, state).partner)

    def vectors(self, state: State) -> tuple[Tensor, Tensor]:
        users, items = self.arange(self.shape.users), self.arange(self.shape.items)
        return self._vectors(0, users, self.now(0, users, state).partner), self.item_vectors(items, state)
