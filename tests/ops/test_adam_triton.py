"""adam's Triton kernels against the reference."""

from __future__ import annotations

import pytest
import torch
from ops.triton_interpreter import DEVICE

from dynedge.ops.adam import DenseUpdate, reference, triton

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


def test_dense_steps() -> None:
    """Parameters of several blocks, of a few numbers and of none, with their own learning rates and step counts."""
    torch.manual_seed(0)
    shapes, rates, scale = [(1030,), (3, 5), (0, 4), (64, 32)], [0.01, 0.1, 0.01, 0.001], torch.tensor(0.7)
    values = [torch.randn(shape) for shape in shapes]
    parts = [[value, torch.zeros_like(value), torch.zeros_like(value)] for value in values]
    actual = [[part.clone().to(DEVICE) for part in three] for three in parts]
    expected = [[part.double() for part in three] for three in parts]
    steps = [torch.tensor(count, device=DEVICE) for count in (0, 7, 0, 1)]
    lrs = [torch.tensor(rate, dtype=torch.float64, device=DEVICE) for rate in rates]
    for _ in range(3):
        grads = [torch.randn(shape) for shape in shapes]
        for three, grad, rate, count in zip(expected, grads, rates, steps, strict=True):
            reference.dense_step(
                three[0], grad.double(), *three[1:], count.cpu() + 1, torch.tensor(rate), scale.double()
            )
        updates = [
            DenseUpdate(three[0], grad.to(DEVICE), *three[1:], count, lr)
            for three, grad, count, lr in zip(actual, grads, steps, lrs, strict=True)
        ]
        triton.dense_steps(updates, scale.to(DEVICE))
    assert [int(count) for count in steps] == [3, 10, 0, 4]
    for three, right in zip(actual, expected, strict=True):
        for got, wanted in zip(three, right, strict=True):
            torch.testing.assert_close(got.cpu().double(), wanted, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("max_norm", "more"), [(1.0, 0.0), (100.0, 2.5), (1, 1e6)])
def test_clip_scale(max_norm: float, more: float) -> None:
    grads = [torch.randn(5, 3), torch.zeros(0, 4), torch.randn(7), *torch.randn(70, 2)]
    total, scale = triton.clip_scale([part.to(DEVICE) for part in grads], max_norm, more)
    right = reference.sum_of_squares(grads) + more
    torch.testing.assert_close(total.cpu(), right, rtol=1e-6, atol=0)
    torch.testing.assert_close(scale.cpu(), (max_norm / right.sqrt()).clamp(max=1.0), rtol=1e-5, atol=0)
    grads[2][3] = torch.nan
    assert all(part.isnan() for part in triton.clip_scale([part.to(DEVICE) for part in grads], max_norm, more))


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


def test_tables_are_coalesced_together() -> None:
    """Also one without entries, one without a row, a wider one; negative rows are skipped."""
    torch.manual_seed(0)
    grads = []
    for size, entries, d in ((7, 90, 5), (50, 0, 5), (3, 4, 5), (40, 30, 9), (4000, 90, 5), (9, 8, 9)):
        rows = torch.randint(-2, min(size, 40), (entries,))
        rows[: entries if size == 3 else 0] = -1
        grads.append(torch.sparse_coo_tensor(rows[None], torch.randn(entries, d), (size, d), check_invariants=False))
    together = triton.coalesce_all([grad.to(DEVICE) for grad in grads])
    for grad, got in zip(grads, together, strict=True):
        rows, values, keys, sums = grad._indices()[0], grad._values(), got._indices()[0].cpu(), got._values().cpu()
        expected = torch.zeros(grad.shape).index_add(0, rows[rows >= 0], values[rows >= 0])
        heads = (keys >= 0) & (torch.diff(keys, prepend=torch.tensor([-9])) != 0)
        assert got.is_coalesced() and sorted(keys[heads].tolist()) == rows[rows >= 0].unique().tolist()
        torch.testing.assert_close(torch.zeros(grad.shape).index_copy(0, keys[heads], sums[heads]), expected)
        assert not sums[~heads].any()
