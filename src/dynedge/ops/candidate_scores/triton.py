"""candidate_scores on a GPU, in float32: states are read in place, and only scores are written."""

from __future__ import annotations

from typing import Any

import torch
import triton
from torch import Tensor

from dynedge.ops.candidate_scores import triton_kernels as kernels

CANDIDATES = 32  # that a program takes at once


def candidate_scores(
    wanted: Tensor, candidates: Tensor, side: Any, ids: Tensor | None, moves: Any, arena: Tensor
) -> Tensor:
    """As the package's."""
    (n, count), (items, d) = candidates.shape, side.stored.shape
    out = arena.new_empty(n, count)
    if not (n and count):
        return out
    slot = torch.full((items,), -1, dtype=torch.int32, device=out.device)
    if len(moves.items):
        numbers = torch.arange(len(moves.items), dtype=torch.int32, device=out.device)
        slot.index_copy_(0, moves.items.long(), numbers)
    kernels.scores[(n,)](
        *(out, wanted.contiguous(), candidates.contiguous(), side.xi.contiguous(), *side[1:], arena),
        *(arena if ids is None else ids.contiguous(), slot, moves.starts, moves.events, moves.row, count),
        d=d,
        BC=CANDIDATES,
        BK=triton.next_power_of_2(d),
        IDS=ids is not None,
        num_warps=4,
    )
    return out
