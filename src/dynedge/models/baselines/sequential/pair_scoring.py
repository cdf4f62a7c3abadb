"""What DIEN and MIMN share: the candidate takes part before the last layer, so that pairs are judged, not vectors.

Legend: n events, C candidates, d width of item vectors, H hidden units of the MLP.

Every (event, candidate) pair is scored as it is, also when all items are ranked: a first choice by something cheaper
would be another model. Pairs are taken in blocks that stay in the cache; on a GPU, in as large ones as keep it busy.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

from torch import Tensor, nn
from torch.nn import functional as F

from dynedge.models.base import LogShape
from dynedge.models.baselines.sequential.base import LEAST, SEARCH, SequenceModel

PAIR_SEARCH = SEARCH | {"model.length": (5, 10, 20), "model.negatives": (15, 31, 127)}
BLOCK, GPU_BLOCK = 4096, 1 << 18  # pairs judged at once, when nothing is learned


class PairModel(SequenceModel):
    """A reading is a named tuple of tensors, a row for each event."""

    least = 1

    def __init__(self, config: Any, shape: LogShape) -> None:
        super().__init__(config, shape)
        self.judge = Judge(config.dim, config.hidden)

    @abstractmethod
    def remember(self, history: Tensor, there: Tensor, vectors: Tensor) -> Any:
        """As `read`; of LEAST histories or more."""

    @abstractmethod
    def meet(self, reading: Any, vectors: Tensor) -> Tensor:
        """As `rate`, of a block of pairs."""

    def read(self, history: Tensor, there: Tensor, vectors: Tensor) -> Any:
        more = 0, 0, 0, max(LEAST - len(history), 0)
        return _rows(self.remember(F.pad(history, more), F.pad(there, more), vectors), slice(len(history)))

    def rate(self, reading: Any, vectors: Tensor) -> Tensor:
        if self.training:
            return self.meet(reading, vectors)
        n, count, block = len(reading[0]), vectors.shape[-2], GPU_BLOCK if vectors.is_cuda else BLOCK
        found, step = vectors.new_empty(n, count), max(1, block // max(count, 1))
        for rows in (slice(at, at + step) for at in range(0, n, step)):
            some, candidates = _rows(reading, rows), vectors[rows] if vectors.dim() == 3 else vectors
            for columns in (slice(at, at + block) for at in range(0, count, block)):
                found[rows, columns] = self.meet(some, candidates[..., columns, :])
        return found


def _rows(reading: Any, rows: slice) -> Any:
    return type(reading)(*(part[rows] for part in reading))


class Judge(nn.Module):
    """The MLP at the end, of an event's summed history x, a candidate's vector v, their product and more.

    Its first layer is taken apart: what depends on the event alone is worked out once for all its candidates.
    """

    def __init__(self, d: int, hidden: int) -> None:
        super().__init__()
        self.event = nn.Linear(d, hidden)
        self.candidate, self.product = (nn.Linear(d, hidden, bias=False) for _ in range(2))
        self.last = nn.Linear(hidden, 1, bias=False)

    def forward(self, summed: Tensor, vectors: Tensor, more: Tensor) -> Tensor:
        """[n, C] of summed [n, d], vectors [C, d] or [n, C, d], and what more goes into hidden units [n, C, H]."""
        by_event = self.candidate.weight.T + summed[:, :, None] * self.product.weight.T  # [n, d, H]
        hidden = more + self.event(summed)[:, None] + vectors @ by_event
        return self.last(hidden.relu())[..., 0]
