"""Copies a window's arrays to the device; to a GPU as one pinned buffer, in one asynchronous copy."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from dynedge.utils.array_type import Array

ALIGNMENT = 16  # bytes, of each array in the buffer, so that kernels can use wide loads


def to_device(arrays: dict[str, Array], device: torch.device, packed: bool) -> dict[str, Tensor]:
    """Returns each array as a tensor; integers as int64, or as int32 if `packed` into one buffer on a GPU."""
    if not packed or device.type != "cuda":
        return {name: torch.from_numpy(_with_integers(array, np.int64)).to(device) for name, array in arrays.items()}
    parts = {name: np.ascontiguousarray(_with_integers(array, np.int32)) for name, array in arrays.items()}
    starts, total = {}, 0
    for name, part in parts.items():
        starts[name] = total
        total += -(-part.nbytes // ALIGNMENT) * ALIGNMENT
    host = torch.empty(total, dtype=torch.uint8, pin_memory=True)
    for name, part in parts.items():
        host.numpy()[starts[name] :][: part.nbytes] = part.view(np.uint8).ravel() if part.size else 0
    buffer = host.to(device, non_blocking=True)

    def view(name: str, part: Array) -> Tensor:
        own = buffer[starts[name] : starts[name] + part.nbytes]
        return own.view(torch.from_numpy(part[:0]).dtype).view(part.shape)

    return {name: view(name, part) for name, part in parts.items()}


def _with_integers(array: Array, integer: type[np.signedinteger[Any]]) -> Array:
    return array.astype(integer, copy=False) if array.dtype.kind == "i" else array
