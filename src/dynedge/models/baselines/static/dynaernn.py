"""dynAERNN (Goyal, Chhetri, Canedo 2020): an autoencoder of adjacency rows with a recurrent network over snapshots.

Legend: n events of a window, S snapshots of as many training events each, l of them looked back at, h hidden width,
d width of a vector, V = U + I entities: users, then items; q rows.

Row a_v^s of snapshot s has, for each entity j, how often v met it there, log(1 + count), and 1 for v itself: so the
vectors of two that often meet are made of the same parts. What is to come is made from what was:

    e^s = tanh(W₂ relu(W₁ a_v^s + b₁) + b₂)            x_v = LSTM(e^{s−l}, …, e^{s−1})
    â_v = σ(W₄ relu(W₃ x_v + b₃) + b₄)                 the row of snapshot s, 1 where v meets j

and the error is Σ B ∘ (â − a)², with B = β where a is not 0. The dense method keeps V × V numbers a snapshot. Here
W₁ a is a sum of the rows of W₁ that v met, and of â only entries that are asked for are worked out: those of the
window's events, and of N entities drawn for each side. So memory is that of W₁ and W₄, linear in V. The two kinds are
means, not sums, so that β weighs all ones of a window against all zeros, however many there are: β · mean (1 − â)²
over the events, and mean â² over what is drawn.

A snapshot is its own events, not all up to then, which is much worse on wikipedia. Windows of the first one have
nothing to look back at and teach nothing. After training x_v is made from the last l snapshots and stays. Whoever was
not met before has the vector of an empty past, without a part of its own, in training as later. Links are judged as
in base.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dynedge.config import option
from dynedge.data.log import EventLog
from dynedge.data.windows import Window, cut_windows
from dynedge.errors import DataError
from dynedge.models.base import LogShape, Step
from dynedge.models.baselines.static.base import StaticModel
from dynedge.utils.arrays import Array
from dynedge.utils.compile import compiled

AT_ONCE = 8192  # rows made at once when training is over


@dataclass(frozen=True)
class DynAERNNConfig:
    """dynAERNN."""

    dim: int = option(64, "width of a vector", least=1)
    hidden: int = option(128, "width of the layer between a row and its vector", least=1)
    windows: int = option(300, "training windows an epoch is cut into; the first teaches nothing", least=2)
    snapshots: int = option(10, "the training events are cut into so many, of as many events each", least=2)
    look_back: int = option(9, "snapshots a vector is made from, at most", least=1)
    beta: float = option(0.2, "weight of a window's entries that are 1, against those that are 0", least=0)
    negatives: int = option(256, "entities drawn for each window and side", least=1)


SEARCH = {
    "model.beta": (0.05, 0.2, 1.0),
    "model.windows": (150, 300),
    "training.lr": (3e-4, 1e-3, 3e-3),
    "training.row_lr": (3e-3, 1e-2, 3e-2),
}


class Snapshots:
    """Rows of the snapshots' adjacency: sorted (entity, snapshot, partner) with counts, and where a row starts."""

    def __init__(self, log: EventLog, train_end: int, snapshots: int) -> None:
        user, item = (np.asarray(ids[:train_end], np.int64) for ids in (log.user, log.item))
        self.entities, self.count = log.num_users + log.num_items, snapshots
        self._ends = [events.stop for events in cut_windows(train_end, snapshots)]
        of = self.of(np.arange(train_end))
        ends = np.concatenate([user, log.num_users + item]), np.concatenate([log.num_users + item, user])
        row = ends[0] * snapshots + np.concatenate([of, of])
        cells, counts = np.unique(row * self.entities + ends[1], return_counts=True)
        self.partner = cells % self.entities
        self.weight = np.log1p(counts).astype(np.float32)
        self.starts = np.searchsorted(cells // self.entities, np.arange(self.entities * snapshots + 1))
        there = np.diff(self.starts).reshape(self.entities, snapshots) > 0
        self.first = np.where(there.any(1), there.argmax(1), snapshots)  # int[V]: the snapshot it is first met in

    def of(self, events: Array | int) -> Array:
        """The snapshots that events are in."""
        return np.searchsorted(self._ends, events, side="right")

    def rows(self, entities: Array, snapshots: range) -> tuple[Array, Array, Array]:
        """(where each starts, partners, weights) of the rows of each entity in each of the snapshots.

        Those of snapshots before the first are empty.
        """
        number = entities[:, None] * self.count + np.arange(snapshots.start, snapshots.stop)
        there = np.broadcast_to(np.arange(snapshots.start, snapshots.stop) >= 0, number.shape).flatten()
        number = np.where(there, number.flatten(), 0)
        first, length = self.starts[number], (self.starts[number + 1] - self.starts[number]) * there
        named = _ranges(first, length)
        return np.concatenate([[0], np.cumsum(length)[:-1]]).astype(np.int64), self.partner[named], self.weight[named]


class DynAERNN(StaticModel):
    def __init__(self, config: DynAERNNConfig, shape: LogShape) -> None:
        super().__init__(config, shape)
        d, h = config.dim, config.hidden
        everyone = shape.users + shape.items
        self.read, self.read_bias = nn.Parameter(0.1 * torch.randn(everyone, h)), nn.Parameter(torch.zeros(h))
        self.encode, self.recur = nn.Linear(h, d), nn.LSTM(d, d, batch_first=True)
        self.decode = nn.Linear(d, h)
        self.write = nn.Parameter(F.pad(0.1 * torch.randn(everyone, h), (0, 1)))  # the last column is b₄

    @classmethod
    def create(cls, config: DynAERNNConfig, log: EventLog, train_end: int, seed: int) -> Self:
        if train_end < config.snapshots:
            raise DataError(
                f"dynaernn splits the training events into {config.snapshots} snapshots, and there are {train_end} "
                "events: use a longer log, or fewer snapshots (model.snapshots, at least 2)."
            )
        model = super().create(config, log, train_end, seed)
        model.follow(Snapshots(log, train_end, config.snapshots))
        return model

    def follow(self, snapshots: Snapshots) -> None:
        """Learn from these."""
        self.snapshots = snapshots

    def _vectors(self, entities: Array, snapshot: int) -> Tensor:
        """x [q, d]: made from the snapshots before this one."""
        back = min(self.config.look_back, self.config.snapshots - 1)
        starts, partner, weight = self.snapshots.rows(entities, range(snapshot - back, snapshot))
        device = self.read.device
        rows = F.embedding_bag(
            torch.from_numpy(partner).to(device),
            self.read,
            torch.from_numpy(starts).to(device),
            mode="sum",
            sparse=True,
            per_sample_weights=torch.from_numpy(weight).to(self.read),
        )
        own = F.embedding(torch.from_numpy(entities).to(device), self.read, sparse=True)
        own = own * torch.from_numpy(self.snapshots.first[entities, None] < snapshot).to(device)
        rows = rows.view(len(entities), back, -1) + own[:, None] + self.read_bias
        with torch.autocast(device.type, enabled=False):  # cuDNN's would be in float16: gradients vanish
            _, (last, _) = self.recur(torch.tanh(self.encode(F.relu(rows))))
        return last[0]

    def learn(self, window: Window, step: Step) -> tuple[Tensor, Tensor, Tensor] | None:
        snapshot = int(self.snapshots.of(window.events.start))
        if snapshot == 0:
            return None
        users, user = np.unique(window.user, return_inverse=True)
        items, item = np.unique(window.item, return_inverse=True)
        x = self._vectors(np.concatenate([users, self.shape.users + items]).astype(np.int64), snapshot)
        decoded = F.relu(self.decode(x))
        ends = torch.from_numpy(user), len(users) + torch.from_numpy(item)
        ids = torch.from_numpy(window.user).long(), self.shape.users + torch.from_numpy(window.item).long()
        sides = (0, len(users), self.shape.users, self.shape.items), (len(users), len(x), 0, self.shape.users)
        total, generator = x.new_zeros(()), step.generator()
        for side, (start, stop, first, count) in enumerate(sides):
            met = self._entries(decoded[ends[side].to(x.device)], ids[1 - side].to(x.device))
            drawn = first + torch.randint(count, (self.config.negatives,), generator=generator).to(x.device)
            other = F.embedding(drawn, self.write, sparse=True)
            rest = torch.sigmoid(decoded[start:stop] @ other[:, :-1].T + other[:, -1])
            total = total + self.config.beta * (1 - met).square().mean() + rest.square().mean()
        return total, x[ends[0].to(x.device)], x[ends[1].to(x.device)]

    def _entries(self, decoded: Tensor, partner: Tensor) -> Tensor:
        """[q]: â of a row and a partner each."""
        own = F.embedding(partner, self.write, sparse=True)
        return torch.sigmoid((decoded * own[:, :-1]).sum(1) + own[:, -1])

    def item_vectors(self, items: Tensor, window: Window) -> Tensor:
        return self._vectors(self.shape.users + items.cpu().numpy(), int(self.snapshots.of(window.events.start)))

    def final_vectors(self) -> tuple[Tensor, Tensor]:
        every = np.arange(self.shape.users + self.shape.items)
        pieces = [every[at : at + AT_ONCE] for at in range(0, len(every), AT_ONCE)]
        found = torch.cat([self._vectors(piece, self.config.snapshots) for piece in pieces])
        return found[: self.shape.users], found[self.shape.users :]


@compiled
def _ranges(first: Array, length: Array) -> Array:
    """first[0], first[0] + 1, … `length[0]` of them, then from first[1] on, and so on."""
    named = np.empty(length.sum(), np.int64)
    at = 0
    for r in range(len(first)):
        for j in range(length[r]):
            named[at] = first[r] + j
            at += 1
    return named
