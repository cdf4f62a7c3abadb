"""Ranks on a GPU: one program per event reads its scores once."""

from __future__ import annotations

import torch
import triton
from torch import Tensor

from dynedge.ops.item_ranks import triton_kernels


def count(scores: Tensor, true: Tensor) -> Tensor:
    """As `ranks_on_device`."""
    out = torch.empty(len(scores), dtype=torch.float64, device=scores.device)
    if len(scores):
        width = min(1024, triton.next_power_of_2(scores.shape[1]))
        triton_kernels.count[(len(scores),)](
            scores.contiguous(), true.contiguous(), out, scores.shape[1], BC=width, num_warps=1
        )
    return out
