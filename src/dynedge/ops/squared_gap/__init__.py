"""squared_gap: half the squared distance between two tables, and the mean distance of their rows.

Legend: K rows of both tables, d columns.
"""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from dynedge.ops.dispatch import prefer_triton
from dynedge.ops.squared_gap import reference

__all__ = ["squared_gap"]

BY_DEVICE: dict[str, Callable[..., tuple[Tensor, Tensor]]] = {
    "cuda": prefer_triton("dynedge.ops.squared_gap.triton", "squared_gap", reference.squared_gap),
}


def squared_gap(a: Tensor, b: Tensor, weight: float) -> tuple[Tensor, Tensor]:
    """(weight / 2 · Σ (a − b)², mean over the rows of ‖a − b‖, which has no gradient); a and b [K, d]."""
    return BY_DEVICE.get(a.device.type, reference.squared_gap)(a, b, weight)
