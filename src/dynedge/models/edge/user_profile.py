"""User profile: all items that a user has interacted with, as one vector in the query.

A recurrent state forgets, but what a user met long ago still shows taste. The profile is the weighted sum of the
learned vectors of the user's items. It is added to the query's part for id embeddings, so that a candidate is scored
by its learned similarity to each of these items. An item's weight is that of its bucket in the repeat list
(repeat_bonus.py). Learned vectors overfit the training events, so in training a random half of the items is left out.

Legend: n events, L listed items of all events together, I items, d width.
"""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dynedge.models.edge.config import RecurrenceConfig
from dynedge.models.edge.repeat_bonus import BUCKETS
from dynedge.models.edge.score_lists import ScoreLists
from dynedge.models.growable import grown
from dynedge.ops.embedding_bag import embedding_bag


def has_profile(config: RecurrenceConfig, items: int) -> bool:
    """Whether a model of a log with this number of items has a profile: only with ids, lists and a full softmax."""
    most = min(config.candidate_id_up_to, config.full_softmax_up_to)
    return config.profile and config.history and items <= most


class UserProfile(nn.Module):
    def __init__(self, items: int, dim: int, dropout: float) -> None:
        super().__init__()
        self.items = nn.Parameter(torch.zeros(items, dim))
        self.weight = nn.Parameter(torch.ones(BUCKETS))  # few numbers, which learn faster
        self.weight.lr_scale = 10.0  # type: ignore[attr-defined]
        self.dropout = dropout

    def grow(self, items: int) -> None:
        """A new item has no vector, as those without training events."""
        self.items = cast(nn.Parameter, grown(self.items, items, 0.0))

    def forward(self, lists: ScoreLists) -> Tensor:
        """[n, d]"""
        dropping = self.training and self.dropout > 0
        noise = F.dropout(self.items.new_ones(len(lists.item)), self.dropout) if dropping else None
        bucket = lists.bucket[:, 0]  # those of successors alone are beyond the weights: of value 0
        return embedding_bag(self.items, self.weight, bucket, noise, lists.start, lists.event, lists.item)
