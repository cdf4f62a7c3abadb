"""segment_sum's Triton kernels against the reference."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from ops.triton_interpreter import DEVICE

from dynedge.ops.segment_sum import reference
from dynedge.ops.segment_sum.triton import segment_sum, segment_sum_at_heads

pytestmark = pytest.mark.slow

KEYS = {
    "none": [],
    "negative keys first": [-2, -1, -1, *[0] * 40, 3],
    "one": [3],
    "all different": range(70),
    "all the same": [2] * 200,
    "one that spans many blocks": [0] * 5 + [1] * 1060 + [4] * 3,
    "blocks that end with a key": [0] * 32 + [1] * 32 + [2] * 64 + [3],
}


@pytest.mark.parametrize(("d", "kind"), [(1, torch.int64), (16, torch.int32), (65, torch.int64)])
@pytest.mark.parametrize("name", KEYS)
def test_segment_sum(name: str, d: int, kind: torch.dtype) -> None:
    rng = np.random.default_rng(0)
    keys = torch.tensor(list(KEYS[name]), dtype=kind)
    values = torch.from_numpy(rng.standard_normal((50, d)).astype(np.float32))
    source = torch.from_numpy(rng.integers(0, 50, len(keys))).to(kind)
    expected = torch.full((80, d), torch.nan, dtype=torch.float64)
    reference.segment_sum(values.double(), source[keys >= 0], keys[keys >= 0], expected)
    out = torch.full((80, d), torch.nan, device=DEVICE)
    segment_sum(values.to(DEVICE), source.to(DEVICE), keys.to(DEVICE), out)
    torch.testing.assert_close(out.cpu().double(), expected, rtol=1e-5, atol=1e-4, equal_nan=True)

    at_heads = segment_sum_at_heads(values.to(DEVICE), source.to(DEVICE), keys.to(DEVICE)).cpu()
    head = torch.tensor(np.diff(keys.numpy(), prepend=-9) != 0) & (keys >= 0)
    torch.testing.assert_close(at_heads[head].double(), expected[keys[head].long()], rtol=1e-5, atol=1e-4)
    assert not at_heads[~head].any()


def test_scaled() -> None:
    values, keys = torch.randn(40, 5), torch.tensor([0] * 39 + [2])
    out = torch.full((3, 5), torch.nan, device=DEVICE)
    segment_sum(
        values.to(DEVICE), torch.arange(40, device=DEVICE), keys.to(DEVICE), out, torch.tensor(2.0).to(DEVICE)
    )
    torch.testing.assert_close(out[[0, 2]].cpu(), 2 * torch.stack([values[:39].sum(0), values[39]]))
    assert out[1].isnan().all()
