"""others on a GPU: an event a program."""

from __future__ import annotations

import torch
import triton
from torch import Tensor

from dynedge.ops.sample_negatives import triton_kernels as kernels


def sample_negatives(
    true: Tensor, first: int, rest: int, a: int, b: int, count: int, seed: int, rounds: int
) -> Tensor:
    drawn = torch.empty((len(true), count), dtype=torch.int64, device=true.device)
    if drawn.numel():
        width = triton.next_power_of_2(count)
        kernels.draw[(len(true),)](true, first, rest, a, b, seed, drawn, count, ROUNDS=rounds, BC=width)
    return drawn
