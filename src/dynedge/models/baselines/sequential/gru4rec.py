"""GRU4Rec: a GRU walks over a user's items, and its last state is the query.

Hidden state and losses as in Hidasi & Karatzoglou, *Recurrent Neural Networks with Top-k Gains* (2018), over the 2016
paper's model. With r_i the score of the true item, r_j those of the negatives, s_j their softmax:

    bpr-max   −log Σ_j s_j σ(r_i − r_j) + λ Σ_j s_j r_j²
    top1-max  Σ_j s_j (σ(r_j − r_i) + σ(r_j²))
    softmax   −log softmax of r_i among all

The original carries each session's hidden state along and cuts the gradient after every step. Here, as in the EDGE
paper's runs, learning is by example: the GRU starts anew on the last L items of each, and the gradient goes through
all of them. That learns what to keep over many steps, and makes a score depend on L integers and nothing else.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dynedge.config import option
from dynedge.models.base import LogShape
from dynedge.models.baselines.sequential.base import Dropout, VectorConfig, VectorModel, in_order, vectors_of

LOSSES = "softmax", "bpr-max", "top1-max"


@dataclass(frozen=True)
class GRU4RecConfig(VectorConfig):
    """A GRU over the last items."""

    length: int = option(20, "items of a user's history that are looked at", least=1)
    loss: str = option("softmax", "which loss", choices=LOSSES)
    penalty: float = option(0.5, "λ of bpr-max: how much negatives' scores are kept small", least=0)


class GRU4Rec(VectorModel):
    def __init__(self, config: GRU4RecConfig, shape: LogShape) -> None:
        super().__init__(config, shape)
        d = config.dim
        self.gru = nn.GRU(d, d, batch_first=True)
        self.begin = nn.Parameter(torch.zeros(1, 1, d))  # the state before the first item
        self.out = nn.Linear(d, d)
        self.drop = Dropout(config.dropout)

    def read(self, history: Tensor, there: Tensor, vectors: Tensor) -> Tensor:
        walked, long = in_order(history, there)
        begin = self.begin.expand(1, len(history), -1)
        with torch.autocast(vectors.device.type, enabled=False):  # cuDNN's would be in float16: gradients vanish
            states, _ = self.gru(self.drop(vectors_of(walked, vectors)), begin.contiguous())
        states = torch.cat([begin[0][:, None], states], 1)  # after no item, after one, …
        return self.out(self.drop(states[torch.arange(len(long), device=long.device), long]))

    def error(self, true: Tensor, others: Tensor, stands_for: Tensor) -> Tensor:
        if self.config.loss == "softmax":
            return super().error(true, others, stands_for)
        share, log_share, nobody = others.softmax(1), others.log_softmax(1), others.isinf()
        others = others.masked_fill(nobody, 0)
        if self.config.loss == "top1-max":
            return (share * ((others - true[:, None]).sigmoid() + others.square().sigmoid())).sum(1)
        won = F.logsigmoid(true[:, None] - others) + log_share  # of nobody −inf, with a gradient of 0
        return self.config.penalty * (share * others.square()).sum(1) - won.logsumexp(1)
