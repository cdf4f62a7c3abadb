"""SumPooling: an MLP over the sum of the recent items' embeddings, a common baseline in industry.

Covington et al., *Deep Neural Networks for YouTube Recommendations* (2016), with a sum instead of a mean. With e_j
the vectors of the last L items:

    x = Σ_j e_j / √L        query = g · x + MLP(x)        score = cosine of the query and the candidate's vector

The learned scalar g controls repeat consumption: the items of the history are closest to x itself, so a positive g
favours them and a negative one avoids them. The order of the items is ignored by design.

Differences from the paper:
- The published code that the EDGE paper ran also feeds the candidate to the MLP, beside the sum. A query vector
  ranks all items by one product, and allows all of them as negatives.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from dynedge.config import option
from dynedge.models.base import LogShape
from dynedge.models.baselines.sequential.base import Dropout, VectorConfig, VectorModel, gather_history

GAIN_SCALE = 10.0  # a single scalar among thousands of weights: scaled so that it learns this much faster


@dataclass(frozen=True)
class SumPoolingConfig(VectorConfig):
    """Settings of SumPooling."""

    history_length: int = option(5, "Number of most recent items of a user that are summed.", least=1)


class SumPooling(VectorModel):
    def __init__(self, config: SumPoolingConfig, shape: LogShape) -> None:
        super().__init__(config, shape)
        d = config.dim
        self.gain = nn.Parameter(torch.tensor(0.5 / GAIN_SCALE))
        self.mlp = nn.Sequential(nn.Linear(d, 2 * d), nn.ReLU(), Dropout(config.dropout), nn.Linear(2 * d, d))

    def encode_history(self, history: Tensor, mask: Tensor, vectors: Tensor) -> Tensor:
        x = (gather_history(history, vectors) * mask[..., None]).sum(1) * self.config.history_length**-0.5
        return GAIN_SCALE * self.gain * x + self.mlp(x)
