"""dynAERNN (Goyal, Chhetri, Canedo 2020): an autoencoder of adjacency rows with a recurrent network over snapshots.

Legend: n events of a window, S snapshots with equally many training events each, l snapshots of lookback, h hidden
width, d width of a vector, V = U + I entities: users, then items; q rows.

Row a_v^s of snapshot s holds, for each entity j, log(1 + number of events of v and j in s), and 1 for v itself, so
that the vectors of two entities that often interact share their parts. A row is predicted from the rows before it,
each encoded by the weights of its lag k:

    e^k = tanh(B_k relu(A_k a_v^{s−k} + b_k) + c_k)     x_v = LSTM(e^l, …, e^1)
    â_v = σ(D relu(C x_v + c) + b)                      the row of snapshot s, 1 where v interacts with j

The loss is Σ B ∘ (â − a)², with B = β where a is not 0. Links are predicted as in base.py.

Differences from the paper:
- h = 500 as in the authors' code. Their second hidden layer of 300 and first LSTM of 500 are `inner_hidden` and
  `lstm_hidden`: without them a few epochs are enough to learn, with them (they train for 250) they are not.
- The dense method stores V × V numbers per snapshot. Here A a is a sum of rows of A, and only the needed entries of
  â are computed: those of the window's events, and of N sampled entities per side. Memory is that of all A and of D,
  (l + 1) V h numbers.
- The two kinds of entries enter as means, not sums, so that β weighs all ones of a window against all zeros,
  however many there are: β · mean (1 − â)² over the events, and mean â² over the samples.
- A snapshot consists of its own events, not of all events up to then, which is much worse on wikipedia.
- Windows of the first snapshot have no past and train nothing. After training x_v is computed from the last l
  snapshots and stays fixed.
- An entity without earlier events has the vector of an empty past, without its own 1, in training and afterwards.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Self

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dynedge.config import MAX_WIDTH, option
from dynedge.data.log import EventLog
from dynedge.data.windows import Window, cut_windows
from dynedge.errors import DataError
from dynedge.models.base import LogShape, Step
from dynedge.models.baselines.static.base import StaticModel
from dynedge.models.entity_rows import Rows
from dynedge.utils.array_type import Array
from dynedge.utils.numba_compile import compiled

BATCH = 8192  # entities whose final vectors are computed at once


@dataclass(frozen=True)
class DynAERNNConfig:
    """Settings of dynAERNN."""

    dim: int = option(64, "Width of a vector.", least=1, most=MAX_WIDTH)
    hidden: int = option(500, "Width of the layer between an adjacency row and its vector.", least=1)
    inner_hidden: int = option(0, "Width of a second such layer, next to the vector; 0: none.", least=0)
    lstm_hidden: int = option(0, "Width of an LSTM before the one that returns the vector; 0: none.", least=0)
    windows: int = option(300, "Number of windows (training steps) per epoch.", least=2)
    snapshots: int = option(10, "Number of snapshots of the training events, of equal size.", least=2)
    lookback: int = option(9, "Maximum number of snapshots that a vector is computed from.", least=1)
    beta: float = option(0.2, "Weight β of a window's entries that are 1, relative to those that are 0.", least=0)
    negatives: int = option(256, "Number of sampled entities per window and side.", least=1)


SEARCH = {
    "model.beta": (0.05, 0.2, 1.0),
    "model.hidden": (128, 500),
    "model.inner_hidden": (0, 300),
    "model.lstm_hidden": (0, 500),
    "model.lookback": (2, 5, 9),
    "model.windows": (150, 300),
    "training.lr": (3e-4, 1e-3, 3e-3),
    "training.row_lr": (3e-3, 1e-2, 3e-2),
}


class Snapshots:
    """Sparse adjacency rows of all snapshots: partners and weights sorted by (entity, snapshot, partner)."""

    def __init__(self, log: EventLog, train_end: int, snapshots: int) -> None:
        user, item = (np.asarray(ids[:train_end], np.int64) for ids in (log.user, log.item))
        self.entities, self.count = log.num_users + log.num_items, snapshots
        self._ends = [events.stop for events in cut_windows(train_end, snapshots)]
        snapshot = self.snapshot_of(np.arange(train_end))
        entity = np.concatenate([user, log.num_users + item])
        partner = np.concatenate([log.num_users + item, user])
        row = entity * snapshots + np.concatenate([snapshot, snapshot])
        cells, counts = np.unique(row * self.entities + partner, return_counts=True)
        self.partner = cells % self.entities
        self.weight = np.log1p(counts).astype(np.float32)
        self.starts = np.searchsorted(cells // self.entities, np.arange(self.entities * snapshots + 1))
        active = np.diff(self.starts).reshape(self.entities, snapshots) > 0
        self.first = np.where(active.any(1), active.argmax(1), snapshots)  # int[V]: the entity's first snapshot

    def snapshot_of(self, events: Array | int) -> Array:
        """The snapshots that events belong to."""
        return np.searchsorted(self._ends, events, side="right")

    def rows(self, entities: Array, snapshot: int) -> tuple[Array, Array, Array]:
        """(starts of rows, partners, weights) of each entity's row in a snapshot; empty before the first one."""
        row = entities * self.count + max(snapshot, 0)
        start, length = self.starts[row], (self.starts[row + 1] - self.starts[row]) * (snapshot >= 0)
        cells = _concatenated_ranges(start, length)
        return np.concatenate([[0], np.cumsum(length)[:-1]]).astype(np.int64), self.partner[cells], self.weight[cells]


