"""gSASRec: SASRec trained with many negatives and a generalised binary cross-entropy.

Petrov & Macdonald, *gSASRec: Reducing Overconfidence in Sequential Recommendation Trained with Negative Sampling*
(2023). Training on a share α of the items as negatives makes a model too sure of its scores. The loss makes up for
it with a power β of the true item's probability; t = 0: plain binary cross-entropy, t = 1: unbiased probabilities.

    β = α (t (1 − 1/α) + 1/α)        loss = −β log σ(r_i) − Σ_j log (1 − σ(r_j))

The network is that of sasrec.py. Scores are plain inner products, and negatives are sampled also where there are few
items, as published.

Differences from the paper:
- The negatives are shared by the events of a step, and none is an item of the user's recent history.
- As in sasrec.py, an event is an example of its own, not a position of a longer sequence.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor
from torch.nn import functional as F

from dynedge.config import option
from dynedge.models.baselines.sequential.sasrec import SASRec, SASRecConfig


@dataclass(frozen=True)
class GSASRecConfig(SASRecConfig):
    """Settings of gSASRec."""

    history_length: int = option(50, "Number of most recent items of a user that are encoded.", least=1)
    negatives: int = option(256, "Number of negative samples per step.", least=1)
    full_softmax_up_to: int = option(0, "Largest number of items for which all are negatives.", least=0)
    temperature: float = option(0.0, "Temperature of cosine scores; 0: plain inner products.", least=0)
    calibration: float = option(0.75, "t: 0 for plain cross-entropy, 1 for unbiased probabilities.", least=0, most=1)


SEARCH = {
    "training.lr": (3e-4, 1e-3, 3e-3),
    "training.row_lr": (1e-3, 3e-3, 1e-2),
    "model.history_length": (10, 20, 50),
    "model.dropout": (0.0, 0.2, 0.5),
    "model.negatives": (64, 256, 512),
    "model.calibration": (0.0, 0.5, 0.75, 0.9),
}


class GSASRec(SASRec):
    def event_losses(self, true: Tensor, negatives: Tensor, negative_weight: Tensor) -> Tensor:
        all_items = self.shape.items <= self.config.full_softmax_up_to
        sampled = negatives if all_items else negatives[:, -self.config.negatives :]  # after the user's own items
        share = min(sampled.shape[1] / max(self.shape.items - 1, 1), 1.0)
        power = share * (self.config.calibration * (1 - 1 / share) + 1 / share)
        return -power * F.logsigmoid(true) + F.softplus(sampled).sum(1)  # masked: −inf, so 0
