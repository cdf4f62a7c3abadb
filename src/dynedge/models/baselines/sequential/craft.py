"""CRAFT: every candidate attends to the user's recent items; no memory, no aggregation of neighbours.

Yi, Lei, Mo, Zheng, Wei, Ye, *Future Link Prediction Without Memory or Aggregation* (2025). With e an item's learned
vector and p the embedding of a position in the history, for candidate c and the user's last items j:

    query W_q e_c        key and value W [e_j + p_j]        a: the attention's output, head by head
    score = MLP [e_c, a, e_c ∘ a]

Differences from the paper:
- One layer of cross-attention; the MLP also sees the sum of the history, as for all pair models (pair_scoring.py).
- The time since the candidate's last event is no input: a sequence model knows the user's history alone.
- The loss is a softmax over the sampled negatives, not BPR with one of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn

from dynedge.config import option
from dynedge.errors import UsageError
from dynedge.models.base import LogShape
from dynedge.models.baselines.sequential.base import Dropout, SequenceConfig, gather_history
from dynedge.models.baselines.sequential.pair_scoring import PairModel


@dataclass(frozen=True)
class CraftConfig(SequenceConfig):
    """Settings of CRAFT."""

    history_length: int = option(30, "Number of most recent items of a user that candidates attend to.", least=1)
    heads: int = option(2, "Number of attention heads, a divisor of dim.", least=1)
    hidden: int = option(64, "Number of hidden units of the MLP.", least=1)
    negatives: int = option(127, "Number of negative samples per step, besides each user's own items.", least=1)
    full_softmax_up_to: int = option(0, "Largest number of items for a softmax over all items.", least=0)


class History(NamedTuple):
    """The encoded histories of n events."""

    key: Tensor  # [n, L, d]
    value: Tensor  # [n, L, d]
    mask: Tensor  # bool[n, L]
    total: Tensor  # [n, d]: the sum of the items' vectors


class Craft(PairModel):
    def __init__(self, config: CraftConfig, shape: LogShape) -> None:
        if config.dim % config.heads:
            raise UsageError(f"--heads {config.heads} should divide --dim {config.dim}.")
        super().__init__(config, shape)
        d = config.dim
        self.positions = nn.Parameter(0.1 * torch.randn(config.history_length, d))
        self.query, self.key_value = nn.Linear(d, d, bias=False), nn.Linear(d, 2 * d)
        self.attended, self.matched = (nn.Linear(d, config.hidden, bias=False) for _ in range(2))
        self.dropout = Dropout(config.dropout)

    def encode_rows(self, history: Tensor, mask: Tensor, vectors: Tensor) -> History:
        items = gather_history(history, vectors) * mask[..., None]
        key, value = self.key_value(self.dropout(items + self.positions)).chunk(2, -1)
        return History(key, value, mask, items.sum(1))

    def score_pairs(self, encoding: History, vectors: Tensor) -> Tensor:
        heads = self.config.heads, self.config.dim // self.config.heads
        query, key, value = (
            part.reshape(*part.shape[:-1], *heads).transpose(-2, -3)  # [(n,) H, C or L, d / H]
            for part in (self.query(vectors), encoding.key, encoding.value)
        )
        logits = query @ key.transpose(2, 3) * query.shape[-1] ** -0.5  # [n, H, C, L]
        mask = encoding.mask[:, None, None]
        weight = logits.masked_fill(~mask, torch.finfo(logits.dtype).min).softmax(3) * mask  # 0 without a history
        attended = (weight @ value).transpose(1, 2).flatten(2)
        hidden = self.attended(attended) + self.matched(attended * vectors)
        return self.mlp(encoding.total, vectors, hidden)
