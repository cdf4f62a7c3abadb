"""Copies between host and device; to a GPU a window's arrays are one pinned buffer, in one asynchronous copy."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, is_dataclass, replace
from functools import cache
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from dynedge.utils.array_type import Array

Structure = TypeVar("Structure")  # a tensor, or a tuple or dataclass of structures and of other things
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
        return own.view(_tensor_type(part.dtype)).view(part.shape)

    return {name: view(name, part) for name, part in parts.items()}


def placed(array: Array, device: torch.device | str) -> Tensor:
    """An array on the device, without waiting for a GPU."""
    tensor = torch.from_numpy(array)
    return tensor.pin_memory().to(device, non_blocking=True) if torch.device(device).type == "cuda" else tensor


def to_host(tensor: Tensor) -> Callable[[], Array]:
    """Starts to copy a tensor to the host; the function waits for that alone, not for what a GPU was given since."""
    if not tensor.is_cuda:
        return tensor.numpy
    host = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
    host.copy_(tensor, non_blocking=True)
    done = torch.cuda.current_stream(tensor.device).record_event()

    def wait() -> Array:
        done.synchronize()
        return np.asarray(host)

    return wait


def copied(structure: Structure, device: torch.device) -> Structure:
    """A structure with its tensors on another device, copied without waiting; those that share memory still do.

    On the host their memory is pinned if there is a GPU.
    """
    buffers: dict[int, Tensor] = {}

    def copy(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in buffers:
            source = torch.empty(0, dtype=torch.uint8, device=tensor.device).set_(storage)
            pinned = device.type == "cpu" and tensor.is_cuda
            target = torch.empty(len(source), dtype=torch.uint8, device=device, pin_memory=pinned)
            buffers[storage.data_ptr()] = target.copy_(source, non_blocking=True)
        own = buffers[storage.data_ptr()].untyped_storage()
        empty = torch.empty(0, dtype=tensor.dtype, device=device)
        return empty.set_(own, tensor.storage_offset(), tensor.size(), tensor.stride())

    return _map_tensors(structure, copy)


def _map_tensors(structure: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """The structure with every tensor changed; a part that has no tensors stays the same object."""
    if isinstance(structure, Tensor):
        return change(structure)
    if isinstance(structure, tuple):
        parts = [_map_tensors(part, change) for part in structure]
        if all(new is old for new, old in zip(parts, structure, strict=True)):
            return structure
        return type(structure)(*parts) if hasattr(structure, "_fields") else tuple(parts)
    if is_dataclass(structure):
        old = {field.name: getattr(structure, field.name) for field in fields(structure)}
        new = {name: _map_tensors(part, change) for name, part in old.items()}
        changed = {name: part for name, part in new.items() if part is not old[name]}
        return replace(structure, **changed) if changed else structure  # type: ignore[type-var]
    return structure


@cache
def _tensor_type(kind: np.dtype[Any]) -> torch.dtype:
    return torch.from_numpy(np.empty(0, kind)).dtype


def _with_integers(array: Array, integer: type[np.signedinteger[Any]]) -> Array:
    return array.astype(integer, copy=False) if array.dtype.kind == "i" else array
