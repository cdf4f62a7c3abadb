"""PairModel: base of DIEN and MIMN, which score (event, candidate) pairs by an MLP instead of an inner product.

Legend: n events, C candidates, d width of item vectors, H hidden units of the MLP.

Every pair is scored in full, also when all items are ranked: preselecting candidates by a cheaper score would be
another model. Pairs are scored in blocks that fit the CPU's cache; blocks on a GPU are large enough to keep it busy.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

from torch import Tensor, nn
from torch.nn import functional as F

from dynedge.models.base import LogShape
from dynedge.models.baselines.sequential.base import MIN_ROWS, SEARCH, SequenceModel

PAIR_SEARCH = SEARCH | {"model.history_length": (10, 20, 50, 200), "model.negatives": (15, 31, 127)}
BLOCK, GPU_BLOCK = 4096, 1 << 18  # pairs scored at once outside of training


class PairModel(SequenceModel):
    """The encoding is a named tuple of tensors with one row per event."""

    min_rows = 1

    def __init__(self, config: Any, shape: LogShape) -> None:
        super().__init__(config, shape)
        self.mlp = PairMLP(config.dim, config.hidden)

    @abstractmethod
    def encode_rows(self, history: Tensor, mask: Tensor, vectors: Tensor) -> Any:
        """As `encode_history`, for at least MIN_ROWS histories."""

    @abstractmethod
    def score_pairs(self, encoding: Any, vectors: Tensor) -> Tensor:
        """As `score_candidates`, for one block of pairs."""

    def encode_history(self, history: Tensor, mask: Tensor, vectors: Tensor) -> Any:
        padding = 0, 0, 0, max(MIN_ROWS - len(history), 0)
        return _rows(self.encode_rows(F.pad(history, padding), F.pad(mask, padding), vectors), slice(len(history)))

    def score_candidates(self, encoding: Any, vectors: Tensor) -> Tensor:
        if self.training:
            return self.score_pairs(encoding, vectors)
        n, count, block = len(encoding[0]), vectors.shape[-2], GPU_BLOCK if vectors.is_cuda else BLOCK
        scores, step = vectors.new_empty(n, count), max(1, block // max(count, 1))
        for rows in (slice(start, start + step) for start in range(0, n, step)):
            block_encoding, candidates = _rows(encoding, rows), vectors[rows] if vectors.dim() == 3 else vectors
            for columns in (slice(start, start + block) for start in range(0, count, block)):
                scores[rows, columns] = self.score_pairs(block_encoding, candidates[..., columns, :])
        return scores


def _rows(encoding: Any, rows: slice) -> Any:
    return type(encoding)(*(part[rows] for part in encoding))


class PairMLP(nn.Module):
    """MLP over the sum of an event's history, a candidate's vector, their product, and further hidden inputs.

    The first layer is split by input, so that the part of the event is computed once for all of its candidates.
    """

    def __init__(self, d: int, hidden: int) -> None:
        super().__init__()
        self.event = nn.Linear(d, hidden)
        self.candidate, self.product = (nn.Linear(d, hidden, bias=False) for _ in range(2))
        self.out = nn.Linear(hidden, 1, bias=False)

    def forward(self, history_sum: Tensor, vectors: Tensor, hidden_inputs: Tensor) -> Tensor:
        """[n, C] from history sums [n, d], vectors [C, d] or [n, C, d], and `hidden_inputs` [n, C, H]."""
        by_event = self.candidate.weight.T + history_sum[:, :, None] * self.product.weight.T  # [n, d, H]
        hidden = hidden_inputs + self.event(history_sum)[:, None] + vectors @ by_event
        return self.out(hidden.relu())[..., 0]
