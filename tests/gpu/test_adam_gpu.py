"""Adam's rows on a GPU that does other work at the same time. Skipped without a GPU."""

from __future__ import annotations

import pytest
import torch

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")

ROWS, D = 4000, 64


def test_rows_move_alike_beside_other_work() -> None:
    """Where warps drift apart, one may not read what another has already written."""
    from dynedge.ops.adam import reference
    from dynedge.ops.adam.triton import row_step

    torch.manual_seed(0)
    rows = torch.arange(0, ROWS, 2, device="cuda")
    value, grad = torch.randn(ROWS, D, device="cuda"), torch.randn(len(rows), D, device="cuda")
    lr, scale = torch.tensor(0.01, device="cuda").double(), torch.ones((), device="cuda").double()

    def step(compute: object, device: str) -> list[torch.Tensor]:
        found = [value.clone(), torch.zeros_like(value), torch.zeros_like(value)]
        parts = [part.to(device) for part in (*found, torch.zeros(ROWS, dtype=torch.int32), rows, grad, lr, scale)]
        moved, mean, square, steps, named, by, rate, factor = parts
        compute(moved, named, by, mean, square, steps, rate, factor)  # type: ignore[operator]
        return [part.cpu() for part in (moved, mean, square, steps)]

    right = step(reference.row_step, "cpu")
    beside, other = torch.cuda.Stream(), torch.randn(2000, 2000, device="cuda")  # type: ignore[no-untyped-call]
    for _ in range(200):
        with torch.cuda.stream(beside):
            for _ in range(4):
                other = (other @ other).tanh()
        for found, expected in zip(step(row_step, "cuda"), right, strict=True):
            torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)
