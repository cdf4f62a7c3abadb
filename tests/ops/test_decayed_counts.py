"""decayed_counts, compiled and as a Triton kernel, against the reference; cut anywhere, it gives the same bits."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from ops.triton_interpreter import DEVICE
from torch import Tensor

from dynedge.ops.decayed_counts import decayed_counts, reference, triton

RATE = torch.tensor([0.0, 2.0**-3, 2.0**-10], dtype=torch.float64)


def by_item(item: np.ndarray) -> tuple[np.ndarray, Tensor, Tensor]:
    """(items, item_starts, item_events)"""
    items, place = np.unique(item, return_inverse=True)
    starts = np.concatenate(([0], np.cumsum(np.bincount(place, minlength=len(items)))))
    return items, torch.from_numpy(starts), torch.from_numpy(np.argsort(place, kind="stable"))


@pytest.mark.parametrize("half_lives", [1, 3])
@pytest.mark.parametrize("n", [0, 1, 90])
def test_equals_the_reference(n: int, half_lives: int) -> None:
    rng = np.random.default_rng(n)
    items, starts, events = by_item(rng.integers(0, 12, n))
    count = torch.rand(len(items), half_lives) * 5
    event = torch.from_numpy(rng.integers(0, 1000, len(items)))
    inputs = count, event, starts, events, torch.tensor([1000]), RATE[:half_lives]
    expected = reference.decayed_counts(*inputs)
    torch.testing.assert_close(decayed_counts(*inputs), expected)
    on_device = triton.decayed_counts(*(tensor.to(DEVICE) for tensor in inputs)).cpu()
    torch.testing.assert_close(on_device, expected)


@pytest.mark.parametrize("size", [1, 7])
def test_bits_do_not_depend_on_how_a_log_is_cut(size: int) -> None:
    item = np.random.default_rng(0).integers(0, 5, 200)

    def final(size: int) -> Tensor:
        count, event = torch.zeros(5, 3), torch.full((5,), -1)
        for first in range(0, len(item), size):
            items, starts, events = by_item(item[first : first + size])
            clock = torch.tensor([first])
            counts = decayed_counts(count[items], event[items], starts, events, clock, RATE)
            count[items], event[items] = counts[starts[1:] - 1], clock + events[starts[1:] - 1]
        return count

    assert torch.equal(final(size), final(len(item)))
