"""Models that give every user and item a vector in training, which then stays: what CTDNE and dynAERNN share.

Legend: n events, U users, I items, d width of a vector.

Their vectors come from structure alone, and whether two entities meet is judged afterwards: a logistic regression on
the elementwise product of the two, log odds = w · (x_u ∘ x_i) + b, learned beside the vectors, with no gradient into
them, from the training events and items drawn at random. Items are ranked by the log odds. Nothing is remembered of
events after training: the State is empty.
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
from dynedge.ops.all_scores import all_scores

LR_SCALE = 10.0  # the regression is to be where the vectors are: it learns this much faster


class StaticModel(Model, HasVectors):
    users: Tensor  # [U, d]: as they were when the last epoch ended
    items: Tensor  # [I, d]

    def __init__(self, config: Any, shape: LogShape) -> None:
        super().__init__(config, shape)
        self.register_buffer("users", torch.zeros(shape.users, config.dim))
        self.register_buffer("items", torch.zeros(shape.items, config.dim))
        self.weight, self.bias = nn.Parameter(torch.ones(config.dim)), nn.Parameter(torch.zeros(()))
        for parameter in (self.weight, self.bias):
            parameter.lr_scale = LR_SCALE  # type: ignore[attr-defined]

    # ---- what a model says of itself

    @abstractmethod
    def learn(self, window: Window, step: Step) -> tuple[Tensor, Tensor, Tensor] | None:
        """(error of the window, x_u [n, d], x_i [n, d] of its events); None: nothing is known of them yet."""

    @abstractmethod
    def item_vectors(self, items: Tensor, window: Window) -> Tensor:
        """[q, d]: the vectors of any items, as an event of the window would meet them."""

    @abstractmethod
    def final_vectors(self) -> tuple[Tensor, Tensor]:
        """The vectors of all users and of all items."""

    # ---- the contract

    def batches(self, log: EventLog, windows: Sequence[range], first: int = 0) -> Iterator[Window]:
        return (Window(log, events) for events in windows[first:])

    def loss(self, batch: Window, state: State, step: Step) -> Loss:
        found = self.learn(batch, step) if len(batch) else None
        if found is None:
            return Loss(torch.zeros(()), {"loss": 0.0, "link_loss": 0.0})
        error, user, item = found
        drawn = torch.randint(self.shape.items, (self.config.negatives,), generator=step.generator())
        with torch.no_grad():
            negative = self.item_vectors(drawn.to(self.weight.device), batch)
        link = self._link_error(user.detach() * self.weight, item.detach(), negative)
        return Loss(error + link, {"loss": float(error.detach()), "link_loss": float(link.detach())})

    def _link_error(self, asked: Tensor, true: Tensor, negative: Tensor) -> Tensor:
        yes, no = (asked * true).sum(1) + self.bias, asked @ negative.T + self.bias
        return F.softplus(-yes).mean() + F.softplus(no).mean()

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
        """[n, I] or [n, C]; but for the bias, which all share."""
        device: Any = self.weight.device
        asked = self.users[users.to(device)] * self.weight.detach()
        nothing = torch.full((len(users),), -1, device=device)
        found = all_scores(asked, self.items, None, nothing, nothing, self.items)
        return found if candidates is None else found.gather(1, candidates.to(device))
