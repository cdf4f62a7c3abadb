"""Growable tables: views into memory whose capacity doubles, so that adding a row costs amortised O(1)."""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor, nn


@torch.no_grad()
def grown(table: Tensor, rows: int, fill: Tensor | float) -> Tensor:
    """The table with this many rows, the new ones set to `fill`. It may share memory with the old one.

    The spare capacity is an attribute of the tensor: a clone or a loaded table has none, and gets it here.
    """
    before = len(table)
    if rows <= before:
        return table
    capacity = cast(Tensor, getattr(table, "capacity", table))
    if len(capacity) < rows:
        capacity = table.new_empty((max(rows, 2 * before), *table.shape[1:]))  # untouched memory costs nothing
        capacity[:before] = table
    capacity[before:rows] = fill
    view: Tensor = capacity[:rows]
    if isinstance(table, nn.Parameter):
        view = nn.Parameter(view, requires_grad=False)
    view.capacity = capacity  # type: ignore[attr-defined]
    return view


def padded_size(count: int) -> int:
    """Size of scratch for `count` entries: the next power of two, so that it seldom has to be reallocated."""
    return 1 << count.bit_length()


def doubled_capacity(capacity: int, needed: int) -> int:
    """Returns the capacity, doubled until it is at least `needed`."""
    while capacity < needed:
        capacity *= 2
    return capacity
