"""Reference implementation in plain PyTorch."""

from __future__ import annotations

import torch
from torch import Tensor


def column_sum(x: Tensor) -> Tensor:
    """float32[c]: the sums of the columns of x [n, c]."""
    return x.sum(0, dtype=torch.float32)


def relu_backward(grad: Tensor, activated: Tensor) -> tuple[Tensor, Tensor]:
    """(gradient that passes the ReLU whose output is `activated` [n, c], float32[c]: the sums of its columns)."""
    masked = torch.where(activated <= 0, 0.0, grad).to(activated.dtype)
    return masked, column_sum(masked)
