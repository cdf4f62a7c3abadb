"""SumPooling: embeddings of the last items, summed, through an MLP: what much of industry runs.

With x = Σ_j e_j / √L the query is g·x + MLP(x), and a candidate's score its cosine with the query (Covington et al.,
*Deep Neural Networks for YouTube Recommendations*, 2016, with a sum for a mean). g is one number, learned: an item of
the history is nearest to x itself, so that g says how much users come back to items, or avoid them.

The published code that the EDGE paper ran puts the candidate into the MLP too, beside the sum; vectors rank every
item at once, and let all of them be negatives. Order is lost, by design: the last items count alike.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from dynedge.config import option
from dynedge.models.base import LogShape
from dynedge.models.baselines.sequential.base import Dropout, VectorConfig, VectorModel, vectors_of

PACE = 10.0  # one number among thousands of weights: it learns so many times as fast


@dataclass(frozen=True)
class SumPoolingConfig(VectorConfig):
    """The sum of the last items."""

    length: int = option(5, "items of a user's history that are looked at", least=1)


class SumPooling(VectorModel):
    def __init__(self, config: SumPoolingConfig, shape: LogShape) -> None:
        super().__init__(config, shape)
        d = config.dim
        self.again = nn.Parameter(torch.tensor(0.5 / PACE))
        self.head = nn.Sequential(nn.Linear(d, 2 * d), nn.ReLU(), Dropout(config.dropout), nn.Linear(2 * d, d))

    def read(self, history: Tensor, there: Tensor, vectors: Tensor) -> Tensor:
        x = (vectors_of(history, vectors) * there[..., None]).sum(1) * self.config.length**-0.5
        return PACE * self.again * x + self.head(x)
