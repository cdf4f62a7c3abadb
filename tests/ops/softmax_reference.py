"""The reference implementation of sampled_softmax with the arguments of the operator itself."""

from __future__ import annotations

import math

from torch import Tensor

from dynedge.ops.sampled_softmax import CandidateColumns, ListedScores, LossInputs, ScoreBonus, reference


def reference_softmax(
    query: Tensor,
    arena: Tensor,
    outside: Tensor,
    id_embeddings: Tensor | None,
    columns: CandidateColumns,
    item: Tensor,
    row: Tensor,
    bonus: ScoreBonus | None = None,
    negative_weight: float = 1.0,
    decay: Tensor | None = None,
    listed: ListedScores | None = None,
    q: float = 0.0,
) -> Tensor:
    inputs = LossInputs(query, arena, outside, id_embeddings, item, row, decay)
    return reference.sampled_softmax(inputs, columns, bonus, math.log(negative_weight), listed, q)
