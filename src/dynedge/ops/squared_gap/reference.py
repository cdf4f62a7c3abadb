"""Reference implementation in plain PyTorch, on any device. Autograd computes the backward pass."""

from __future__ import annotations

from torch import Tensor


def squared_gap(a: Tensor, b: Tensor, weight: float) -> tuple[Tensor, Tensor]:
    gap = a - b
    mean = gap.detach().norm(dim=1).mean() if len(gap) else gap.new_zeros(())
    return weight / 2 * gap.square().sum(), mean
