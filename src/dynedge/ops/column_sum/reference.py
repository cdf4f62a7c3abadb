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


def weighted_column_sums(x: Tensor, values: Tensor, rows: Tensor) -> Tensor:
    """float32[1 + g, c]: sums of the columns of x [n, c], then of row k times each of values[rows[k]] [.., g]."""
    weighted = [column_sum(x.float() * one[:, None]) for one in values[rows.long()].unbind(1)]
    return torch.stack([column_sum(x), *weighted])
