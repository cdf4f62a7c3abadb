"""log_plus: log(p) + weight · x, for the sum of a log probability and another score."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from dynedge.ops.thread_pool import part_of_range, run_in_parts
from dynedge.ops.vector_math import log
from dynedge.utils.array_type import Array
from dynedge.utils.numba_compile import compiled

NUMBERS = 256  # that take as long as a row of other operators


@compiled(inline="always")
def log_plus(p: np.float32, weight: np.float32, x: np.float32) -> np.float32:
    """For numba kernels; the same bits in every loop."""
    return log(p) + weight * x


def log_plus_(p: Tensor, weight: Tensor, x: Tensor) -> Tensor:
    """Returns [.., C], in the memory of `p` where that is on the device of `x`; weight is a scalar of that device.

    Has no gradient: it is used for evaluation.
    """
    if x.device.type != "cpu" or x.dtype != torch.float32:
        return p.to(x).log_().addcmul_(x.detach(), weight)
    columns, x = p.shape[-1], x.detach()
    rows = p.view(-1, columns).numpy(), np.float32(weight), x.reshape(-1, columns).contiguous().numpy()
    run_in_parts(_add_rows, p.numel() // NUMBERS, *rows)
    return p


@compiled
def _add_rows(part: int, parts: int, p: Array, weight: np.float32, x: Array) -> None:
    start, stop = part_of_range(0, len(p), part, parts)
    for k in range(start, stop):
        for i in range(p.shape[1]):
            p[k, i] = log_plus(p[k, i], weight, x[k, i])
