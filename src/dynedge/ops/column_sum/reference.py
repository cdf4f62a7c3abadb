"""Reference implementation in plain PyTorch."""

from __future__ import annotations

import torch
from torch import Tensor


def column_sum(x: Tensor) -> Tensor:
    """float32[c]: the sums of the columns of x [n, c]."""
    return x.sum(0, dtype=torch.float32)