class LagEncoder(nn.Module):
    """Encodes the adjacency rows of the snapshots at one lag."""

    def __init__(self, entities: int, config: DynAERNNConfig) -> None:
        super().__init__()
        h = config.hidden
        self.row_weight, self.row_bias = nn.Parameter(0.1 * torch.randn(entities, h)), nn.Parameter(torch.zeros(h))
        self.layers = nn.Sequential(nn.ReLU(), *_linear(h, config.inner_hidden, config.dim), nn.Tanh())

    def forward(self, entities: Tensor, has_past: Tensor, starts: Array, partner: Array, weight: Array) -> Tensor:
        """[q, d], from starts, partners and weights of sparse rows; `has_past` [q, 1]: whether to add the own 1."""
        device = self.row_weight.device
        rows = F.embedding_bag(
            torch.from_numpy(partner).to(device),
            self.row_weight,
            torch.from_numpy(starts).to(device),
            mode="sum",
            sparse=True,
            per_sample_weights=torch.from_numpy(weight).to(self.row_weight),
        )
        own = F.embedding(entities, self.row_weight, sparse=True) * has_past
        encoded: Tensor = self.layers(rows + own + self.row_bias)
        return encoded


class DynAERNN(StaticModel):
    def __init__(self, config: DynAERNNConfig, shape: LogShape) -> None:
        super().__init__(config, shape)
        d, h = config.dim, config.hidden
        entities = shape.users + shape.items
        self.lookback = min(config.lookback, config.snapshots - 1)
        self.encoders = nn.ModuleList(
            LagEncoder(entities, config) for _ in range(self.lookback)
        )  # the longest lag first
        widths = [d, config.lstm_hidden, d] if config.lstm_hidden else [d, d]
        self.lstm = nn.ModuleList(nn.LSTM(*pair, batch_first=True) for pair in itertools.pairwise(widths))
        self.decode = nn.Sequential(*_linear(d, config.inner_hidden, h), nn.ReLU())
        self.entry_weight = nn.Parameter(F.pad(0.1 * torch.randn(entities, h), (0, 1)))  # the last column: biases

    def entity_rows(self) -> dict[str, Rows]:
        new = Rows(users=True, items=True, std=0.1)
        rows = {f"encoders.{k}.row_weight": new for k in range(self.lookback)}
        return super().entity_rows() | rows | {"entry_weight": new}

    @classmethod
    def create(cls, config: DynAERNNConfig, log: EventLog, train_end: int, seed: int) -> Self:
        if train_end < config.snapshots:
            raise DataError(
                f"dynaernn splits the training events into {config.snapshots} snapshots, and there are {train_end} "
                "events: use a longer log, or fewer snapshots (model.snapshots, at least 2)."
            )
        model = super().create(config, log, train_end, seed)
        model.set_training_events(log, train_end)
        return model

    def set_training_events(self, log: EventLog, end: int) -> None:
        self.snapshots = Snapshots(log, end, self.config.snapshots)

    def _vectors(self, entities: Array, snapshot: int) -> Tensor:
        """x [q, d], from the snapshots before this one."""
        device = self.entry_weight.device
        ids = torch.from_numpy(entities).to(device)
        has_past = torch.from_numpy(self.snapshots.first[entities, None] < snapshot).to(device)
        with torch.autocast(device.type, enabled=False):  # cuDNN would use float16: gradients vanish
            encoded = [
                encoder(ids, has_past, *self.snapshots.rows(entities, earlier))
                for encoder, earlier in zip(self.encoders, range(snapshot - self.lookback, snapshot), strict=True)
            ]
            sequence = torch.stack(encoded, 1)
            for lstm in self.lstm:
                sequence, _ = lstm(sequence)
        return sequence[:, -1]

    def embedding_loss(self, window: Window, step: Step) -> tuple[Tensor, Tensor, Tensor] | None:
        snapshot = int(self.snapshots.snapshot_of(window.events.start))
        if snapshot == 0:
            return None
        users, user = np.unique(window.user, return_inverse=True)
        items, item = np.unique(window.item, return_inverse=True)
        x = self._vectors(np.concatenate([users, self.shape.users + items]).astype(np.int64), snapshot)
        decoded = self.decode(x)
        rows = torch.from_numpy(user), len(users) + torch.from_numpy(item)
        ids = torch.from_numpy(window.user).long(), self.shape.users + torch.from_numpy(window.item).long()
        # For each side: its rows of x, and the id range of its partners.
        sides = (0, len(users), self.shape.users, self.shape.items), (len(users), len(x), 0, self.shape.users)
        total, generator = x.new_zeros(()), step.generator()
        for side, (start, stop, first_partner, num_partners) in enumerate(sides):
            ones = self._entries(decoded[rows[side].to(x.device)], ids[1 - side].to(x.device))
            sampled = torch.randint(num_partners, (self.config.negatives,), generator=generator)
            weight = F.embedding(first_partner + sampled.to(x.device), self.entry_weight, sparse=True)
            zeros = torch.sigmoid(decoded[start:stop] @ weight[:, :-1].T + weight[:, -1])
            total = total + self.config.beta * (1 - ones).square().mean() + zeros.square().mean()
        return total, x[rows[0].to(x.device)], x[rows[1].to(x.device)]

    def _entries(self, decoded: Tensor, partner: Tensor) -> Tensor:
        """[q]: one entry of â per decoded row and partner."""
        weight = F.embedding(partner, self.entry_weight, sparse=True)
        return torch.sigmoid((decoded * weight[:, :-1]).sum(1) + weight[:, -1])

    def item_vectors(self, items: Tensor, window: Window) -> Tensor:
        snapshot = int(self.snapshots.snapshot_of(window.events.start))
        return self._vectors(self.shape.users + items.cpu().numpy(), snapshot)

    def final_vectors(self) -> tuple[Tensor, Tensor]:
        entities = np.arange(self.shape.users + self.shape.items)
        batches = [entities[start : start + BATCH] for start in range(0, len(entities), BATCH)]
        vectors = torch.cat([self._vectors(batch, self.config.snapshots) for batch in batches])
        return vectors[: self.shape.users], vectors[self.shape.users :]


def _linear(before: int, inner: int, after: int) -> list[nn.Module]:
    """A linear map, or two with a hidden layer of width `inner` between them."""
    return [nn.Linear(before, inner), nn.ReLU(), nn.Linear(inner, after)] if inner else [nn.Linear(before, after)]


@compiled
def _concatenated_ranges(start: Array, length: Array) -> Array:
    """The ranges start[r], start[r] + 1, …, start[r] + length[r] − 1, one after the other."""
    values = np.empty(length.sum(), np.int64)
    position = 0
    for r in range(len(start)):
        for j in range(length[r]):
            values[position] = start[r] + j
            position += 1
    return values
