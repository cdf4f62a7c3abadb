"""Tables that grow row by row: a view into room that doubles, so that a row costs no more than itself."""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor, nn


@torch.no_grad()
def grown(table: Tensor, rows: int, fill: Tensor | float) -> Tensor:
    """The table with so many rows, the new ones filled. It may share the old one's memory, and never what is not its.

    The room is kept on the tensor itself: a clone or a loaded table has none of its own yet, and gets it here.
    """
    before = len(table)
    if rows <= before:
        return table
    room = cast(Tensor, getattr(table, "room", table))
    if len(room) < rows:
        room = table.new_empty((max(rows, 2 * before), *table.shape[1:]))  # memory that is not touched costs nothing
        room[:before] = table
    room[before:rows] = fill
    view: Tensor = nn.Parameter(room[:rows], requires_grad=False) if isinstance(table, nn.Parameter) else room[:rows]
    view.room = room  # type: ignore[attr-defined]
    return view


def wide(count: int) -> int:
    """Room for scratch of `count` entries: a power of two above it, so that it seldom has to be made anew."""
    return 1 << count.bit_length()
