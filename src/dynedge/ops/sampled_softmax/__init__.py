"""sampled_softmax: how far the true items are from winning against the candidates, each read just before the event.

Legend: n events, m chunks of CHUNK events that share candidates, C candidates of a chunk, A columns of a chunk
(the candidates, then what they become inside it), d width of a state, D of what is wanted (d, or 2d with ids),
I items, R rows of the arena.

A column is a candidate's state during some of the chunk's events: event k reads it if since < k ≤ until. Its vector
is a row of the pool [arena | outside] and, with `ids`, beside it the item's own vector, with a bias on top. The error
of an event is −log softmax of its true item among itself and the candidates it reads that are other items. With all
items as candidates, in order, it is the full softmax, and then there may be a bonus for some of an event's items.
"""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from dynedge.ops.sampled_softmax import cpu, reference
from dynedge.ops.sampled_softmax.candidate_columns import CHUNK, CandidateColumns, ScoreBonus

__all__ = ["CHUNK", "CandidateColumns", "ScoreBonus", "sampled_softmax"]

BY_DEVICE: dict[str, Callable[..., Tensor]] = {"cpu": cpu.sampled_softmax}


def sampled_softmax(
    wanted: Tensor,
    arena: Tensor,
    outside: Tensor,
    ids: Tensor | None,
    columns: CandidateColumns,
    item: Tensor,
    row: Tensor,
    bonus: ScoreBonus | None = None,
    negative_weight: float = 1.0,
) -> Tensor:
    """The sum of the events' errors, a scalar; `item` and `row` int64[n] are the true items and their rows.

    Each candidate's exponential is multiplied by `negative_weight`: where C of I items were sampled, I / C makes the
    sum an estimate of that over all items.

    wanted [n, D], arena [R, d], outside [.., d], ids [I, d + 1] or None. Differentiable once in all four, and in the
    bonus's values; the gradient of ids is sparse unless every item is a candidate.
    """
    compute = BY_DEVICE.get(wanted.device.type, reference.sampled_softmax)
    return compute(wanted, arena, outside, ids, columns, item, row, bonus, negative_weight)
