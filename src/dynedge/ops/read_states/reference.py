"""Reference implementation in plain PyTorch, on any device. Autograd computes the backward pass."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn import functional as F

if TYPE_CHECKING:
    from dynedge.ops.read_states import EntityTable, LastEvents, StoredStates


def read_states(groups: Sequence[tuple[EntityTable, Tensor]], extra: Tensor | None) -> Tensor:
    parts = [_read(entities, *table) for table, entities in groups]
    return torch.cat(parts if extra is None else [*parts, extra])


def _read(entities: Tensor, xi: Tensor, psi: Tensor, psi_row: Tensor, stored: Tensor, has_stored: Tensor) -> Tensor:
    row = psi_row[entities]
    fresh = xi.expand(len(entities), -1)
    if len(psi):
        learned = F.embedding(row.clamp_min(0), psi, sparse=True)
        fresh = torch.where((row >= 0)[:, None], learned, fresh)
    return torch.where(has_stored[entities, None], stored[entities], fresh)


def replace_rows(rows: Tensor, table: EntityTable, entities: Tensor) -> Tensor:
    return torch.where((entities >= 0)[:, None], _read(entities.clamp_min(0), *table), rows)


def store_states(table: StoredStates, entities: Tensor, rows: Tensor, arena: Tensor, last: LastEvents) -> None:
    entities, ended = entities.long(), last.entity.long()
    table.stored.index_copy_(0, entities, arena.index_select(0, rows))
    table.has_stored.index_fill_(0, entities, True)
    table.time.index_copy_(0, ended, last.time)
    if table.last_item is not None:
        table.last_item.index_copy_(0, ended, last.item.long())
