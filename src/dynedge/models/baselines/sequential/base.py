"""What the sequence models share: a user is the last items met, and a question is answered from these alone.

Legend: n events, L items of a history, m items met in a step, C candidates, I items of the log, d width.

A model says two things: `read` makes something of histories, `rate` sets that beside candidates' vectors. Learning
is by example: an event, its user's history before it, the item that came. Examples are taken in a new order every
epoch: neighbours in a log are often of one user, and a step that sees few users sways. What is remembered are
integers (histories.py), so that neither the order nor the cutting of a log into windows can change a score.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dynedge.config import option
from dynedge.data.log import EventLog
from dynedge.data.windows import Window
from dynedge.models.base import LogShape, Loss, Model, State, Step, loggable
from dynedge.models.modules import ItemFeatures
from dynedge.models.ring_buffer import Indexed, Past, Rings
from dynedge.ops.gather_linear import gather_rows
from dynedge.utils.arrays import Array

LEAST = 8  # rows scored at once: products of fewer than four are summed in another order, and end in other bits


@dataclass(frozen=True)
class SequenceConfig:
    """What every sequence model can be told."""

    dim: int = option(64, "width of embeddings and of what is made of them", least=1)
    length: int = option(10, "items of a user's history that are looked at", least=1)
    window_events: int = option(512, "events a step learns from", least=1)
    shuffled: bool = option(True, "learn from the training events in a new order every epoch, not in that of the log")
    negatives: int = option(512, "items drawn for each step, beside the true ones and the users' own", least=1)
    full_softmax_up_to: int = option(4096, "with no more items than this, all are candidates", least=0)
    categories: bool = option(True, "an item's vector is its id's and its categories', summed; false: its id's")
    dropout: float = option(0.2, "share of what is made of a history that training leaves out, at random", least=0)
    piece: int = option(512, "events scored at once, so that memory is bounded", least=1)


LEARNING = {"row_lr": 3e-3}  # of the training's fields: vectors that learn at the usual 1e-2 are fitted, not learned
SEARCH = {
    "training.lr": (3e-4, 1e-3, 3e-3),
    "training.row_lr": (1e-3, 3e-3, 1e-2),
    "model.length": (5, 10, 20, 50),
    "model.dropout": (0.0, 0.2, 0.5),
    "model.shuffled": (True, False),
}
VECTOR_SEARCH = SEARCH | {"model.temperature": (0.05, 0.07, 0.1, 0.2)}


class Examples(NamedTuple):
    """A training window: where it is in the log, how the rings move past it, and where examples are looked up."""

    window: Window
    indexed: Indexed
    past: Past
    end: int


class SequenceModel(Model):
    least = LEAST  # rows it is asked about at once, or more

    def __init__(self, config: Any, shape: LogShape) -> None:
        super().__init__(config, shape)
        self.rings = Rings(0, shape.users, config.length)
        self.items = ItemFeatures(shape, config.dim, ids=True, categories=config.categories)
        self.bias = nn.Parameter(torch.zeros(shape.items + 1, 1))
        self._order: tuple[tuple[int, int], Array] | None = None

    # ---- what a model is

    @abstractmethod
    def read(self, history: Tensor, there: Tensor, vectors: Tensor) -> Any:
        """What is made of n histories; `history` int64[n, L] are rows of `vectors` [m, d], `there` bool[n, L]."""

    @abstractmethod
    def rate(self, reading: Any, vectors: Tensor) -> Tensor:
        """[n, C]: how well candidates fit, by their vectors: [C, d] for all, or [n, C, d] for each event its own."""

    def error(self, true: Tensor, others: Tensor, stands_for: Tensor) -> Tensor:
        """[n]: the loss of each event by the score of its item [n] and the others' [n, C]; −inf is nobody.

        `stands_for` [C] says of how many items each of the others is a sample.
        """
        return torch.cat([true[:, None], others + stands_for.log()], 1).logsumexp(1) - true

    def beside(self, reading: Any) -> Tensor:
        """What is added to the loss of a step for the model's own ends."""
        return torch.zeros((), device=self.bias.device)

    def _rate(self, reading: Any, vectors: Tensor, bias: Tensor) -> Tensor:
        with torch.autocast(vectors.device.type, enabled=False):  # scores in bfloat16 would tie
            return self.rate(_as(reading, vectors.dtype), vectors) + bias

    def _vectors(self, items: Tensor) -> tuple[Tensor, Tensor]:
        """[m, d] and [m]: of items, −1 among them."""
        parts = self.items(items).view(len(items), -1, self.config.dim)
        bias = F.embedding(items % (self.shape.items + 1), self.bias, sparse=True)[:, 0]
        return parts.sum(1), bias

    def _all_items(self) -> Tensor:
        """Every item, and none, which is the last row then: an item's number modulo I + 1."""
        return torch.arange(self.shape.items + 1, device=self.bias.device)

    # ---- learning

    def num_windows(self, train_end: int) -> int:
        return max(1, round(train_end / self.config.window_events))

    def batches(self, log: EventLog, windows: Sequence[range], first: int = 0) -> Iterator[Examples]:
        train_end = windows[-1].stop
        past = Past(log, train_end, 0, self.config.length)
        for events in windows[first:]:
            window = Window(log, events)
            yield Examples(window, self.rings.index(window, self.bias.device), past, train_end)

    def _chosen(self, examples: Examples, step: Step) -> Array:
        """The events to learn from in this step."""
        events = examples.window.events
        if not self.config.shuffled:
            return np.arange(events.start, events.stop)
        epoch = step.seed, step.epoch
        if self._order is None or self._order[0] != epoch:
            self._order = epoch, np.random.default_rng(epoch).permutation(examples.end)
        return self._order[1][events.start : events.stop]

    def sample_negatives(self, batch: Examples, step: Step) -> Tensor | None:
        """int64[C]: the negatives of a step; none where all items are candidates."""
        if self.shape.items <= self.config.full_softmax_up_to:
            return None
        return torch.randint(self.shape.items, (self.config.negatives,), generator=step.generator())

    def loss(self, batch: Examples, state: State, step: Step) -> Loss:
        device, events = self.bias.device, self._chosen(batch, step)
        history = torch.from_numpy(batch.past.before(events)).to(device)
        true = torch.from_numpy(batch.window.log.item[events].astype(np.int64)).to(device)
        negatives = self.sample_negatives(batch, step)
        if negatives is None:
            vectors, bias = self._vectors(self._all_items())
            reading = self.read(history % len(vectors), history >= 0, vectors)
            every = self._rate(reading, vectors[:-1], bias[:-1])
            mine, others = every.gather(1, true[:, None])[:, 0], every.scatter(1, true[:, None], -torch.inf)
            error = self.error(mine, others, torch.ones_like(bias[:-1]))
        else:
            error, reading = self._drawn_error(history, true, negatives.to(device))
        self.rings.advance(batch.indexed, state)
        total = error.sum() / max(len(true), 1) + self.beside(reading)
        return Loss(total, {"loss": loggable(total.detach())})

    def _drawn_error(self, history: Tensor, true: Tensor, negatives: Tensor) -> tuple[Tensor, Any]:
        """(errors [n], reading): against the user's own items, hardest of all to tell apart, and those drawn.

        Of the drawn ones each stands for I / C items, so that what is estimated is the softmax over all.
        """
        own = torch.cat([true[:, None], history], 1)
        met, place = torch.unique(torch.cat([own.flatten(), negatives]), return_inverse=True)
        vectors, bias = self._vectors(met)
        near, far = place[: own.numel()].view(own.shape), place[own.numel() :]
        reading = self.read(near[:, 1:], history >= 0, vectors)
        own_scores = self._rate(reading, vectors_of(near, vectors), bias[near])
        drawn_scores = self._rate(reading, gather_rows(vectors, far), bias[far])
        known = (own[:, :, None] == own[:, None]).tril(-1).any(2) | (own < 0)  # met further left, or nothing
        counted = (negatives[:, None] == own[:, None]).any(2)
        others = [own_scores.masked_fill(known, -torch.inf)[:, 1:], drawn_scores.masked_fill(counted, -torch.inf)]
        stands_for = bias.new_ones(others[0].shape[1] + len(negatives))
        stands_for[others[0].shape[1] :] = self.shape.items / len(negatives)
        return self.error(own_scores[:, 0], torch.cat(others, 1), stands_for), reading

    # ---- scores

    def start(self) -> State:
        return self.rings.start(self.bias.device)

    def prepare(self, window: Window) -> Indexed:
        return self.rings.index(window, self.bias.device)

    def score(self, batch: Indexed, candidates: Tensor | None, state: State) -> Tensor:
        found = self._scores(self.rings.before(batch, state).partner, candidates)
        self.rings.advance(batch, state)
        return found

    def observe(self, window: Window, state: State) -> None:
        self.rings.advance(self.prepare(window), state)

    def score_query(self, users: Tensor, times: Tensor, candidates: Tensor | None, state: State) -> Tensor:
        return self._scores(self.rings.now(users, state).partner, candidates)

    def _scores(self, history: Tensor, candidates: Tensor | None) -> Tensor:
        """A piece of the events at a time. A row's bits do not depend on which other rows there are."""
        vectors, bias = self._vectors(self._all_items())
        asked = self.shape.items if candidates is None else candidates.shape[1]
        found = vectors.new_empty(len(history), asked)
        for at in range(0, len(history), self.config.piece):
            rows = slice(at, min(at + self.config.piece, len(history)))
            more = max(self.least - (rows.stop - at), 0)
            some = F.pad(history[rows], (0, 0, 0, more), value=-1)
            reading = self.read(some % len(vectors), some >= 0, vectors)
            if candidates is None:
                scores = self._rate(reading, vectors[:-1], bias[:-1])
            else:
                which = F.pad(candidates[rows], (0, 0, 0, more))
                scores = self._rate(reading, F.embedding(which, vectors), bias[which])
            found[rows] = scores[: rows.stop - at]
        return found


