"""Checks of a state that was read from a file: dtypes, shapes and ranges, before any number is used as an index."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

import torch
from torch import Tensor

from dynedge.errors import DataError
from dynedge.models.base import State

Size = int | None | Callable[[int], bool]  # of a dimension: that size, any, or one that a function accepts


def at_least(size: int) -> Callable[[int], bool]:
    """The size of a dimension with spare capacity."""
    return lambda found: found >= size


def check_names(state: State, names: Iterable[str]) -> None:
    """Raises DataError unless the state has exactly these tensors."""
    expected = set(names)
    for name in expected - state.keys():
        raise DataError(f"it has no '{name}'")
    for name in state.keys() - expected:
        raise DataError(f"it has '{name}', which does not belong to the model")


def check_tensor(
    state: State,
    name: str,
    dtype: torch.dtype,
    shape: tuple[Size, ...],
    least: float = -math.inf,
    most: float = math.inf,
) -> Tensor:
    """Returns a tensor of the state; DataError unless it has this dtype and shape and its numbers are in the range.

    Numbers must be finite; a bool must be stored as 0 or 1.
    """
    tensor = state[name]
    if tensor.dtype != dtype:
        raise DataError(f"'{name}' is of type {tensor.dtype} instead of {dtype}")
    fits = len(tensor.shape) == len(shape) and all(
        size is None or (size(found) if callable(size) else size == found)
        for found, size in zip(tensor.shape, shape, strict=True)
    )
    if not fits:
        raise DataError(f"'{name}' has the shape {list(tensor.shape)}, which does not fit the run")
    check_range(name, tensor, least, most)
    return tensor


def check_range(name: str, tensor: Tensor, least: float = -math.inf, most: float = math.inf) -> None:
    """Raises DataError unless all numbers are finite and in the range; one pass."""
    if not tensor.numel():
        return
    if tensor.dtype == torch.bool:
        tensor, least, most = tensor.view(torch.uint8), 0, 1
    low, high = (bound.item() for bound in torch.aminmax(tensor))  # NaN if there is one
    if not (math.isfinite(low) and math.isfinite(high)):
        raise DataError(f"'{name}' has a number that is not finite")
    if not least <= low <= high <= most:
        raise DataError(f"'{name}' has the number {low if low < least else high}, which is out of range")


def check_like(state: State, expected: State) -> None:
    """Raises DataError unless the state has the names, dtypes and shapes of another, and finite numbers."""
    check_names(state, expected)
    for name, tensor in expected.items():
        check_tensor(state, name, tensor.dtype, tuple(tensor.shape))
