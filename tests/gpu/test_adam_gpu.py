"""adam's row step on a GPU that runs other work at the same time. Skipped without a GPU."""

from __future__ import annotations

import pytest
import torch

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")

ROWS, D = 4000, 64


def test_row_step_is_correct_under_concurrent_work() -> None:
    """Where warps run at different times, one must not read what another has already written."""
    from dynedge.ops.adam import reference
    from dynedge.ops.adam.triton import row_step

    torch.manual_seed(0)
    rows = torch.arange(0, ROWS, 2, device="cuda")
    value, grad = torch.randn(ROWS, D, device="cuda"), torch.randn(len(rows), D, device="cuda")
    lr, scale = torch.tensor(0.01, device="cuda").double(), torch.ones((), device="cuda").double()

    def step(compute: object, device: str) -> list[torch.Tensor]:
        tensors = [value.clone(), torch.zeros_like(value), torch.zeros_like(value)]
        parts = [part.to(device) for part in (*tensors, torch.zeros(ROWS, dtype=torch.int32), rows, grad, lr, scale)]
        updated, mean, square, steps, row_numbers, row_grads, lr_scalar, scale_scalar = parts
        compute(updated, row_numbers, row_grads, mean, square, steps, lr_scalar, scale_scalar)  # type: ignore[operator]
        return [part.cpu() for part in (updated, mean, square, steps)]

    expected = step(reference.row_step, "cpu")
    side_stream, matrix = torch.cuda.Stream(), torch.randn(2000, 2000, device="cuda")  # type: ignore[no-untyped-call]
    for _ in range(200):
        with torch.cuda.stream(side_stream):
            for _ in range(4):
                matrix = (matrix @ matrix).tanh()
        for got, right in zip(step(row_step, "cuda"), expected, strict=True):
            torch.testing.assert_close(got, right, rtol=1e-5, atol=1e-6)
