"""SASRec: self-attention over a user's last items (Kang & McAuley, *Self-Attentive Sequential Recommendation*, 2018).

An item's vector and that of its place go through blocks of causal attention and a two-layer network, each with
layer norm before, dropout and a residual; the last item's output is the query. Two blocks, one head, as published.

Places are counted back from the newest item, so that a history needs no padding in front. An empty history has one
item, "none", which has a vector too. In the last block only the newest item asks: nobody reads what the others get.
Published with one negative and binary cross-entropy; here, as for all, the softmax is over all items, or many.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from dynedge.config import option
from dynedge.errors import UsageError
from dynedge.models.base import LogShape
from dynedge.models.baselines.sequential.base import Dropout, VectorConfig, VectorModel, vectors_of


@dataclass(frozen=True)
class SASRecConfig(VectorConfig):
    """Self-attention over the last items."""

    blocks: int = option(2, "blocks of attention", least=1)
    heads: int = option(1, "attention heads; they divide dim", least=1)


class SASRec(VectorModel):
    def __init__(self, config: SASRecConfig, shape: LogShape) -> None:
        super().__init__(config, shape)
        if config.dim % config.heads:
            raise UsageError(f"--heads {config.heads} should divide --dim {config.dim}.")
        self.places = nn.Parameter(0.1 * torch.randn(config.length, config.dim))
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.blocks))
        self.norm = nn.LayerNorm(config.dim)
        self.drop = Dropout(config.dropout)
        self.older: Tensor  # whether column j is as old as row i, or older
        self.register_buffer("older", torch.ones(config.length, config.length).triu().bool(), persistent=False)

    def read(self, history: Tensor, there: Tensor, vectors: Tensor) -> Tensor:
        there = torch.cat([torch.ones_like(there[:, :1]), there[:, 1:]], 1)
        itself = torch.eye(
            there.shape[1], dtype=torch.bool, device=there.device
        )  # what is not there sees something too
        x = self.drop(vectors_of(history, vectors) + self.places)
        for block in self.blocks[:-1]:
            x = block(x, x, self.older & there[:, None] | itself)
        newest = self.blocks[-1](x[:, :1], x, there[:, None])
        return self.norm(newest[:, 0])


class Block(nn.Module):
    def __init__(self, config: SASRecConfig) -> None:
        super().__init__()
        d, self.heads = config.dim, config.heads
        self.before, self.between = nn.LayerNorm(d), nn.LayerNorm(d)
        self.query, self.key_value, self.out = nn.Linear(d, d), nn.Linear(d, 2 * d), nn.Linear(d, d)
        self.feed = nn.Sequential(nn.Linear(d, d), nn.ReLU(), Dropout(config.dropout), nn.Linear(d, d))
        self.drop = Dropout(config.dropout)

    def forward(self, asking: Tensor, x: Tensor, seen: Tensor) -> Tensor:
        """[n, A, d] of A asking items; `seen` bool[n, A, L] says what each may look at."""
        n, heads = len(x), self.heads
        query = self.query(self.before(asking)).view(n, -1, heads, asking.shape[2] // heads).transpose(1, 2)
        key, value = self.key_value(self.before(x)).view(n, x.shape[1], 2, heads, -1).permute(2, 0, 3, 1, 4)
        weight = (query @ key.transpose(2, 3) * query.shape[3] ** -0.5).masked_fill(~seen[:, None], -torch.inf)
        read = (weight.softmax(3) @ value).transpose(1, 2).flatten(2)
        asking = asking + self.drop(self.out(read))
        return asking + self.drop(self.feed(self.between(asking)))
