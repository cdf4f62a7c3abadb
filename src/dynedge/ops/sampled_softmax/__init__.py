"""sampled_softmax: cross-entropy of the true items against candidates, each read as it was just before the event.

Legend: n events, m chunks of CHUNK events that share candidates, C candidates of a chunk, A columns of a chunk (the
candidates, then the states they are updated to inside it), d width of a state, D width of a query vector (d, or 2d
with ID embeddings), I items, R rows of the arena.

A column is a candidate's state during some of the chunk's events: event k reads it if since < k ≤ until. Its vector
is a row of the pool [arena | outside] and, with ID embeddings, next to it the item's embedding, plus the item's bias.
The loss of an event is −log softmax of its true item's score, among that score and those of the candidates it reads
that are other items. With all items as candidates, in order, this is the full softmax; then scores may have a bonus.
With q > 0 it is the generalized cross-entropy (1 − p^q) / q of that probability p: the gradient is p^q times that of
−log p, so that events whose true item is out of reach count less.
With `listed`, an event has candidates of its own besides those of its chunk, which `negative_weight` does not weight.
With `decay` [n, r] the last r of a row's d columns decay (ops/decaying_columns.py); their gradient has no meaning.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from torch import Tensor

from dynedge.ops.sampled_softmax import cpu, reference
from dynedge.ops.sampled_softmax.inputs import (
    CHUNK,
    CandidateColumns,
    ChunkCandidates,
    ListedScores,
    LossInputs,
    ScoreBonus,
)

__all__ = [
    "CHUNK",
    "CandidateColumns",
    "ChunkCandidates",
    "ListedScores",
    "LossInputs",
    "ScoreBonus",
    "sampled_softmax",
]

BY_DEVICE: dict[str, Callable[..., Tensor]] = {"cpu": cpu.sampled_softmax}


def sampled_softmax(
    query: Tensor,
    arena: Tensor,
    outside: Tensor,
    id_embeddings: Tensor | None,
    candidates: CandidateColumns | ChunkCandidates,
    item: Tensor,
    row: Tensor,
    bonus: ScoreBonus | None = None,
    negative_weight: float = 1.0,
    item_row_after: Tensor | None = None,
    decay: Tensor | None = None,
    listed: ListedScores | None = None,
    q: float = 0.0,
) -> Tensor:
    """Sum of the events' losses, a scalar; `item` and `row` int64[n] are the true items and their rows of the arena.

    Each candidate's exponential is multiplied by `negative_weight`: where C of I items were sampled, I / C makes the
    sum an estimate of that over all items. ChunkCandidates also need `item_row_after` int[n]: the row of event k's
    item after the event, or −1.

    query [n, D], arena [R, d], outside [.., d], id_embeddings [I, d + 1] or None. Differentiable once in all four and
    in the values of bonus and listed; the gradient of id_embeddings is sparse unless every item is a candidate.
    """
    if isinstance(candidates, ChunkCandidates):
        from dynedge.ops.sampled_softmax.triton import sampled_softmax as triton_sampled_softmax

        assert item_row_after is not None
        tensors = query, arena, outside, id_embeddings
        return triton_sampled_softmax(
            *tensors, candidates, item, row, item_row_after, bonus, negative_weight, decay, listed, q
        )
    compute = BY_DEVICE.get(query.device.type, reference.sampled_softmax)
    inputs = LossInputs(query, arena, outside, id_embeddings, item, row, decay)
    return compute(inputs, candidates, bonus, math.log(negative_weight), listed, q)
