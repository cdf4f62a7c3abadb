"""CTDNE (Nguyen et al. 2018): vectors from random walks that only go forward in time, by skip-gram.

Legend: n events of a window, l entities of a walk, d width of a vector, V = U + I entities: users, then items.

A walk starts with an event, in a random direction, and leaves each entity it comes to by one of the entity's later
events (walks of the training log alone). Entities near each other on a walk are contexts of each other:

    −Σ log σ(x_v · y_c) over contexts c of v  −  Σ log σ(−x_v · y_r) over as many random r, N of them, for each

with r drawn by degree^¾. Each event starts one walk an epoch. Which later event is taken is uniform, or `lean`s to
the sooner ones (the paper's biased walks). Links are judged as in base.py.
Whoever was not met in training has the mean vector of its side.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, Self

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dynedge.config import option
from dynedge.data.log import EventLog
from dynedge.data.windows import Window
from dynedge.models.base import LogShape, Step, Tensors, seeded
from dynedge.models.baselines.static.base import StaticModel
from dynedge.utils.arrays import Array
from dynedge.utils.compile import compiled

OVER = -1  # the walk has ended


@dataclass(frozen=True)
class CtdneConfig:
    """CTDNE."""

    dim: int = option(64, "width of a vector", least=1)
    windows: int = option(300, "training windows an epoch is cut into", least=1)
    length: int = option(10, "entities of a walk, at most", least=2)
    context: int = option(4, "how far apart on a walk contexts may be", least=1)
    lean: float = option(1.0, "1: any later event is the next with equal chance; more: rather the sooner", least=1)
    noise: int = option(5, "random entities told from each context", least=1)
    negatives: int = option(256, "items drawn for each window, for the link classifier", least=1)


class Meetings(NamedTuple):
    """The training events by entity, users then items: those of v are events[starts[v] : starts[v + 1]], in order."""

    user: Array  # int32[E]
    item: Array
    starts: Array  # int64[V + 1]
    events: Array  # int64[2E]


class Ctdne(StaticModel):
    def __init__(self, config: CtdneConfig, shape: LogShape, degrees: Array) -> None:
        super().__init__(config, shape)
        everyone = shape.users + shape.items
        self.x = nn.Parameter((torch.rand(everyone, config.dim) - 0.5) / config.dim**0.5)
        self.y = nn.Parameter(torch.zeros(everyone, config.dim))
        self.degree: Tensor
        self.register_buffer("degree", torch.from_numpy(degrees.astype(np.float32)))

    @classmethod
    def create(cls, config: CtdneConfig, log: EventLog, train_end: int, seed: int) -> Self:
        user, item = np.array(log.user[:train_end]), np.array(log.item[:train_end])
        entity = np.concatenate([user, log.num_users + item])
        degrees = np.bincount(entity, minlength=log.num_users + log.num_items)
        starts, events = np.concatenate([[0], np.cumsum(degrees)]), np.argsort(entity, kind="stable")
        with seeded(seed):
            model = cls(config, LogShape.of(log), degrees)
        model.follow(Meetings(user, item, starts, events % max(train_end, 1)))
        return model

    @classmethod
    def restore(cls, config: CtdneConfig, shape: LogShape, tensors: Tensors) -> Self:
        model = cls(config, shape, tensors["degree"].numpy())
        model.load_state_dict(tensors)
        return model

    def follow(self, meetings: Meetings) -> None:
        """Walk by these."""
        self.meetings = meetings
        self._share = np.cumsum(np.diff(meetings.starts) ** 0.75)

    def learn(self, window: Window, step: Step) -> tuple[Tensor, Tensor, Tensor]:
        rng = np.random.default_rng([step.seed, step.epoch, step.window])
        first = np.arange(window.events.start, window.events.stop)
        chance = rng.random((len(first), self.config.length), np.float32)
        walks = torch.from_numpy(_walks(first, chance, self.config.lean, *self.meetings, self.shape.users))
        drawn = np.searchsorted(self._share, rng.random((walks.numel(), self.config.noise)) * self._share[-1])
        random = torch.from_numpy(np.minimum(drawn, len(self._share) - 1))
        error = self._skip_gram(walks.to(self.x.device), random.to(self.x.device))
        user, item = (torch.from_numpy(ids).long().to(self.x.device) for ids in (window.user, window.item))
        return error, self.x[user].detach(), self.x[self.shape.users + item].detach()

    def _skip_gram(self, walks: Tensor, random: Tensor) -> Tensor:
        """The mean over all pairs of entity and context; random entities are shared by an entity's contexts."""
        there, named = walks >= 0, walks.clamp_min(0)
        x, y = F.embedding(named, self.x, sparse=True), F.embedding(named, self.y, sparse=True)
        noise = F.embedding(random, self.y, sparse=True)  # [n · l, N, d]
        contexts = torch.zeros_like(there, dtype=x.dtype)
        total = x.new_zeros(())
        for apart in range(1, min(self.config.context, walks.shape[1] - 1) + 1):
            both = there[:, apart:].to(x)  # a walk has no holes
            for a, b in ((x[:, :-apart], y[:, apart:]), (x[:, apart:], y[:, :-apart])):
                total = total + (F.softplus(-(a * b).sum(2)) * both).sum()
            contexts[:, :-apart] += both
            contexts[:, apart:] += both
        against = F.softplus(torch.bmm(noise, x.flatten(0, 1)[:, :, None])[..., 0]).sum(1)
        return (total + (against * contexts.flatten()).sum()) / contexts.sum().clamp_min(1)

    def item_vectors(self, items: Tensor, window: Window) -> Tensor:
        return self.x[self.shape.users + items]

    def final_vectors(self) -> tuple[Tensor, Tensor]:
        users = self.shape.users
        return _filled(self.x[:users], self.degree[:users]), _filled(self.x[users:], self.degree[users:])


def _filled(x: Tensor, degree: Tensor) -> Tensor:
    """x, with the mean vector for whom nobody met."""
    met = (degree > 0)[:, None]
    return torch.where(met, x, (x * met).sum(0) / met.sum().clamp_min(1))


@compiled
def _walks(
    first: Array, chance: Array, lean: float, user: Array, item: Array, starts: Array, events: Array, users: int
) -> Array:
    """int64[n, l]: the entities of a walk from each event; `chance` [n, l] are its throws."""
    walks = np.full(chance.shape, OVER, np.int64)
    for w in range(len(first)):
        event = first[w]
        from_user = chance[w, 0] < 0.5
        walks[w, 0 if from_user else 1], walks[w, 1 if from_user else 0] = user[event], users + item[event]
        for step in range(2, chance.shape[1]):
            entity = walks[w, step - 1]
            own = events[starts[entity] : starts[entity + 1]]
            later = np.searchsorted(own, event, side="right")
            if later == len(own):
                break
            event = own[later + min(int((len(own) - later) * chance[w, step] ** lean), len(own) - later - 1)]
            walks[w, step] = users + item[event] if entity < users else user[event]
    return walks
