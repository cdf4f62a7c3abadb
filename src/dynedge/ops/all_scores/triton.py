"""all_scores on a GPU, in float32."""

from __future__ import annotations

import torch
import triton
from torch import Tensor

from dynedge.ops.all_scores import triton_kernels as kernels

EVENTS, ITEMS = 64, 64  # a program's


def all_scores(
    wanted: Tensor, states: Tensor, ids: Tensor | None, item: Tensor, row: Tensor, arena: Tensor
) -> Tensor:
    """As the package's."""
    n, (items, d) = len(wanted), states.shape
    out = states.new_empty(n, items)
    if not (n and items):
        return out
    width = min(64, max(16, triton.next_power_of_2(d)))
    shape = {"d": d, "BM": EVENTS, "BN": ITEMS, "BK": width, "IDS": ids is not None}
    wanted, own = wanted.contiguous(), states if ids is None else ids.contiguous()
    blocks = triton.cdiv(n, EVENTS)
    kernels.at_start[triton.cdiv(items, ITEMS), blocks](out, wanted, states, own, n, items, **shape)
    kernels.moved[triton.cdiv(n, ITEMS), blocks](
        out, wanted, arena, own, item, row, _until(item, row), n, items, **shape
    )
    return out


def _until(item: Tensor, row: Tensor) -> Tensor:
    """int64[n]: the next event that moves the same item; n where there is none."""
    ordered, order = torch.sort(torch.where(row >= 0, item, -1), stable=True)
    following = torch.where(ordered[1:] == ordered[:-1], order[1:], len(item))
    last = torch.full((1,), len(item), device=item.device)
    return torch.empty_like(order).index_copy_(0, order, torch.cat([following, last]))
