"""SequenceModel: base of models that represent a user by its most recent items alone.

Legend: n events, L items of a history, m distinct items of a step, C candidates, I items of the log, d width.

A subclass defines `encode_history`, which encodes histories, and `score_candidates`, which scores candidate vectors
against an encoding. A training example is an event: its user's history before it, and its item as the target.
Examples are shuffled every epoch by default: neighbouring events of a log often belong to one user, and steps that
see few users are unstable. The State holds only integers (ring_buffer.py), so no score depends on the order of the
examples or on how the log is divided into windows.
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

from dynedge.config import MAX_WIDTH, option
from dynedge.data.log import EventLog
from dynedge.data.windows import Window
from dynedge.models.base import REPLAYED, LogShape, Loss, Model, State, Step, loggable
from dynedge.models.capabilities import SharesGraph
from dynedge.models.entity_rows import Rows
from dynedge.models.layers import ItemFeatures
from dynedge.models.ring_buffer import HistoryLookup, RingBuffers, RingIndex
from dynedge.models.state_checks import check_names
from dynedge.ops.gather_linear import gather_rows

OBSERVED_TOGETHER = 256  # training windows after which the state advances
MIN_ROWS = 8  # rows scored at once: matrix products of fewer than four rows are summed in another order


@dataclass(frozen=True)
class SequenceConfig:
    """Settings of every sequence model."""

    dim: int = option(64, "Width of item embeddings and of the history encoding.", least=1, most=MAX_WIDTH)
    history_length: int = option(10, "Number of most recent items of a user that are encoded.", least=1)
    window_events: int = option(512, "Number of events per training step.", least=1)
    shuffle: bool = option(True, "New random order of the training events every epoch instead of the log's order.")
    negatives: int = option(512, "Number of negative samples per step, besides each user's own items.", least=1)
    full_softmax_up_to: int = option(4096, "Largest number of items for a softmax over all items.", least=0)
    categories: bool = option(True, "Item vectors as sums of id and category embeddings; false: id embeddings only.")
    dropout: float = option(0.2, "Dropout rate of the history encoder.", least=0, most=1)
    score_batch: int = option(512, "Number of events scored at once, to bound memory.", least=1)


TRAINING = {"row_lr": 3e-3}  # training fields: at the usual 1e-2, item embeddings overfit
SEARCH = {
    "training.lr": (3e-4, 1e-3, 3e-3),
    "training.row_lr": (1e-3, 3e-3, 1e-2),
    "model.history_length": (5, 10, 20, 50),
    "model.dropout": (0.0, 0.2, 0.5),
    "model.shuffle": (True, False),
}
VECTOR_SEARCH = SEARCH | {"model.temperature": (0.05, 0.07, 0.1, 0.2)}


class SequenceBatch(NamedTuple):
    """A training window: its events, and the lookup of any event's history.

    `shuffled`: the events that an epoch puts into a random order. None: a window after training, which is learned
    together with as many events before it (replay). `observed`: the events that the state advances over after the
    step. No step reads the state, so it advances by many windows at once.
    """

    window: Window
    lookup: HistoryLookup
    shuffled: range | None
    observed: range


class SequenceModel(Model, SharesGraph):
    min_rows = MIN_ROWS  # histories are padded to at least this many rows

    def __init__(self, config: Any, shape: LogShape) -> None:
        super().__init__(config, shape)
        self.ring_buffers = RingBuffers(0, shape.users, config.history_length)
        self.items = ItemFeatures(shape, config.dim, ids=True, categories=config.categories)
        self.bias = nn.Parameter(torch.zeros(shape.items + 1, 1))
        self._order: tuple[tuple[int, int], Tensor] | None = None
        self._lookup: tuple[EventLog, HistoryLookup] | None = None

    @property
    def own_negatives(self) -> int:
        """Number of a user's most recent items that are negatives, where negatives are sampled."""
        return int(getattr(self.config, "own_negatives", self.config.history_length))

    def entity_rows(self) -> dict[str, Rows]:
        return {"bias": Rows(items=True, none=True)} | self.items.entity_rows("items.")

    def grown_tensors(self, shape: LogShape, seed: int) -> dict[str, Tensor]:
        return super().grown_tensors(shape, seed) | {"items.codes": self.items.codes_for(shape)}

    # ---- what a subclass computes

    @abstractmethod
    def encode_history(self, history: Tensor, mask: Tensor, vectors: Tensor) -> Any:
        """The encoding of n histories, a tensor or a named tuple of tensors with n rows.

        `history` int64[n, L] are rows of `vectors` [m, d], or of each event's own [n, m, d], newest first; `mask`
        bool[n, L] is false where a history has no item.
        """

    @abstractmethod
    def score_candidates(self, encoding: Any, vectors: Tensor) -> Tensor:
        """[n, C]: scores of candidates by their vectors, [C, d] shared by all events or [n, C, d] per event."""

    def event_losses(self, true: Tensor, negatives: Tensor, negative_weight: Tensor) -> Tensor:
        """[n]: the loss of each event, from the scores of its item [n] and of the negatives [n, C]; −inf: masked.

        `negative_weight` [C] is the number of items that each negative represents.
        """
        return torch.cat([true[:, None], negatives + negative_weight.log()], 1).logsumexp(1) - true

    def auxiliary_loss(self, encoding: Any) -> Tensor:
        """A scalar that is added to the loss of a step."""
        return torch.zeros((), device=self.bias.device)

    def _scores_with_bias(self, encoding: Any, vectors: Tensor, bias: Tensor) -> Tensor:
        with torch.autocast(vectors.device.type, enabled=False):  # scores in bfloat16 would tie
            return self.score_candidates(_cast(encoding, vectors.dtype), vectors) + bias

    def _item_vectors(self, items: Tensor) -> tuple[Tensor, Tensor]:
        """Vectors [m, d] and biases [m] of items; −1 is the item "none"."""
        parts = self.items(items).view(len(items), -1, self.config.dim)
        bias = F.embedding(items % (self.shape.items + 1), self.bias, sparse=True)[:, 0]
        return parts.sum(1), bias

    def _all_items(self) -> Tensor:
        """All items and, as the last row, "none": the row of an item is its id modulo I + 1."""
        return torch.arange(self.shape.items + 1, device=self.bias.device)

    # ---- training

    def num_windows(self, train_end: int) -> int:
        return max(1, round(train_end / self.config.window_events))

    def batches(self, log: EventLog, windows: Sequence[range], first: int = 0) -> Iterator[SequenceBatch]:
        train_end = windows[-1].stop
        lookup = self._history_lookup(log, train_end)
        for number, events in enumerate(windows[first:], first):
            is_observed = (number + 1) % OBSERVED_TOGETHER == 0 or number + 1 == len(windows)
            start = windows[number - number % OBSERVED_TOGETHER].start if is_observed else events.stop
            yield SequenceBatch(Window(log, events), lookup, range(train_end), range(start, events.stop))

    def continued_batch(self, window: Window, state: State) -> SequenceBatch:
        lookup = self._history_lookup(window.log, len(window.log))
        return SequenceBatch(window, lookup, None, window.events)

    def _history_lookup(self, log: EventLog, end: int) -> HistoryLookup:
        """Of the log's first `end` events; the latest one is kept."""
        if self._lookup is None or self._lookup[0] is not log or self._lookup[1].end != end:
            self._lookup = log, HistoryLookup(log, end, 0, self.config.history_length, self.bias.device)
        return self._lookup[1]

    def _training_events(self, batch: SequenceBatch, step: Step) -> Tensor:
        """The events of a training step."""
        events, device = batch.window.events, self.bias.device
        if batch.shuffled is None:
            first = max(0, events.start - REPLAYED)
            rng, older = np.random.default_rng([step.seed, step.epoch, step.window]), min(events.start, len(events))
            drawn = np.concatenate([np.arange(events.start, events.stop), rng.integers(first, events.start, older)])
            return torch.from_numpy(drawn).to(device)
        if not self.config.shuffle:
            return torch.arange(events.start, events.stop, device=device)
        epoch = step.seed, step.epoch
        if self._order is None or self._order[0] != epoch:
            order = np.random.default_rng(epoch).permutation(len(batch.shuffled))
            self._order = epoch, torch.from_numpy(order).to(device)
        return self._order[1][events.start : events.stop]

    def sample_negatives(self, step: Step) -> Tensor | None:
        """int64[C]: the negatives of a step; None where all items are candidates."""
        if self.shape.items <= self.config.full_softmax_up_to:
            return None
        return torch.randint(self.shape.items, (self.config.negatives,), generator=step.generator())

    def loss(self, batch: SequenceBatch, state: State, step: Step) -> Loss:
        return self.loss_of(*self.step_inputs(batch, step))

    def step_inputs(self, batch: SequenceBatch, step: Step) -> tuple[Tensor, ...]:
        events, negatives = self._training_events(batch, step), self.sample_negatives(step)
        sampled = () if negatives is None else (negatives.to(self.bias.device),)
        return batch.lookup.histories(events), batch.lookup.partners(events), *sampled

    def loss_of(self, *inputs: Tensor) -> Loss:
        losses, encoding = self._full_losses(*inputs) if len(inputs) == 2 else self._sampled_losses(*inputs)
        total = losses.sum() / max(len(losses), 1) + self.auxiliary_loss(encoding)
        return Loss(total, {"loss": loggable(total.detach())})

    def after_step(self, batch: SequenceBatch, state: State) -> None:
        if batch.observed:
            self.observe(Window(batch.window.log, batch.observed), state)

    def _full_losses(self, history: Tensor, true: Tensor) -> tuple[Tensor, Any]:
        """(losses [n], encoding), with all items as candidates."""
        vectors, bias = self._item_vectors(self._all_items())
        encoding = self.encode_history(history % len(vectors), history >= 0, vectors)
        scores = self._scores_with_bias(encoding, vectors[:-1], bias[:-1])
        true_scores, others = scores.gather(1, true[:, None])[:, 0], scores.scatter(1, true[:, None], -torch.inf)
        return self.event_losses(true_scores, others, torch.ones_like(bias[:-1])), encoding

    def _sampled_losses(self, history: Tensor, true: Tensor, negatives: Tensor) -> tuple[Tensor, Any]:
        """(losses [n], encoding), against a user's own recent items, the hardest negatives, and the sampled ones.

        A sampled negative represents I / C items, so that the loss estimates the softmax over all items.
        """
        own, scored = torch.cat([true[:, None], history], 1), 1 + self.own_negatives
        items = torch.cat([own.flatten(), negatives])
        if items.is_cuda:  # reading how many are distinct would wait for the GPU: a row for each occurrence
            row = torch.arange(len(items), device=items.device)
        else:
            items, row = torch.unique(items, return_inverse=True)
        vectors, bias = self._item_vectors(items)
        own_rows, negative_rows = row[: own.numel()].view(own.shape), row[own.numel() :]
        if items.is_cuda and len(own) >= self.min_rows:
            own_vectors, of_negatives = vectors[: own.numel()].view(*own.shape, -1), vectors[own.numel() :]
            own_bias, bias_of_negatives = bias[: own.numel()].view(own.shape)[:, :scored], bias[own.numel() :]
            columns = torch.arange(history.shape[1], device=history.device).expand_as(history)
            encoding = self.encode_history(columns, history >= 0, own_vectors[:, 1:])
            own_vectors = own_vectors[:, :scored]
        else:
            encoding = self.encode_history(own_rows[:, 1:], history >= 0, vectors)
            own_rows = own_rows[:, :scored]
            own_vectors, of_negatives = gather_history(own_rows, vectors), gather_rows(vectors, negative_rows)
            own_bias, bias_of_negatives = bias[own_rows], bias[negative_rows]
        own = own[:, :scored]
        own_scores = self._scores_with_bias(encoding, own_vectors, own_bias)
        sampled_scores = self._scores_with_bias(encoding, of_negatives, bias_of_negatives)
        duplicate = (own[:, :, None] == own[:, None]).tril(-1).any(2) | (own < 0)  # further left already, or none
        in_own = (negatives[:, None] == own[:, None]).any(2)
        scores = [
            own_scores.masked_fill(duplicate, -torch.inf)[:, 1:],
            sampled_scores.masked_fill(in_own, -torch.inf),
        ]
        weight = bias.new_ones(scores[0].shape[1] + len(negatives))
        weight[scores[0].shape[1] :] = self.shape.items / len(negatives)
        return self.event_losses(own_scores[:, 0], torch.cat(scores, 1), weight), encoding

    # ---- scoring

    def start(self) -> State:
        return self.ring_buffers.start(self.bias.device)

    def check_state(self, state: State) -> None:
        check_names(state, self.start())
        self.ring_buffers.check(state, self.shape.items)

    def prepare(self, window: Window) -> RingIndex:
        return self.ring_buffers.index(window, self.bias.device)

    def score(self, batch: RingIndex, candidates: Tensor | None, state: State) -> Tensor:
        scores = self._score_histories(self.ring_buffers.history_before(batch, state).partner, candidates)
        self.ring_buffers.advance(batch, state)
        return scores

    def observe(self, window: Window, state: State) -> None:
        self.ring_buffers.advance(self.prepare(window), state)

    def score_query(self, users: Tensor, times: Tensor, candidates: Tensor | None, state: State) -> Tensor:
        return self._score_histories(self.ring_buffers.current_history(users, state).partner, candidates)

    def _score_histories(self, history: Tensor, candidates: Tensor | None) -> Tensor:
        """[n, I] or [n, C], in batches of events; the bits of a row do not depend on the other rows."""
        vectors, bias = self._item_vectors(self._all_items())
        count = self.shape.items if candidates is None else candidates.shape[1]
        scores = vectors.new_empty(len(history), count)
        for start in range(0, len(history), self.config.score_batch):
            rows = slice(start, min(start + self.config.score_batch, len(history)))
            padding = max(self.min_rows - (rows.stop - start), 0)
            padded = F.pad(history[rows], (0, 0, 0, padding), value=-1)
            encoding = self.encode_history(padded % len(vectors), padded >= 0, vectors)
            if candidates is None:
                batch_scores = self._scores_with_bias(encoding, vectors[:-1], bias[:-1])
            else:
                items = F.pad(candidates[rows], (0, 0, 0, padding))
                batch_scores = self._scores_with_bias(encoding, F.embedding(items, vectors), bias[items])
            scores[rows] = batch_scores[: rows.stop - start]
        return scores


