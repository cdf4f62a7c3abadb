"""all_scores: every item's score for every event of a window, each item as it was just before the event.

Legend: n events, I items, d width of a state, D of what is wanted (d, or 2d with ids), R rows of the arena.

    out[k, i] = state of i before k · wanted[k, :d]        and, with ids, + ids[i, :d] · wanted[k, d:] + ids[i, d]

`states` [I, d] are the items' at the window's start; after event k, item[k] has the state arena[row[k]], unless
row[k] is below 0. A score's bits depend on its event and its item alone, not on what else is in the window: a log may
be cut into windows anywhere. Without gradient: this is for evaluation.
"""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from dynedge.ops.all_scores import cpu, reference
from dynedge.ops.dispatch import prefer_triton

__all__ = ["all_scores"]

BY_DEVICE: dict[str, Callable[..., Tensor]] = {
    "cpu": cpu.all_scores,
    "cuda": prefer_triton("dynedge.ops.all_scores.triton", "all_scores", reference.all_scores),
}


def all_scores(
    wanted: Tensor, states: Tensor, ids: Tensor | None, item: Tensor, row: Tensor, arena: Tensor
) -> Tensor:
    """[n, I]; wanted [n, D], ids [I, d + 1] or None, item and row int64[n]. On a CPU the columns are contiguous."""
    compute = BY_DEVICE.get(wanted.device.type, reference.all_scores)
    own = None if ids is None else ids.detach()
    return compute(wanted.detach().to(states.dtype), states.detach(), own, item, row, arena.detach())
