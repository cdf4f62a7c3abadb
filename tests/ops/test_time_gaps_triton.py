"""time_gaps' Triton kernel against the reference."""

from __future__ import annotations

import pytest
import torch
from ops.triton_interpreter import DEVICE

from dynedge.ops.time_gaps import EntityTimes, reference, triton

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("poisoned_anywhere")]


def random_side(time: torch.Tensor, entities: int) -> EntityTimes:
    """A third of the events have a previous one in the window, a third of the entities one before it."""
    n = len(time)
    past = torch.where(torch.rand(n) < 1 / 3, (torch.arange(n) * torch.rand(n)).int(), -1).int()
    last_time = torch.where(torch.rand(entities) < 1 / 3, 1.7e9 - 1e6 * torch.rand(entities).double(), -1.0)
    return EntityTimes(torch.randint(entities, (n,)).int(), past, last_time)


@pytest.mark.parametrize("n", [0, 1, 300])
def test_gaps(n: int) -> None:
    """Of seconds with fractions, of which float32 has none left."""
    torch.manual_seed(0)
    time = 1.7e9 + 1000 * torch.rand(n, dtype=torch.float64).sort().values
    sides, like = [random_side(time, 40), random_side(time, 7)], torch.zeros(1)
    expected = reference.time_gaps(time, sides, like)
    on_device = [EntityTimes(*(part.to(DEVICE) for part in side)) for side in sides]
    result = triton.time_gaps(time.to(DEVICE), on_device, like.to(DEVICE))
    for got, right in zip(result, expected, strict=True):
        assert got.dtype == right.dtype == torch.float32
        torch.testing.assert_close(got.cpu(), right, rtol=1e-6, atol=1e-6)
