"""Copies between host and device; to a GPU a window's arrays are one pinned buffer, in one asynchronous copy.

On the host numpy fills pinned buffers, in one thread: a copy by torch starts a thread per core, which then wait in a
loop and take the cores from the threads that prepare the next windows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
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
        return {name: torch.from_numpy(_with_integers(array)).to(device) for name, array in arrays.items()}
    packing = Packing(arrays)
    host = _pinned((packing.bytes,), torch.uint8)
    packing.fill(host.numpy())
    return packing.views(host.to(device, non_blocking=True))


class Packing:
    """Arrays in one buffer: those of one type side by side, so that few operations make all their views."""

    def __init__(self, arrays: dict[str, Array]) -> None:
        self.arrays = arrays
        self.by_kind: dict[np.dtype[Any], list[str]] = {}
        for name, array in arrays.items():
            self.by_kind.setdefault(np.dtype(np.int32) if array.dtype.kind == "i" else array.dtype, []).append(name)
        self.sizes = {kind: [_aligned(arrays[name].size, kind) for name in of] for kind, of in self.by_kind.items()}
        self.lengths = [sum(counts) * kind.itemsize for kind, counts in self.sizes.items()]
        self.bytes = sum(self.lengths)

    def fill(self, buffer: Array) -> None:
        """Writes the arrays into uint8[bytes]."""
        start = 0
        for (kind, names), length in zip(self.by_kind.items(), self.lengths, strict=True):
            at, values = 0, buffer[start : start + length].view(kind)
            for name, size in zip(names, self.sizes[kind], strict=True):
                array = self.arrays[name]
                np.copyto(values[at : at + array.size].reshape(array.shape), array, casting="same_kind")
                at += size
            start += length

    def views(self, buffer: Tensor) -> dict[str, Tensor]:
        """The arrays in a filled buffer."""
        tensors: dict[str, Tensor] = {}
        parts = torch.split(buffer, self.lengths)
        for (kind, names), part in zip(self.by_kind.items(), parts, strict=True):
            values = torch.split(part.view(_tensor_type(kind)), self.sizes[kind])
            for name, own in zip(names, values, strict=True):
                array = self.arrays[name]
                tensors[name] = own[: array.size] if array.ndim == 1 else own[: array.size].view(array.shape)
        return tensors


def _aligned(size: int, kind: np.dtype[Any]) -> int:
    """`size`, or as many more elements as make a multiple of ALIGNMENT bytes."""
    return -(-size * kind.itemsize // ALIGNMENT) * ALIGNMENT // kind.itemsize


def _pinned(shape: Sequence[int], kind: torch.dtype) -> Tensor:
    return torch.empty(shape, dtype=kind, pin_memory=True)


def placed(array: Array, device: torch.device | str) -> Tensor:
    """An array on the device, without waiting for a GPU."""
    if torch.device(device).type != "cuda":
        return torch.from_numpy(array)
    host = _pinned(array.shape, _tensor_type(array.dtype))
    np.copyto(host.numpy(), array)
    return host.to(device, non_blocking=True)


def to_host(tensor: Tensor) -> Callable[[], Array]:
    """Starts to copy a tensor to the host; the function waits for that alone, not for what a GPU was given since."""
    if not tensor.is_cuda:
        return tensor.numpy
    host = _pinned(tensor.shape, tensor.dtype)
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


def _with_integers(array: Array) -> Array:
    return array.astype(np.int64, copy=False) if array.dtype.kind == "i" else array
