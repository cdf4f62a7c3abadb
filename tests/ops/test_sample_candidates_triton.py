"""sample_candidates' Triton kernel against the CPU implementation."""

from __future__ import annotations

import pytest
import torch
from ops.triton_interpreter import DEVICE

from dynedge.ops import sample_candidates
from dynedge.ops.sample_candidates import triton

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(("items", "count"), [(1, 5), (2, 3), (6, 3), (12, 40), (2000, 99), (5_000_000, 20)])
def test_same_candidates_on_every_device(items: int, count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also far into a log, with all other items as negatives, and where there are none."""
    true = torch.randint(items, (9,), generator=torch.Generator().manual_seed(0))
    expected = sample_candidates.sample_candidates(true, 3_000_000_000, items, count, 7)
    for device in ("cpu", "cuda"):
        monkeypatch.setitem(sample_candidates.BY_DEVICE, device, triton.sample_candidates)
    candidates = sample_candidates.sample_candidates(true.to(DEVICE), 3_000_000_000, items, count, 7)
    assert torch.equal(candidates.cpu(), expected)
