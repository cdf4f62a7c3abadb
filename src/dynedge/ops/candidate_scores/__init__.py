"""candidate_scores: the scores of a few candidates an event, among many items, each as it was just before the event.

Legend: n events, C candidates of each, I items, d width of a state, D of what is wanted (d, or 2d with ids), M items
that the window gives states, W such states, R rows of the arena.

    out[k, c] = state of i before k · wanted[k, :d]        i = candidates[k, c]
                and, with ids, + ids[i, :d] · wanted[k, d:] + ids[i, d]

An item's state is the one at the window's start (`side`), until an event of the window gives it another (`moves`).
Without gradient: this is for evaluation. No table of n · C states is made but by the reference.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from torch import Tensor

from dynedge.ops.candidate_scores import reference
from dynedge.ops.dispatch import prefer_triton
from dynedge.ops.read_states import EntityTable

__all__ = ["ItemUpdates", "candidate_scores"]


class ItemUpdates(NamedTuple):
    """Which events of a window give which items new states."""

    items: Tensor  # int[M], sorted
    starts: Tensor  # int[M + 1]: where each one's events start
    events: Tensor  # int[W]: in order, for each item
    row: Tensor  # int[n]: the row of the arena that event's item has afterwards


BY_DEVICE: dict[str, Callable[..., Tensor]] = {
    "cuda": prefer_triton("dynedge.ops.candidate_scores.triton", "candidate_scores", reference.candidate_scores),
}


def candidate_scores(
    wanted: Tensor, candidates: Tensor, side: EntityTable, ids: Tensor | None, moves: ItemUpdates, arena: Tensor
) -> Tensor:
    """[n, C]; wanted [n, D], candidates int64[n, C], ids [I, d + 1] or None, arena [R, d]."""
    compute: Callable[..., Tensor] = BY_DEVICE.get(wanted.device.type, reference.candidate_scores)
    own = None if ids is None else ids.detach()
    return compute(wanted.detach().to(arena.dtype), candidates, side, own, moves, arena.detach())
