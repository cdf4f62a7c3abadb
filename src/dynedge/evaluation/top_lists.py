"""The best items of a sample of test events, collected from the scores by which the events are ranked.

Legend: m sampled events, n events of a window, I items, K items of a list.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dynedge.models.base import Model, State
from dynedge.models.capabilities import HasVectors, capable
from dynedge.utils.array_type import Array

K = 10
SAMPLE, BLOCKS = 20_000, 20  # events whose lists are kept, in blocks that are spread evenly over the test events
NO_ITEM = -1  # pads a list where fewer than K items have a score
BLOCK_SCORES = 1 << 23  # scores copied at once


@dataclass(frozen=True, eq=False)
class TopLists:
    """The best K items of sampled events, as the model would have recommended them just before each event."""

    events: Array  # int64[m]: positions in the log
    items: Array  # int32[m, K], best first; padded with NO_ITEM
    confidence: Array  # float32[m]: softmax probability of the first item among all items
    diversity: Array  # float32[m]: mean pairwise cosine distance of a list's item vectors; empty without vectors

    def arrays(self) -> dict[str, Array]:
        """The arrays by name, as they are stored."""
        return dict(vars(self))


def sampled_blocks(events: range, sample: int = SAMPLE, blocks: int = BLOCKS) -> list[range]:
    """Blocks of events, spread evenly over the range: `sample` in all, or all events if there are fewer.

    >>> sampled_blocks(range(100, 200), sample=10, blocks=2)
    [range(100, 105), range(150, 155)]
    """
    if len(events) <= sample:
        return [events]
    starts = (events.start + block * len(events) // blocks for block in range(blocks))
    return [range(start, start + sample // blocks) for start in starts]


class TopListCollector:
    """Keeps the lists of sampled events; `add` is given the scores of one window after the other."""

    def __init__(self, model: Model, state: State, blocks: Sequence[range]) -> None:
        self.events = np.concatenate([np.arange(block.start, block.stop, dtype=np.int64) for block in blocks])
        self._vectors = _unit_vectors(model, state)
        self._parts: list[tuple[Tensor, Tensor, Tensor]] = []

    def add(self, window: range, scores: Tensor) -> None:
        """Takes in the scores float[n, I] of the events of a window."""
        start, stop = np.searchsorted(self.events, (window.start, window.stop))
        if start == stop:
            return
        rows = torch.from_numpy(self.events[start:stop] - window.start).to(scores.device)
        for block in torch.split(rows, max(1, BLOCK_SCORES // scores.shape[1])):
            chosen = torch.nan_to_num(scores[block].float(), nan=-torch.inf, posinf=torch.inf, neginf=-torch.inf)
            best, items = chosen.topk(min(K, chosen.shape[1]))
            confidence = (best[:, 0] - chosen.logsumexp(1)).exp().nan_to_num(0.0)
            items = items.masked_fill(best == -torch.inf, NO_ITEM)
            self._parts.append((items, confidence, self._diversity(items)))

    def _diversity(self, items: Tensor) -> Tensor:
        """float[m]: mean of 1 - cosine over the pairs of a list: |sum of unit vectors|² = n + 2 · sum over pairs."""
        if self._vectors is None:
            return torch.empty(0)
        given = items != NO_ITEM
        total = (self._vectors[items.clamp(min=0)] * given[:, :, None]).sum(1)
        count = given.sum(1).float()
        pairs = (count * (count - 1)).clamp(min=1)
        return torch.where(count > 1, 1 - ((total * total).sum(1) - count) / pairs, torch.nan)

    def result(self) -> TopLists:
        """Returns the lists of all sampled events; `add` has been given all their windows."""
        items, confidence, diversity = zip(*self._parts, strict=True) if self._parts else ((), (), ())
        width = items[0].shape[1] if items else K
        return TopLists(
            self.events,
            _joined(items, np.int32).reshape(-1, width),
            _joined(confidence, np.float32),
            _joined(diversity, np.float32),
        )


def _joined(parts: tuple[Tensor, ...], dtype: Any) -> Array:
    return np.concatenate([part.cpu().numpy().astype(dtype) for part in parts] or [np.empty(0, dtype)])


@torch.no_grad()
def _unit_vectors(model: Model, state: State) -> Tensor | None:
    """float[I, d]: the centred item vectors at the start of the evaluation, of length one; None without vectors."""
    vectors = capable(model, HasVectors)
    if vectors is None:
        return None
    items = vectors.vectors(state)[1].float().flatten(1)
    return torch.nn.functional.normalize(items - items.mean(0), dim=1)
