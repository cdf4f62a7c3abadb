"""Reference implementation in plain PyTorch, on any device."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from dynedge.plan.schedule import NO_ROW

if TYPE_CHECKING:
    from dynedge.ops.rows_before import ItemRows

NEVER = np.iinfo(np.int32).max  # no event has that number


def rows_before(rows: ItemRows, items: Tensor, events: Tensor) -> tuple[Tensor, Tensor]:
    found = torch.full_like(items, NO_ROW)
    moves = torch.full_like(items, NEVER, dtype=torch.int32)
    if len(rows.changing):
        slot = torch.searchsorted(rows.changing, items).clamp_(max=len(rows.changing) - 1)
        numbers = torch.arange(len(rows.changing), device=items.device)
        slots = torch.repeat_interleave(numbers, rows.starts.diff(), output_size=len(rows.events))
        n, is_changing = len(rows.after), rows.changing[slot] == items
        # states written before the event, by all slots up to this one
        written = torch.searchsorted(slots * n + rows.events, slot * n + events[:, None])
        last = rows.after[rows.events[(written - 1).clamp_min_(0)]]
        current = torch.where(written > rows.starts[slot], last, rows.first_changing + slot)
        found = torch.where(is_changing, current, found)
        following = rows.events[written.clamp(max=len(rows.events) - 1)].int()
        moves = torch.where(is_changing & (written < rows.starts[slot + 1]), following, moves)
    if len(rows.active):
        slot = torch.searchsorted(rows.active, items).clamp_(max=len(rows.active) - 1)
        found = torch.where(rows.active[slot] == items, rows.first_active + slot, found)
    return found, moves
