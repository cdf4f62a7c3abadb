"""Triton's sums of rows by key, and its row-wise Adam, against their references."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from ops.triton_interpreter import DEVICE

from dynedge.ops.adam import reference as adam
from dynedge.ops.adam import triton as adam_triton
from dynedge.ops.gather_linear import triton as linear_triton
from dynedge.ops.read_states import EntityTable
from dynedge.ops.read_states import reference as states
from dynedge.ops.read_states import triton as states_triton
from dynedge.ops.segment_sum import reference
from dynedge.ops.segment_sum.triton import segment_sum, segment_sum_at_heads

LR = torch.tensor(0.01, dtype=torch.float64)
KEYS = {
    "none": [],
    "nobody's first": [-2, -1, -1, *[0] * 40, 3],
    "one": [3],
    "all different": range(70),
    "all the same": [2] * 200,
    "one that spans many blocks": [0] * 5 + [1] * 1060 + [4] * 3,
    "blocks that end with a key": [0] * 32 + [1] * 32 + [2] * 64 + [3],
}


@pytest.mark.parametrize(("d", "kind"), [(1, torch.int64), (16, torch.int32), (65, torch.int64)])
@pytest.mark.parametrize("name", KEYS)
def test_row_sums(name: str, d: int, kind: torch.dtype) -> None:
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


@pytest.mark.parametrize("shape", [(40, 7), (40, 64), (40, 130)])
def test_row_step(shape: tuple[int, int]) -> None:
    """Five steps, some rows in all of them, some in few; repeats after the first of a row are not looked at."""
    torch.manual_seed(0)
    value, scale = torch.randn(shape), torch.tensor(0.7)
    mine = [part.to(DEVICE) for part in (value, torch.zeros(shape), torch.zeros(shape))]
    right = [part.double() for part in (value, torch.zeros(shape), torch.zeros(shape))]
    steps, right_steps = torch.zeros(40, dtype=torch.int32, device=DEVICE), torch.zeros(40, dtype=torch.int32)
    for size in (40, 20, 1, 33, 17):
        rows = torch.randperm(40)[:size].sort().values
        grad = torch.randn(size, shape[1])
        adam.row_step(right[0], rows, grad.double(), *right[1:], right_steps, LR, scale.double())
        repeated = rows.repeat_interleave(2), torch.stack((grad, torch.full_like(grad, torch.nan)), 1).flatten(0, 1)
        adam_triton.row_step(
            mine[0], *(part.to(DEVICE) for part in repeated), *mine[1:], steps, LR.to(DEVICE), scale.to(DEVICE)
        )
    assert torch.equal(steps.cpu(), right_steps)
    for got, expected in zip(mine, right, strict=True):
        torch.testing.assert_close(got.cpu().double(), expected, rtol=1e-5, atol=1e-6)


def test_dense_step_and_square_sum() -> None:
    torch.manual_seed(0)
    value, scale = torch.randn(1030), torch.tensor(0.7)
    mine = [part.to(DEVICE) for part in (value, torch.zeros(1030), torch.zeros(1030))]
    right = [part.double() for part in (value, torch.zeros(1030), torch.zeros(1030))]
    for count in range(1, 4):
        grad = torch.randn(1030)
        adam.dense_step(right[0], grad.double(), *right[1:], count, LR, scale.double())
        adam_triton.dense_step(mine[0], grad.to(DEVICE), *mine[1:], count, LR.to(DEVICE), scale.to(DEVICE))
    for got, expected in zip(mine, right, strict=True):
        torch.testing.assert_close(got.cpu().double(), expected, rtol=1e-5, atol=1e-6)
    grads = [torch.randn(5, 3), torch.zeros(0, 4), torch.randn(7)]
    found = adam_triton.sum_of_squares([part.to(DEVICE) for part in grads])
    torch.testing.assert_close(found.cpu(), adam.sum_of_squares(grads), rtol=1e-6, atol=0)


@pytest.mark.parametrize("rows", [7, 50, 4000])
def test_rows_named_twice_are_summed(rows: int) -> None:
    """Of tables with fewer rows than are named, and with more; rows below 0 are nobody's."""
    torch.manual_seed(0)
    named, values = torch.randint(-1, min(rows, 40), (90,)), torch.randn(90, 5)
    grad = torch.sparse_coo_tensor(named[None], values, (rows, 5), check_invariants=False)
    found = adam_triton.coalesce(grad.to(DEVICE))
    keys, sums = found._indices()[0].cpu(), found._values().cpu()
    right = torch.zeros(rows, 5).index_add(0, named[named >= 0], values[named >= 0])
    heads = (keys >= 0) & torch.cat([torch.ones(1, dtype=torch.bool), keys[1:] != keys[:-1]])
    assert sorted(keys[heads].tolist()) == named[named >= 0].unique().tolist()
    torch.testing.assert_close(torch.zeros(rows, 5).index_copy(0, keys[heads], sums[heads]), right)
    assert not sums[~heads].any()


@pytest.mark.parametrize("d", [5, 64, 100])
def test_read_states(d: int) -> None:
    """Rows of their own, ψ and ξ; two groups and rows below them."""
    torch.manual_seed(0)
    count, active = 70, 6
    row = torch.full((count,), -1)
    row[torch.randperm(count)[:active]] = torch.arange(active)
    parts = [torch.randn(d), torch.randn(active, d), row, torch.randn(count, d), torch.rand(count) < 0.4]
    groups, more = [torch.randperm(count)[:50], torch.randperm(count)[:33]], torch.randn(4, d)
    grad = torch.randn(87, d)

    def gradients(operator, device):
        learned = [tensor.clone().to(device).requires_grad_() for tensor in (*parts[:2], more)]
        side = EntityTable(*learned[:2], *(part.to(device) for part in parts[2:]))
        found = operator([(side, group.to(device)) for group in groups], learned[2])
        return [found.detach(), *torch.autograd.grad(found, learned, grad.to(device))]

    expected = gradients(states.read_states, "cpu")
    expected[2] = expected[2].to_dense()
    found = gradients(states_triton.read_states, DEVICE)
    rows, values = found[2]._indices()[0], found[2]._values()
    found[2] = torch.zeros(active, d).index_add(0, rows[rows >= 0].cpu(), values[rows >= 0].cpu())
    for got, right in zip(found, expected, strict=True):
        torch.testing.assert_close(got.cpu(), right, rtol=1e-5, atol=1e-5)


def test_pick_rows() -> None:
    torch.manual_seed(0)
    x, index = torch.randn(20, 7), torch.randint(15, (100,))
    grad = torch.randn(100, 7)
    mine = x.to(DEVICE).requires_grad_()
    picked = linear_triton.gather_rows(mine, index.to(DEVICE))
    assert torch.equal(picked.detach().cpu(), x[index])
    (got,) = torch.autograd.grad(picked, mine, grad.to(DEVICE))
    torch.testing.assert_close(got.cpu(), torch.zeros(20, 7).index_add(0, index, grad), rtol=1e-5, atol=1e-5)
