"""TGAT (Xu, Ruan, Korpeoglu, Kumar, Achan 2020): attention over the last neighbours, with time as a function.

Legend: n events of a window, q queries, L neighbours kept, d width of a vector, T of a time, F of event features.

    Φ(Δ) = cos(ω Δ + φ)
    layer l of v at time t, h of layer l − 1, j of event e at time t_e a neighbour of v:
        query W_q [h_v(t), Φ(0)]        key and value W [h_j(t_e), f_e, Φ(t − t_e)]
        h'_v = norm(h_v + a + MLP [a, x_v])        a the attention's answer, x_v the learned vector of v's id

Layer 0 is x. Layer 2 asks for a neighbour's layer 1 as of the event that they met in, and that is the same for
whoever asks later: it is worked out once an event, for user and item, and kept beside the neighbour's id. So two
layers cost 4 L an event, not L². In training, what was kept before the window is taken as it is, without gradient.

Decisions: ω is fixed, from 1 down to 1e-9 a second: learned, its gradient is as large as Δ, millions, and drowns all
others. The most recent L neighbours, not a uniform sample. Where a log has no features of users and items, x is
learned (0 for whom training does not meet). A user's layer 1 is as of just before an event, an item's as of just
after. A question is the user's layer 2 at the time asked, turned; a candidate is the item's layer 2 as of its
own last event, so that all items are scored by one product, and beside it x and a bias. Items' categories are not
read.
Memory: (U + I) L (d + F) numbers.
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
from dynedge.errors import UsageError
from dynedge.models.base import LogShape, State, seeded
from dynedge.models.baselines.dynamic.neighbours import NeighbourIndex, NeighbourModel, after, arena
from dynedge.models.capabilities import HasVectors
from dynedge.models.dynamic import Forward
from dynedge.models.ring_buffer import SIDES, History, Indexed
from dynedge.models.window_index import WindowIndex
from dynedge.ops.gather_linear import gather_linear

AT_ONCE = 8192  # vectors made at once


@dataclass(frozen=True)
class TGATConfig:
    """TGAT."""

    dim: int = option(64, "width of vectors", least=1)
    times: int = option(16, "width of a time", least=1)
    windows: int = option(150, "training windows an epoch is cut into", least=1)
    neighbours: int = option(10, "the last so many are attended to", least=1)
    heads: int = option(2, "of the attention; they divide dim", least=1)
    negatives: int = option(512, "items drawn for each chunk of events, beside the true ones", least=1)
    full_softmax_up_to: int = option(4096, "with no more items than this, all are candidates", least=0)
    dropout: float = option(0.3, "share of what a user wants that training leaves out, at random", least=0)


class Attention(nn.Module):
    """One layer, for one side."""

    def __init__(self, config: TGATConfig, features: int) -> None:
        super().__init__()
        d, wide = config.dim, config.dim + features + config.times
        self.heads = config.heads
        self.query, self.pair = nn.Linear(d + config.times, d), nn.Linear(wide, 2 * d)
        self.merge, self.out, self.norm = nn.Linear(2 * d, d), nn.Linear(d, d), nn.LayerNorm(d)

    def forward(
        self, own: Tensor, x: Tensor, now: Tensor, known: list[Tensor], since: Tensor, there: Tensor
    ) -> Tensor:
        """[q, d] of h_v and x_v [q, d], Φ(0) [q, T], of neighbours h and f side by side [q, L, ..], Φ [q, L, T]."""
        (count, length), width = there.shape, own.shape[1] // self.heads
        rows = [(part.flatten(0, 1).contiguous(), None) for part in (*known, since)]
        pairs = gather_linear(rows, self.pair.weight, self.pair.bias).view(count, length, 2, self.heads, width)
        query = gather_linear([(own, None), (now, None)], self.query.weight, self.query.bias)
        pull = (pairs[:, :, 0] * query.view(count, 1, self.heads, width)).sum(3) * width**-0.5
        pull = pull.masked_fill(~there[..., None], torch.finfo(pull.dtype).min)
        share = pull.softmax(1) * there[..., None]  # nobody there: nothing comes
        heard = (share[..., None] * pairs[:, :, 1]).sum(1).flatten(1)
        merged = gather_linear([(heard, None), (x, None)], self.merge.weight, self.merge.bias, relu=True)
        made = own + heard + gather_linear([(merged, None)], self.out.weight, self.out.bias)
        normed: Tensor = self.norm(made)
        return normed


class TGAT(NeighbourModel, HasVectors):
    rate: Tensor  # ω [T]

    def __init__(self, config: TGATConfig, shape: LogShape) -> None:
        if config.dim % config.heads:
            raise UsageError(f"tgat: {config.heads} heads do not divide a width of {config.dim}; change one of them.")
        super().__init__(config, shape)
        d = config.dim
        sizes = (shape.users, d), (shape.items, d + 1)  # an item's last number is its bias as a candidate
        self.x = nn.ParameterList(nn.Parameter(torch.zeros(size)) for size in sizes)
        self.register_buffer("rate", torch.logspace(0, -9, config.times))
        self.phase = nn.Parameter(torch.zeros(config.times))
        self.first, self.second = (nn.ModuleList(Attention(config, shape.features) for _ in SIDES) for _ in range(2))
        self.wants = nn.Linear(d, 2 * d)

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
        state, width = super().start(), self.config.dim + self.shape.features
        for name, count in zip(SIDES, (self.shape.users, self.shape.items), strict=True):
            state[f"{name}_kept"] = self.rate.new_zeros(count, self.config.neighbours, width)
        return state

    # ---- layers

    def _phi(self, since: Tensor) -> Tensor:
        """[.., T] of seconds float64[..]"""
        return torch.cos(since.clamp_min(0).to(self.rate)[..., None] * self.rate + self.phase)

    def _times(self, time: Tensor, history: History) -> tuple[Tensor, Tensor]:
        """Φ of no time, and of that since the neighbours were met."""
        return self._phi(torch.zeros_like(time)), self._phi(time[:, None] - history.time)

    def _of(self, side: int, ids: Tensor) -> Tensor:
        """x [.., d]"""
        return F.embedding(ids, self.x[side], sparse=True)[..., : self.config.dim]

    def _layer1(self, side: int, entity: Tensor, time: Tensor, history: History, features: Tensor) -> Tensor:
        """h [q, d] after the first layer; features [q, L, F] are those of the history's events."""
        own, (now, since) = self._of(side, entity), self._times(time, history)
        partners = self._of(1 - side, history.partner.clamp_min(0))
        layer: Tensor = self.first[side](own, own, now, [partners, features], since, history.partner >= 0)
        return layer

    def _layer2(self, side: int, h: Tensor, entity: Tensor, time: Tensor, history: History, kept: Tensor) -> Tensor:
        """h [q, d] after the second; kept [q, L, d + F]: the neighbours' first layer, and features."""
        own, (now, since) = self._of(side, entity), self._times(time, history)
        layer: Tensor = self.second[side](h, own, now, [kept], since, history.partner >= 0)
        return layer

    def _both(self, side: int, entities: Tensor, time: Tensor | None, state: State) -> Tensor:
        """[q, d]: entities as they stand, at a time; None: as of their own last event."""
        history, found = self.now(side, entities, state), []
        _, slot = self.rings[side].slots(entities, torch.zeros_like(entities), state)
        time = history.time[:, 0] if time is None else time.to(history.time)
        for at in range(0, len(entities), AT_ONCE):
            some = slice(at, at + AT_ONCE)
            kept = state[f"{SIDES[side]}_kept"][entities[some, None], slot[some]]
            asked = entities[some], time[some], History(history.partner[some], history.time[some])
            first = self._layer1(side, *asked, kept[..., self.config.dim :])
            found.append(self._layer2(side, first, *asked, kept))
        return torch.cat(found) if found else self.rate.new_zeros(0, self.config.dim)

    # ---- a window

    def forward_window(self, index: WindowIndex, state: State) -> Forward:
        """`more`: for users and for items [n, d + F], the neighbour's first layer and the event's features."""
        assert isinstance(index, NeighbourIndex)
        (users, items), d = index.rings, self.config.dim
        user, item, time, features = index.user, index.item, index.time, index.features.to(self.rate)
        before, of_item = self.histories(index, state)
        later = after(of_item, items)
        kept = [self._kept(side, indexed, state) for side, indexed in enumerate(index.rings)]
        known = [_newest(indexed, features, old[..., d:]) for indexed, old in zip(index.rings, kept, strict=True)]
        user1 = self._layer1(0, user, time, before, known[0])
        item1 = self._layer1(1, item, time, later, _shifted(features, known[1]))
        for_user, for_item = torch.cat([item1, features], 1), torch.cat([user1, features], 1)
        user2 = self._layer2(0, user1, user, time, before, _newest(users, for_user, kept[0]))
        met = _shifted(for_item, _newest(items, for_item, kept[1]))
        item2 = self._layer2(1, item1, item, time, later, met)
        at_start = self.item_vectors(index.roots[1], state)
        return Forward(self._query(user2), arena(index, at_start, item2), (for_user, for_item))

    def _kept(self, side: int, indexed: Indexed, state: State) -> Tensor:
        """[n, L, d + F]: of what was before the window."""
        _, slot = self.rings[side].slots(indexed.entity, indexed.earlier, state)
        return state[f"{SIDES[side]}_kept"][indexed.entity[:, None], slot]

    def _query(self, user: Tensor) -> Tensor:
        wanted = gather_linear([(user, None)], self.wants.weight, self.wants.bias) * self.config.dim**-0.5
        return F.dropout(wanted, self.config.dropout, self.training)

    def query(self, users: Tensor, times: Tensor, state: State) -> Tensor:
        return self._query(self._both(0, users, times, state))

    def item_vectors(self, items: Tensor, state: State) -> Tensor:
        return self._both(1, items, None, state)

    def vectors(self, state: State) -> tuple[Tensor, Tensor]:
        """As of everyone's last event."""
        users, items = self.arange(self.shape.users), self.arange(self.shape.items)
        return self._both(0, users, None, state), self._both(1, items, None, state)

    @torch.no_grad()
    def advance(self, index: WindowIndex, forward: Forward, state: State) -> None:
        assert isinstance(index, NeighbourIndex)
        for side, indexed in enumerate(index.rings):
            state[f"{SIDES[side]}_kept"][self.rings[side].places(indexed, state)] = forward.extra[side][indexed.kept]
        super().advance(index, forward, state)


def _newest(indexed: Indexed, fresh: Tensor, old: Tensor) -> Tensor:
    """[n, L, w]: of the histories before the events, from the window's own [n, w] or from before it [n, L, w]."""
    return torch.where((indexed.inside >= 0)[..., None], fresh[indexed.inside.clamp_min(0)], old)


def _shifted(newest: Tensor, before: Tensor) -> Tensor:
    """[n, L, w]: of the histories after the events."""
    return torch.cat([newest[:, None], before[:, :-1]], 1)
