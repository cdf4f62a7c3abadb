"""Matrix products with float32 sums and results, whatever the dtype of the factors."""

from __future__ import annotations

import torch
from torch import Tensor


def matmul(a: Tensor, b: Tensor) -> Tensor:
    """a @ b in float32. On a CPU, where only Triton's interpreter asks for it, low precisions are converted first."""
    if a.dtype == torch.float32:
        return torch.mm(a, b)
    return torch.mm(a, b, out_dtype=torch.float32) if a.is_cuda else torch.mm(a.float(), b.float())
