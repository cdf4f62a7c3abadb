"""Copies of structures of tensors, on a CPU; tests/gpu trains from windows that were copied to the host and back."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from dynedge.ops.host_to_device import ALIGNMENT, Packing, copied

CPU = torch.device("cpu")


class Pair(NamedTuple):
    left: Tensor
    right: Tensor | None


@dataclass(frozen=True, eq=False)
class Parts:
    name: str
    pair: Pair
    matrix: Tensor
    more: tuple[Any, ...]


def parts() -> Parts:
    buffer = torch.arange(48, dtype=torch.uint8)
    left, matrix = buffer[:16].view(torch.int32), buffer[16:].view(torch.float64).view(2, 2)
    return Parts("some", Pair(left, None), matrix, (matrix[:, 1], torch.zeros(0), ("text", 3)))


def test_a_copy_has_the_same_numbers_in_other_memory() -> None:
    old = parts()
    new = copied(old, CPU)
    old_tensors = old.pair.left, old.matrix, *old.more[:2]
    new_tensors = new.pair.left, new.matrix, *new.more[:2]
    for before, after in zip(old_tensors, new_tensors, strict=True):
        assert torch.equal(before, after) and before.dtype == after.dtype and before.stride() == after.stride()
    old.pair.left.zero_(), old.matrix.zero_()
    assert new.pair.left.tolist() == parts().pair.left.tolist() and new.matrix.equal(parts().matrix)


def test_tensors_that_share_memory_still_do() -> None:
    new = copied(parts(), CPU)
    assert len({tensor.untyped_storage().data_ptr() for tensor in (new.pair.left, new.matrix, new.more[0])}) == 1
    new.matrix[0, 1] = 7.0
    assert new.more[0][0] == 7.0


def test_parts_without_tensors_stay_the_same_objects() -> None:
    old = parts()
    new = copied(old, CPU)
    assert isinstance(new.pair, Pair) and new.pair.right is None
    assert new.more[2] is old.more[2] and copied(old.more[2], CPU) is old.more[2]


def test_packed_arrays_keep_numbers_shapes_and_alignment() -> None:
    """Whole numbers become int32; empty, strided, two-dimensional and odd-sized arrays, over poisoned memory."""
    grid = np.arange(14, dtype=np.int64).reshape(7, 2)
    arrays = {
        "column": grid[:, 1],
        "empty": np.zeros(0, np.int64),
        "times": np.array([0.5, -np.inf, 3.0]),
        "flags": np.array([True, False, True]),
        "features": np.arange(15, dtype=np.float32).reshape(5, 3),
        "no_features": np.zeros((5, 0), np.float32),
        "grid": grid,
        "narrow": np.array([-1, 5], np.int32),
    }
    packing = Packing(arrays)
    host = np.full(packing.bytes, 0xA5, np.uint8)
    packing.fill(host)
    views = packing.views(torch.from_numpy(host))
    assert sorted(views) == sorted(arrays)
    for name, array in arrays.items():
        view = views[name]
        assert np.array_equal(view.numpy(), array) and view.shape == array.shape
        assert view.dtype == (torch.int32 if array.dtype.kind == "i" else torch.from_numpy(array).dtype)
        assert not view.numel() or (view.data_ptr() - host.ctypes.data) % ALIGNMENT == 0
