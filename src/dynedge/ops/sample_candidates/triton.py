"""sample_candidates on a GPU: one program per event."""

from __future__ import annotations

import torch
import triton
from torch import Tensor

from dynedge.ops.sample_candidates import triton_kernels


def sample_candidates(
    true: Tensor, first: int, num_others: int, a: int, b: int, count: int, seed: int, rounds: int
) -> Tensor:
    out = torch.empty((len(true), 1 + count), dtype=torch.int64, device=true.device)
    if out.numel():
        width = triton.next_power_of_2(max(count, 1))
        triton_kernels.sample[(len(true),)](true, first, num_others, a, b, seed, out, count, ROUNDS=rounds, BC=width)
    return out