@dataclass(frozen=True)
class VectorConfig(SequenceConfig):
    """Settings of models that encode a history as one query vector."""

    temperature: float = option(0.07, "Temperature of cosine scores; 0: plain inner products.", least=0)


class VectorModel(SequenceModel):
    """The encoding is a query vector [n, d], and scores are its inner products with the candidates' vectors."""

    def score_candidates(self, encoding: Tensor, vectors: Tensor) -> Tensor:
        if self.config.temperature:
            encoding = F.normalize(encoding, dim=-1) / self.config.temperature
            vectors = F.normalize(vectors, dim=-1)
        return encoding @ vectors.T if vectors.dim() == 2 else torch.bmm(vectors, encoding[..., None])[..., 0]


class Dropout(nn.Module):
    """Dropout with a rate in steps of 1/256: on a CPU by one random byte per element, a third of torch's time."""

    def __init__(self, rate: float) -> None:
        super().__init__()
        self.rate = round(256 * rate)

    def forward(self, x: Tensor) -> Tensor:
        if not self.training or not self.rate:
            return x
        if x.is_cuda:
            return F.dropout(x, self.rate / 256)
        random = torch.empty(-(-x.numel() // 8), dtype=torch.int64, device=x.device).random_(-(1 << 63), None)
        mask = random.view(torch.uint8)[: x.numel()].view(x.shape) >= self.rate
        return x * (mask * (256 / (256 - self.rate)))


def _cast(encoding: Any, dtype: torch.dtype) -> Any:
    """A tensor, or a named tuple of tensors, with floating-point tensors in this precision."""
    if isinstance(encoding, Tensor):
        return encoding.to(dtype) if encoding.is_floating_point() else encoding
    return type(encoding)(*(_cast(part, dtype) for part in encoding))


def oldest_first(history: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """(int64[n, L], int64[n]): histories oldest first with the padding at the end, and their lengths."""
    length, columns = mask.sum(1), torch.arange(mask.shape[1], device=mask.device)
    return history.gather(1, (length[:, None] - 1 - columns) % mask.shape[1]), length


def gather_history(history: Tensor, vectors: Tensor) -> Tensor:
    """[n, L, d]: the rows of `vectors` that histories refer to, [m, d] or [n, m, d]."""
    if vectors.dim() == 3:
        return vectors.gather(1, history[..., None].expand(-1, -1, vectors.shape[2]))
    return gather_rows(vectors, history.flatten()).view(*history.shape, vectors.shape[1])
