"""The truth, in plain torch, on any device. Autograd does the backward."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F


def read_states(groups: Sequence[tuple[Any, Tensor]], more: Tensor | None) -> Tensor:
    parts = [_read(entities, *side) for side, entities in groups]
    return torch.cat(parts if more is None else [*parts, more])


def _read(entities: Tensor, xi: Tensor, psi: Tensor, psi_row: Tensor, stored: Tensor, moved: Tensor) -> Tensor:
    row = psi_row[entities]
    fresh = xi.expand(len(entities), -1)
    if len(psi):
        learned = F.embedding(row.clamp_min(0), psi, sparse=True)
        fresh = torch.where((row >= 0)[:, None], learned, fresh)
    return torch.where(moved[entities, None], stored[entities], fresh)
