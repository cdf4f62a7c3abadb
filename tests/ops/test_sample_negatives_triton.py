"""The items drawn by Triton's kernel are those drawn on a CPU."""

from __future__ import annotations

import pytest
import torch
from ops.triton_interpreter import DEVICE

from dynedge.ops import sample_negatives
from dynedge.ops.sample_negatives.triton import sample_negatives as by_triton


@pytest.mark.parametrize(("items", "count"), [(1, 5), (2, 3), (6, 3), (12, 40), (2000, 99), (5_000_000, 20)])
def test_the_same_bits(items: int, count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also far into a log, with all others, and where there are none."""
    true = torch.randint(items, (9,), generator=torch.Generator().manual_seed(0))
    expected = sample_negatives.sample_negatives(true, 3_000_000_000, items, count, 7)
    for device in ("cpu", "cuda"):
        monkeypatch.setitem(sample_negatives.BY_DEVICE, device, by_triton)
    found = sample_negatives.sample_negatives(true.to(DEVICE), 3_000_000_000, items, count, 7)
    assert torch.equal(found.cpu(), expected)