@dataclass(frozen=True)
class VectorConfig(SequenceConfig):
    """What models can be told that make one vector of a history."""

    temperature: float = option(0.07, "scores are cosines divided by it; 0: plain inner products", least=0)


class VectorModel(SequenceModel):
    """A reading is a vector [n, d], and scores are its products with those of the candidates."""

    def rate(self, reading: Tensor, vectors: Tensor) -> Tensor:
        if self.config.temperature:
            reading = F.normalize(reading, dim=-1) / self.config.temperature
            vectors = F.normalize(vectors, dim=-1)
        return reading @ vectors.T if vectors.dim() == 2 else torch.bmm(vectors, reading[..., None])[..., 0]


class Dropout(nn.Module):
    """Leaves a share out in training, in steps of 1/256: a byte an element, at a third of the time of torch's own."""

    def __init__(self, share: float) -> None:
        super().__init__()
        self.share = round(256 * share)

    def forward(self, x: Tensor) -> Tensor:
        if not self.training or not self.share:
            return x
        drawn = torch.empty(-(-x.numel() // 8), dtype=torch.int64, device=x.device).random_(-(1 << 63), None)
        kept = drawn.view(torch.uint8)[: x.numel()].view(x.shape) >= self.share
        return x * (kept * (256 / (256 - self.share)))


def _as(reading: Any, dtype: torch.dtype) -> Any:
    """A tensor, or a tuple of them, floats in this precision."""
    if isinstance(reading, Tensor):
        return reading.to(dtype) if reading.is_floating_point() else reading
    return type(reading)(*(_as(part, dtype) for part in reading))


def in_order(history: Tensor, there: Tensor) -> tuple[Tensor, Tensor]:
    """(int64[n, L], int64[n]): histories oldest first, what is not there behind, and how long each is."""
    long, places = there.sum(1), torch.arange(there.shape[1], device=there.device)
    return history.gather(1, (long[:, None] - 1 - places) % there.shape[1]), long


def vectors_of(history: Tensor, vectors: Tensor) -> Tensor:
    """[n, L, d]: the rows that a history names."""
    return gather_rows(vectors, history.flatten()).view(*history.shape, vectors.shape[1])
