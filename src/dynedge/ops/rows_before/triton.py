"""rows_before on a GPU: two binary searches per item in one launch, where plain PyTorch takes thirty."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import triton
from torch import Tensor

from dynedge.ops.rows_before import triton_kernels
from dynedge.ops.rows_before.reference import NEVER
from dynedge.plan.schedule import NO_ROW

if TYPE_CHECKING:
    from dynedge.ops.rows_before import ItemRows

BLOCK = 128  # items per program


def rows_before(rows: ItemRows, items: Tensor, events: Tensor) -> tuple[Tensor, Tensor]:
    found = torch.empty_like(items, memory_format=torch.contiguous_format)
    moves = torch.empty_like(found, dtype=torch.int32)
    if found.numel():
        steps = [len(part).bit_length() for part in (rows.changing, rows.events, rows.active)]
        triton_kernels.find[(triton.cdiv(found.numel(), BLOCK),)](
            *(items.contiguous(), events.contiguous(), rows.changing, rows.starts, rows.events, rows.after),
            *(rows.active, found, moves, found.numel(), items.shape[1], len(rows.changing), len(rows.active)),
            *(rows.first_changing, rows.first_active, *steps),
            NO_ROW=NO_ROW,
            NEVER=NEVER,
            BM=BLOCK,
        )
    return found, moves
