"""SASRec: self-attention over the user's recent items.

Kang & McAuley, *Self-Attentive Sequential Recommendation* (2018).

The sum of an item's vector e and of its position's embedding p passes through blocks of causal self-attention and a
two-layer network, each with layer norm before it, dropout and a residual connection. The last item's output is the
query vector. Two blocks and one head, as published:

    x = e + p        x ← x + attention(norm(x))        x ← x + W₂ relu(W₁ norm(x) + b₁) + b₂

Differences from the paper:
- Positions are counted back from the newest item, so that a history needs no padding in front.
- An empty history has one item, "none", which has a vector too.
- The last block computes the output of the newest item only: the other outputs are not used.
- The paper trains with one negative and binary cross-entropy; here, as for all sequence models, the softmax is over
  all items, or over many sampled ones.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from dynedge.config import option
from dynedge.errors import UsageError
from dynedge.models.base import LogShape
from dynedge.models.baselines.sequential.base import Dropout, VectorConfig, VectorModel, gather_history


@dataclass(frozen=True)
class SASRecConfig(VectorConfig):
    """Settings of SASRec."""

    blocks: int = option(2, "Number of attention blocks.", least=1, most=100)
    heads: int = option(1, "Number of attention heads, a divisor of dim.", least=1)


class SASRec(VectorModel):
    def __init__(self, config: SASRecConfig, shape: LogShape) -> None:
        super().__init__(config, shape)
        if config.dim % config.heads:
            raise UsageError(f"--heads {config.heads} should divide --dim {config.dim}.")
        length = config.history_length
        self.positions = nn.Parameter(0.1 * torch.randn(length, config.dim))
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.blocks))
        self.norm = nn.LayerNorm(config.dim)
        self.dropout = Dropout(config.dropout)
        self.causal_mask: Tensor  # whether item j is as old as item i, or older
        self.register_buffer("causal_mask", torch.ones(length, length).triu().bool(), persistent=False)

    def encode_history(self, history: Tensor, mask: Tensor, vectors: Tensor) -> Tensor:
        mask = torch.cat([torch.ones_like(mask[:, :1]), mask[:, 1:]], 1)
        # Padding attends to itself: a row of the softmax must not be empty.
        diagonal = torch.eye(mask.shape[1], dtype=torch.bool, device=mask.device)
        x = self.dropout(gather_history(history, vectors) + self.positions)
        for block in self.blocks[:-1]:
            x = block(x, x, self.causal_mask & mask[:, None] | diagonal)
        newest = self.blocks[-1](x[:, :1], x, mask[:, None])
        return self.norm(newest[:, 0])


class Block(nn.Module):
    """Attention and a two-layer network, each with a residual connection."""

    def __init__(self, config: SASRecConfig) -> None:
        super().__init__()
        d, self.heads = config.dim, config.heads
        self.attention_norm, self.feed_forward_norm = nn.LayerNorm(d), nn.LayerNorm(d)
        self.query, self.key_value, self.out = nn.Linear(d, d), nn.Linear(d, 2 * d), nn.Linear(d, d)
        self.feed_forward = nn.Sequential(nn.Linear(d, d), nn.ReLU(), Dropout(config.dropout), nn.Linear(d, d))
        self.dropout = Dropout(config.dropout)

    def forward(self, queries: Tensor, x: Tensor, mask: Tensor) -> Tensor:
        """[n, A, d]: the outputs of A queries [n, A, d]; `mask` bool[n, A, L]: which items each attends to."""
        n, heads = len(x), self.heads
        query = self.query(self.attention_norm(queries)).view(n, -1, heads, queries.shape[2] // heads).transpose(1, 2)
        key, value = self.key_value(self.attention_norm(x)).view(n, x.shape[1], 2, heads, -1).permute(2, 0, 3, 1, 4)
        logits = (query @ key.transpose(2, 3) * query.shape[3] ** -0.5).masked_fill(~mask[:, None], -torch.inf)
        attended = (logits.softmax(3) @ value).transpose(1, 2).flatten(2)
        queries = queries + self.dropout(self.out(attended))
        return queries + self.dropout(self.feed_forward(self.feed_forward_norm(queries)))
