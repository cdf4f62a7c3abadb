"""adam's Triton kernels against the reference."""

from __future__ import annotations

import pytest
import torch
from ops.triton_interpreter import DEVICE

from dynedge.ops.adam import reference, triton

pytestmark = pytest.mark.slow

LR = torch.tensor(0.01, dtype=torch.float64)


@pytest.mark.parametrize("shape", [(40, 7), (40, 64), (40, 130)])
def test_row_step(shape: tuple[int, int]) -> None:
    """Five steps, some rows in all of them, some in few; repetitions after the first of a row are ignored."""
    torch.manual_seed(0)
    value, scale = torch.randn(shape), torch.tensor(0.7)
    actual = [part.to(DEVICE) for part in (value, torch.zeros(shape), torch.zeros(shape))]
    expected = [part.double() for part in (value, torch.zeros(shape), torch.zeros(shape))]
    steps, expected_steps = torch.zeros(40, dtype=torch.int32, device=DEVICE), torch.zeros(40, dtype=torch.int32)
    for size in (40, 20, 1, 33, 17):
        rows = torch.randperm(40)[:size].sort().values
        grad = torch.randn(size, shape[1])
        reference.row_step(expected[0], rows, grad.double(), *expected[1:], expected_steps, LR, scale.double())
        repeated = rows.repeat_interleave(2), torch.stack((grad, torch.full_like(grad, torch.nan)), 1).flatten(0, 1)
        triton.row_step(
            actual[0], *(part.to(DEVICE) for part in repeated), *actual[1:], steps, LR.to(DEVICE), scale.to(DEVICE)
        )
    assert torch.equal(steps.cpu(), expected_steps)
    for got, right in zip(actual, expected, strict=True):
        torch.testing.assert_close(got.cpu().double(), right, rtol=1e-5, atol=1e-6)


def test_dense_step_and_sum_of_squares() -> None:
    torch.manual_seed(0)
    value, scale = torch.randn(1030), torch.tensor(0.7)
    actual = [part.to(DEVICE) for part in (value, torch.zeros(1030), torch.zeros(1030))]
    expected = [part.double() for part in (value, torch.zeros(1030), torch.zeros(1030))]
    for count in range(1, 4):
        grad = torch.randn(1030)
        reference.dense_step(expected[0], grad.double(), *expected[1:], count, LR, scale.double())
        triton.dense_step(actual[0], grad.to(DEVICE), *actual[1:], count, LR.to(DEVICE), scale.to(DEVICE))
    for got, right in zip(actual, expected, strict=True):
        torch.testing.assert_close(got.cpu().double(), right, rtol=1e-5, atol=1e-6)
    grads = [torch.randn(5, 3), torch.zeros(0, 4), torch.randn(7)]
    total = triton.sum_of_squares([part.to(DEVICE) for part in grads])
    torch.testing.assert_close(total.cpu(), reference.sum_of_squares(grads), rtol=1e-6, atol=0)


@pytest.mark.parametrize("size", [7, 50, 4000])
def test_coalesce_sums_repeated_rows(size: int) -> None:
    """In tables with fewer rows than the gradient has entries, and with more; negative rows are skipped."""
    torch.manual_seed(0)
    rows, values = torch.randint(-1, min(size, 40), (90,)), torch.randn(90, 5)
    grad = torch.sparse_coo_tensor(rows[None], values, (size, 5), check_invariants=False)
    coalesced = triton.coalesce(grad.to(DEVICE))
    keys, sums = coalesced._indices()[0].cpu(), coalesced._values().cpu()
    expected = torch.zeros(size, 5).index_add(0, rows[rows >= 0], values[rows >= 0])
    heads = (keys >= 0) & torch.cat([torch.ones(1, dtype=torch.bool), keys[1:] != keys[:-1]])
    assert sorted(keys[heads].tolist()) == rows[rows >= 0].unique().tolist()
    torch.testing.assert_close(torch.zeros(size, 5).index_copy(0, keys[heads], sums[heads]), expected)
    assert not sums[~heads].any()
