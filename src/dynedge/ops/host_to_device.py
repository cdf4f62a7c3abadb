"""Arrays of a window to where it is computed. To a GPU: as one buffer, in one copy that nobody waits for."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from dynedge.utils.arrays import Array

ALIGNED = 16  # bytes: where each array starts, so that kernels read it in wide pieces


def to_device(arrays: dict[str, Array], device: torch.device, packed: bool) -> dict[str, Tensor]:
    """Each array as a tensor; integers are int64, or int32 if `packed` into one buffer of a GPU."""
    if not packed or device.type != "cuda":
        return {name: torch.from_numpy(_as(array, np.int64)).to(device) for name, array in arrays.items()}
    parts = {name: np.ascontiguousarray(_as(array, np.int32)) for name, array in arrays.items()}
    starts, total = {}, 0
    for name, part in parts.items():
        starts[name] = total
        total += -(-part.nbytes // ALIGNED) * ALIGNED
    host = torch.empty(total, dtype=torch.uint8, pin_memory=True)
    for name, part in parts.items():
        host.numpy()[starts[name] :][: part.nbytes] = part.view(np.uint8).ravel() if part.size else 0
    there = host.to(device, non_blocking=True)

    def view(name: str, part: Array) -> Tensor:
        piece = there[starts[name] : starts[name] + part.nbytes]
        return piece.view(torch.from_numpy(part[:0]).dtype).view(part.shape)

    return {name: view(name, part) for name, part in parts.items()}


def _as(array: Array, integer: type[np.signedinteger[Any]]) -> Array:
    return array.astype(integer, copy=False) if array.dtype.kind == "i" else array
