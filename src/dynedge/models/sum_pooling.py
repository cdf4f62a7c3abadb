"""SumPooling: embeddings of the last items, summed, through an MLP: what much of industry runs.

The query is MLP(Σ_j e_j / √L) and a candidate's score its inner product with the query (Covington et al., *Deep
Neural Networks for YouTube Recommendations*, 2016). The published code that the EDGE paper ran puts the candidate
into the MLP too, beside the sum; the inner product ranks every item at once, and lets all of them be negatives.
Order is lost, by design: the last items count alike, however long ago.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor, nn

from dynedge.config import option
from dynedge.models.layers import Shape
from dynedge.models.sequences import Array, Dropout, SequenceConfig, SequenceModel, vectors_of


@dataclass(frozen=True)
class SumPoolingConfig(SequenceConfig):
    """The sum of the last items."""

    length: int = option(10, "items of a user's history that are looked at", least=1)


class SumPooling(SequenceModel):
    def __init__(self, config: SumPoolingConfig, shape: Shape, categories: Array) -> None:
        super().__init__(config, shape, categories)
        d = config.dim
        self.head = nn.Sequential(nn.Linear(d, 2 * d), nn.ReLU(), Dropout(config.dropout), nn.Linear(2 * d, d))

    def read(self, history: Tensor, there: Tensor, vectors: Tensor) -> Tensor:
        summed = (vectors_of(history, vectors) * there[..., None]).sum(1)
        return self.head(summed * self.config.length**-0.5)
