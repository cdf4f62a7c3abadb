"""Memoization by index tensor: results computed from a window's indices are kept from epoch to epoch."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import torch
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

MAX_ENTRIES = 1 << 20  # of an index: results of larger ones would fill the GPU's memory
Result = TypeVar("Result")


def remember(function: Callable[..., Result]) -> Callable[..., Result]:
    """Returns the function with its last result for each index, its first argument, cached while that is unchanged.

    Nothing is cached while a CUDA graph is captured: a replay has to compute the result from its current input.
    """
    results = WeakTensorKeyDictionary()  # type: ignore[no-untyped-call]

    def remembered(index: Tensor, *more: int) -> Result:
        made_of, result = results.get(index, (None, None))  # type: ignore[no-untyped-call]
        if made_of != (index._version, *more):
            result = function(index, *more)
            if index.numel() <= MAX_ENTRIES and not (index.is_cuda and torch.cuda.is_current_stream_capturing()):
                results[index] = (index._version, *more), result
        return result  # type: ignore[no-any-return]

    return remembered
