"""StaticModel: base of models that train one fixed vector per user and item: CTDNE and dynAERNN.

Legend: n events, q items, U users, I items, C candidates, d width of a vector.

The vectors are learned from the graph's structure alone. Links are predicted by a logistic regression on the
elementwise product of two vectors, log odds = w · (x_u ∘ x_i) + b + c_i, with a bias c_i of the item: without it,
users that training has not seen would not even get popular items. It is trained along with the vectors, on the
training events and randomly sampled items, without passing a gradient into the vectors. Items are ranked by the log
odds. Events after training are ignored: the State is empty.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dynedge.data.log import EventLog
from dynedge.data.windows import Window
from dynedge.models.base import LogShape, Loss, Model, State, Step
from dynedge.models.capabilities import HasVectors
from dynedge.models.entity_rows import Rows
from dynedge.ops.all_scores import all_scores

LR_SCALE = 10.0  # the regression learns this much faster, so that it keeps up with the vectors


class StaticModel(Model, HasVectors):
    users: Tensor  # [U, d]: vectors at the end of the last epoch
    items: Tensor  # [I, d]

    def __init__(self, config: Any, shape: LogShape) -> None:
        super().__init__(config, shape)
        self.continued = False  # whether it learns after training
        self.register_buffer("users", torch.zeros(shape.users, config.dim))
        self.register_buffer("items", torch.zeros(shape.items, config.dim))
        self.weight, self.bias = nn.Parameter(torch.ones(config.dim)), nn.Parameter(torch.zeros(()))
        self.item_bias = nn.Parameter(torch.zeros(shape.items, 1))
        for parameter in (self.weight, self.bias):
            parameter.lr_scale = LR_SCALE  # type: ignore[attr-defined]

    def entity_rows(self) -> dict[str, Rows]:
        return {"users": Rows(users=True), "items": Rows(items=True), "item_bias": Rows(items=True)}

    # ---- what a subclass computes

    @abstractmethod
    def embedding_loss(self, window: Window, step: Step) -> tuple[Tensor, Tensor, Tensor] | None:
        """(loss of the window, x_u [n, d], x_i [n, d] of its events); None: the window trains nothing."""

    @abstractmethod
    def set_training_events(self, log: EventLog, end: int) -> None:
        """Sets the graph that vectors are learned from: the log's first `end` events."""

    @abstractmethod
    def item_vectors(self, items: Tensor, window: Window) -> Tensor:
        """[q, d]: the vectors of items as the events of this training window see them."""

    @abstractmethod
    def final_vectors(self) -> tuple[Tensor, Tensor]:
        """The vectors of all users and of all items."""

    # ---- the contract

    def batches(self, log: EventLog, windows: Sequence[range], first: int = 0) -> Iterator[Window]:
        return (Window(log, events) for events in windows[first:])

    def continued_batch(self, window: Window, state: State) -> Window:
        self.set_training_events(window.log, window.events.stop)
        self.continued = True
        return window

    def loss(self, batch: Window, state: State, step: Step) -> Loss:
        result = self.embedding_loss(batch, step) if len(batch) else None
        if result is None:
            return Loss(torch.zeros(()), {"loss": 0.0, "link_loss": 0.0})
        embedding_loss, user, item = result
        sampled = torch.randint(self.shape.items, (self.config.negatives,), generator=step.generator())
        sampled, true = sampled.to(self.weight.device), torch.from_numpy(batch.item).long().to(self.weight.device)
        with torch.no_grad():
            negative = self.item_vectors(sampled, batch)
        query = user.detach() * self.weight
        link_loss = self._link_loss(query, (true, item.detach()), (sampled, negative))
        log = {"loss": float(embedding_loss.detach()), "link_loss": float(link_loss.detach())}
        return Loss(embedding_loss + link_loss, log)

    def _link_loss(self, query: Tensor, true: tuple[Tensor, Tensor], negative: tuple[Tensor, Tensor]) -> Tensor:
        """From queries [n, d], and the ids and vectors of the events' items and of the sampled ones."""
        (true_bias, negative_bias) = (
            F.embedding(ids, self.item_bias, sparse=True)[:, 0] + self.bias for ids in (true[0], negative[0])
        )
        positive_odds, negative_odds = (query * true[1]).sum(1) + true_bias, query @ negative[1].T + negative_bias
        return F.softplus(-positive_odds).mean() + F.softplus(negative_odds).mean()

    @torch.no_grad()
    def end_epoch(self, epoch: int) -> dict[str, float]:
        users, items = self.final_vectors()
        self.users.copy_(users)
        self.items.copy_(items)
        return {}

    def score(self, batch: Window, candidates: Tensor | None, state: State) -> Tensor:
        return self._log_odds(torch.from_numpy(batch.user).long(), candidates)

    def observe(self, window: Window, state: State) -> None:
        pass

    def vectors(self, state: State) -> tuple[Tensor, Tensor]:
        return self.users, self.items

    def score_query(self, users: Tensor, times: Tensor, candidates: Tensor | None, state: State) -> Tensor:
        return self._log_odds(users, candidates)

    def _log_odds(self, users: Tensor, candidates: Tensor | None) -> Tensor:
        """[n, I] or [n, C], without the bias b, which is the same for all."""
        device: Any = self.weight.device
        query = self.users[users.to(device)] * self.weight.detach()
        no_updates = torch.full((len(users),), -1, device=device)
        scores = (
            all_scores(query, self.items, None, no_updates, no_updates, self.items) + self.item_bias[:, 0].detach()
        )
        return scores if candidates is None else scores.gather(1, candidates.to(device))
