"""The truth, in plain torch, on any device; a few events at a time, so that their candidates' states fit."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from dynedge.ops.read_states.reference import read_states

STATES = 1 << 18  # candidates whose states are held at once


def candidate_scores(
    wanted: Tensor, candidates: Tensor, side: Any, ids: Tensor | None, moves: Any, arena: Tensor
) -> Tensor:
    found = wanted.new_empty(candidates.shape)
    step = max(1, STATES // max(candidates.shape[1], 1))
    for first in range(0, len(wanted), step):
        part = slice(first, first + step)
        found[part] = _scores(wanted[part], candidates[part], first, side, ids, moves, arena)
    return found


def _scores(
    wanted: Tensor, candidates: Tensor, first: int, side: Any, ids: Tensor | None, moves: Any, arena: Tensor
) -> Tensor:
    d, flat = arena.shape[1], candidates.flatten()
    events = torch.arange(first, first + len(wanted), device=wanted.device)
    rows = rows_after(candidates, events, moves).flatten()
    states = read_states([(side, flat)], None)
    if len(moves.events):
        states = torch.where((rows >= 0)[:, None], arena.index_select(0, rows.clamp_min(0)), states)
    with torch.autocast(wanted.device.type, enabled=False):  # scores in bfloat16 would tie
        found = torch.bmm(states.view(*candidates.shape, d), wanted[:, :d, None])
        if ids is not None:
            own = ids.index_select(0, flat).view(*candidates.shape, d + 1)
            found = torch.baddbmm(found + own[..., d:], own[..., :d], wanted[:, d:, None])
    return found[..., 0]


def rows_after(candidates: Tensor, events: Tensor, moves: Any) -> Tensor:
    """int[n, C]: the row of the arena a candidate has just before the event; −1: the window has not moved it yet."""
    if not len(moves.events):
        return torch.full_like(candidates, -1)
    n = len(moves.row)
    slot = torch.searchsorted(moves.items, candidates.to(moves.items.dtype)).clamp_(max=len(moves.items) - 1)
    numbers = torch.arange(len(moves.items), device=candidates.device)
    slots = torch.repeat_interleave(numbers, moves.starts.diff(), output_size=len(moves.events))
    before = torch.searchsorted(slots * n + moves.events, slot * n + events[:, None])  # moves before, of all slots
    moved = (moves.items[slot] == candidates) & (before > moves.starts[slot])
    return torch.where(moved, moves.row[moves.events[(before - 1).clamp_min_(0)]], -1)
