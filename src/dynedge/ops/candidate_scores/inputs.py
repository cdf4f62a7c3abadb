"""The arguments of candidate_scores. Shapes as in the package."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

from dynedge.ops.read_states import EntityTable


class ItemUpdates(NamedTuple):
    """Which events of a window update which items, grouped by item."""

    items: Tensor  # int[M], sorted
    starts: Tensor  # int[M + 1]: where each item's events start
    events: Tensor  # int[W]: ascending, for each item
    row_after: Tensor  # int[n]: row of the arena that holds the item's state after each event


class ScoreInputs(NamedTuple):
    """What every implementation reads."""

    query: Tensor  # [n, D]
    candidates: Tensor  # int64[n, C]
    table: EntityTable
    id_embeddings: Tensor | None  # [I, d + 1]
    updates: ItemUpdates
    arena: Tensor  # [R, d]
    decay: Tensor | None = None  # [n, r]
