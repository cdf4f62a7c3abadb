"""CTDNE (Nguyen et al. 2018): skip-gram embeddings from random walks that only move forward in time.

Legend: n events of a window, l entities of a walk, d width of a vector, N noise samples, V = U + I entities: users,
then items; x entity vectors, y context vectors.

A walk starts with an event, in a random direction, and leaves each entity by one of the entity's later training
events. Entities near each other on a walk are contexts of each other. The loss is skip-gram with negative sampling:

    −Σ log σ(x_v · y_c) over contexts c of v  −  Σ log σ(−x_v · y_r) over N random r for each context

with r sampled in proportion to degree^¾. Each event starts one walk per epoch. The next event is sampled uniformly
from the later ones, or with a bias to sooner ones (`recency_bias`, the paper's biased walks). Links are predicted as
in base.py.

Differences from the paper:
- Entities not seen in training have the mean vector of their side.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, Self

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dynedge.config import MAX_WIDTH, option
from dynedge.data.log import EventLog
from dynedge.data.windows import Window
from dynedge.models.base import REPLAYED, LogShape, Step
from dynedge.models.baselines.static.base import StaticModel
from dynedge.models.entity_rows import Rows
from dynedge.utils.array_type import Array
from dynedge.utils.numba_compile import compiled

PADDING = -1  # after the end of a walk


@dataclass(frozen=True)
class CtdneConfig:
    """Settings of CTDNE."""

    dim: int = option(64, "Width of a vector.", least=1, most=MAX_WIDTH)
    windows: int = option(300, "Number of windows (training steps) per epoch.", least=1)
    walk_length: int = option(10, "Maximum number of entities of a walk.", least=2)
    context_size: int = option(4, "Maximum distance of contexts on a walk.", least=1)
    recency_bias: float = option(1.0, "Bias of a walk to sooner events; 1: all later events equally likely.", least=1)
    noise_samples: int = option(5, "Number of random entities per context, as skip-gram negatives.", least=1)
    negatives: int = option(256, "Number of negative samples per window, for the link classifier.", least=1)


SEARCH = {
    "training.lr": (3e-4, 1e-3, 3e-3),
    "training.row_lr": (3e-3, 1e-2, 3e-2),
    "model.walk_length": (5, 10, 20),
    "model.context_size": (1, 2, 4, 8),
    "model.recency_bias": (1.0, 2.0, 4.0),
    "model.noise_samples": (5, 15),
    "model.windows": (150, 300, 600),
}


class EventsByEntity(NamedTuple):
    """Training events grouped by entity, users then items: those of v are events[starts[v] : starts[v + 1]]."""

    user: Array  # int32[E]
    item: Array
    starts: Array  # int64[V + 1]
    events: Array  # int64[2E], in order of time for each entity


class Ctdne(StaticModel):
    def __init__(self, config: CtdneConfig, shape: LogShape) -> None:
        super().__init__(config, shape)
        entities = shape.users + shape.items
        self.x = nn.Parameter((torch.rand(entities, config.dim) - 0.5) / config.dim**0.5)
        self.y = nn.Parameter(torch.zeros(entities, config.dim))
        self.degree: Tensor
        self.register_buffer("degree", torch.zeros(entities))

    def entity_rows(self) -> dict[str, Rows]:
        new = Rows(users=True, items=True)
        return super().entity_rows() | {"x": new._replace(std=0.3 / self.config.dim**0.5), "y": new, "degree": new}

    @classmethod
    def create(cls, config: CtdneConfig, log: EventLog, train_end: int, seed: int) -> Self:
        model = super().create(config, log, train_end, seed)
        model.set_training_events(log, train_end)
        return model

    def set_training_events(self, log: EventLog, end: int) -> None:
        user, item = np.array(log.user[:end]), np.array(log.item[:end])
        entity = np.concatenate([user, self.shape.users + item])
        degrees = np.bincount(entity, minlength=self.shape.users + self.shape.items)
        starts, events = np.concatenate([[0], np.cumsum(degrees)]), np.argsort(entity, kind="stable")
        self.events = EventsByEntity(user, item, starts, events % max(end, 1))
        self._cumulative_noise = np.cumsum(degrees**0.75)
        self.degree.copy_(torch.from_numpy(degrees))

    def embedding_loss(self, window: Window, step: Step) -> tuple[Tensor, Tensor, Tensor]:
        rng = np.random.default_rng([step.seed, step.epoch, step.window])
        first, end = np.arange(window.events.start, window.events.stop), window.events.start
        if self.continued:  # walks also from events before the window, since those from its own end with it
            older = rng.integers(max(0, end - REPLAYED), max(end, 1), min(end, len(first)))
            first = np.concatenate([first, older])
        random = rng.random((len(first), self.config.walk_length), np.float32)
        sampled = _sample_walks(first, random, self.config.recency_bias, *self.events, self.shape.users)
        walks, cumulative = torch.from_numpy(sampled), self._cumulative_noise
        position = rng.random((walks.numel(), self.config.noise_samples)) * cumulative[-1]
        noise = torch.from_numpy(np.minimum(np.searchsorted(cumulative, position), len(cumulative) - 1))
        loss = self._skip_gram_loss(walks.to(self.x.device), noise.to(self.x.device))
        user, item = (torch.from_numpy(ids).long().to(self.x.device) for ids in (window.user, window.item))
        return loss, self.x[user].detach(), self.x[self.shape.users + item].detach()

    def _skip_gram_loss(self, walks: Tensor, noise: Tensor) -> Tensor:
        """The mean over all pairs of entity and context; an entity's contexts share its noise samples."""
        mask, entity = walks >= 0, walks.clamp_min(0)
        x, y = F.embedding(entity, self.x, sparse=True), F.embedding(entity, self.y, sparse=True)
        noise_vectors = F.embedding(noise, self.y, sparse=True)  # [n · l, N, d]
        num_contexts = torch.zeros_like(mask, dtype=x.dtype)
        positive = x.new_zeros(())
        for distance in range(1, min(self.config.context_size, walks.shape[1] - 1) + 1):
            valid = mask[:, distance:].to(x)  # padding is at the end of a walk only
            for a, b in ((x[:, :-distance], y[:, distance:]), (x[:, distance:], y[:, :-distance])):
                positive = positive + (F.softplus(-(a * b).sum(2)) * valid).sum()
            num_contexts[:, :-distance] += valid
            num_contexts[:, distance:] += valid
        negative = F.softplus(torch.bmm(noise_vectors, x.flatten(0, 1)[:, :, None])[..., 0]).sum(1)
        return (positive + (negative * num_contexts.flatten()).sum()) / num_contexts.sum().clamp_min(1)

    def item_vectors(self, items: Tensor, window: Window) -> Tensor:
        return self.x[self.shape.users + items]

    def final_vectors(self) -> tuple[Tensor, Tensor]:
        users = self.shape.users
        return _fill_unseen(self.x[:users], self.degree[:users]), _fill_unseen(self.x[users:], self.degree[users:])


def _fill_unseen(x: Tensor, degree: Tensor) -> Tensor:
    """x, with the mean vector for entities without training events."""
    seen = (degree > 0)[:, None]
    return torch.where(seen, x, (x * seen).sum(0) / seen.sum().clamp_min(1))


@compiled
def _sample_walks(
    first: Array,
    random: Array,
    recency_bias: float,
    user: Array,
    item: Array,
    starts: Array,
    events: Array,
    users: int,
) -> Array:
    """int64[n, l]: the entities of one walk from each event in `first`, by random numbers [n, l]."""
    walks = np.full(random.shape, PADDING, np.int64)
    for w in range(len(first)):
        event = first[w]
        from_user = random[w, 0] < 0.5
        walks[w, 0 if from_user else 1], walks[w, 1 if from_user else 0] = user[event], users + item[event]
        for step in range(2, random.shape[1]):
            entity = walks[w, step - 1]
            own = events[starts[entity] : starts[entity + 1]]
            later = np.searchsorted(own, event, side="right")
            num_later = len(own) - later
            if num_later == 0:
                break
            event = own[later + min(int(num_later * random[w, step] ** recency_bias), num_later - 1)]
            walks[w, step] = users + item[event] if entity < users else user[event]
    return walks
