"""GRU4Rec: a GRU over the user's recent items, whose last hidden state is the query vector.

Model of Hidasi et al., *Session-based Recommendations with Recurrent Neural Networks* (2016), with the losses of
Hidasi & Karatzoglou, *Recurrent Neural Networks with Top-k Gains* (2018). With r_i the score of the true item, r_j
the scores of the negatives, s_j the softmax of the r_j, and λ the regularization weight:

    bpr-max   −log Σ_j s_j σ(r_i − r_j) + λ Σ_j s_j r_j²
    top1-max  Σ_j s_j (σ(r_j − r_i) + σ(r_j²))
    softmax   −log softmax of r_i among all

Differences from the paper:
- The original carries each session's hidden state along and truncates the gradient after every step. Here, as in the
  experiments of the EDGE paper, the GRU starts anew on the last L items of every example, and the gradient flows
  through all of them: it learns what to remember over many steps, and a score depends on L integers alone.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dynedge.config import option
from dynedge.models.base import LogShape
from dynedge.models.baselines.sequential.base import Dropout, VectorConfig, VectorModel, gather_history, oldest_first

LOSSES = "softmax", "bpr-max", "top1-max"


@dataclass(frozen=True)
class GRU4RecConfig(VectorConfig):
    """Settings of GRU4Rec."""

    history_length: int = option(20, "Number of most recent items of a user that are encoded.", least=1)
    loss: str = option("softmax", "Training loss.", choices=LOSSES)
    score_penalty: float = option(0.5, "Regularization weight λ of negative scores in bpr-max.", least=0)


class GRU4Rec(VectorModel):
    def __init__(self, config: GRU4RecConfig, shape: LogShape) -> None:
        super().__init__(config, shape)
        d = config.dim
        self.gru = nn.GRU(d, d, batch_first=True)
        self.initial_state = nn.Parameter(torch.zeros(1, 1, d))
        self.out = nn.Linear(d, d)
        self.dropout = Dropout(config.dropout)

    def encode_history(self, history: Tensor, mask: Tensor, vectors: Tensor) -> Tensor:
        ordered, length = oldest_first(history, mask)
        initial = self.initial_state.expand(1, len(history), -1)
        with torch.autocast(vectors.device.type, enabled=False):  # cuDNN would use float16: gradients vanish
            states, _ = self.gru(self.dropout(gather_history(ordered, vectors)), initial.contiguous())
        states = torch.cat([initial[0][:, None], states], 1)  # after no item, after one, …
        return self.out(self.dropout(states[torch.arange(len(length), device=length.device), length]))

    def event_losses(self, true: Tensor, negatives: Tensor, negative_weight: Tensor) -> Tensor:
        if self.config.loss == "softmax":
            return super().event_losses(true, negatives, negative_weight)
        weight, log_weight, masked = negatives.softmax(1), negatives.log_softmax(1), negatives.isinf()
        negatives = negatives.masked_fill(masked, 0)
        if self.config.loss == "top1-max":
            return (weight * ((negatives - true[:, None]).sigmoid() + negatives.square().sigmoid())).sum(1)
        log_wins = F.logsigmoid(true[:, None] - negatives) + log_weight  # masked: −inf, with a gradient of 0
        return self.config.score_penalty * (weight * negatives.square()).sum(1) - log_wins.logsumexp(1)
