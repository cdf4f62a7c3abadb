"""Tables with a row for each user or item, and how they grow when a log has gained users and items.

A model names its tables in `Model.entity_rows`. Ids keep their numbers when a log grows, so old rows stay where they
are, except in tables that hold users and then items, or that end with a row for "none".
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

if TYPE_CHECKING:
    from dynedge.models.base import LogShape


class Rows(NamedTuple):
    """What the rows of a table stand for."""

    users: bool = False
    items: bool = False
    category: int | None = None  # values of this categorical item feature
    user_category: int | None = None  # values of this categorical user feature
    none: bool = False  # the last row is that of no item, or of no category
    std: float = 0.0  # standard deviation of new rows, as before training
    fill: float = 0.0  # their mean

    def blocks(self, shape: LogShape) -> list[int]:
        """The numbers of rows of each kind, in order."""
        sizes = [shape.users] if self.users else []
        sizes += [shape.items] if self.items else []
        sizes += [shape.categories[self.category]] if self.category is not None else []
        sizes += [shape.user_category_counts[self.user_category]] if self.user_category is not None else []
        return [*sizes, 1] if self.none else sizes


def grown_table(table: Tensor, rows: Rows, old: LogShape, new: LogShape, generator: torch.Generator) -> Tensor:
    """The table with the rows of another, larger log; new ones are drawn from `generator`."""
    sizes = list(zip(rows.blocks(old), rows.blocks(new), strict=True))
    parts, start = [], 0
    for before, after in sizes:
        part, start = table[start : start + before], start + before
        added = torch.full((after - before, *table.shape[1:]), rows.fill, dtype=table.dtype)
        if rows.std:
            added += rows.std * torch.randn(added.shape, generator=generator)
        parts += [part, added.to(table.device)]
    return torch.cat(parts)


def grown_moments(
    moments: Mapping[str, Tensor], tables: Mapping[str, Rows], old: LogShape, new: LogShape
) -> dict[str, Tensor]:
    """Adam's moments (training/optimizer.py) of grown tables: new rows have had no update yet."""
    grown = {}
    for name, tensor in moments.items():
        rows = tables.get(name.rpartition(".")[0])
        plain = rows is None or not tensor.dim()
        empty = rows._replace(std=0.0, fill=0.0) if rows is not None else Rows()
        grown[name] = tensor if plain else grown_table(tensor, empty, old, new, torch.Generator())
    return grown
