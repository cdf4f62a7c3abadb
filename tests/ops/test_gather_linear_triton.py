"""gather_rows on a GPU: values and the gradient, summed over repeated rows by Triton."""

from __future__ import annotations

import pytest
import torch
from ops.triton_interpreter import DEVICE

from dynedge.ops.gather_linear import reference, triton
from dynedge.ops.segment_sum.triton import sorted_index

pytestmark = pytest.mark.slow


def test_gather_rows() -> None:
    torch.manual_seed(0)
    x, index = torch.randn(20, 7), torch.randint(15, (100,))
    grad = torch.randn(100, 7)
    table = x.to(DEVICE).requires_grad_()
    gathered = triton.gather_rows(table, index.to(DEVICE))
    assert torch.equal(gathered.detach().cpu(), x[index])
    (got,) = torch.autograd.grad(gathered, table, grad.to(DEVICE))
    torch.testing.assert_close(got.cpu(), torch.zeros(20, 7).index_add(0, index, grad), rtol=1e-5, atol=1e-5)


SIZES = {
    "one table": (7, [(0, 3, False)], 5),
    "one aligned table": (7, [(0, 16, False)], 5),
    "few rows, read often": (50, [(4, 3, True)], 5),
    "several tables": (33, [(5, 16, True), (60, 7, True), (0, 2, False)], 65),
    "wide": (40, [(9, 70, True), (0, 64, False)], 24),
    "a table without columns": (6, [(3, 0, True), (0, 2, False)], 4),
    "no rows": (0, [(3, 2, True)], 4),
}


@pytest.mark.parametrize("relu", [False, True])
@pytest.mark.parametrize("name", SIZES)
def test_gather_linear(name: str, relu: bool) -> None:
    n, tables, o = SIZES[name]
    torch.manual_seed(0)
    width = sum(c for _, c, _ in tables)
    tensors = [torch.randn(rows if is_indexed else n, c) for rows, c, is_indexed in tables]
    tensors += [torch.randn(o, width), torch.randn(o)]
    indices = [torch.randint(rows, (n,), dtype=torch.int32) if is_indexed else None for rows, _, is_indexed in tables]
    results = []
    for compute, device in ((reference.gather_linear, "cpu"), (triton.gather_linear, DEVICE)):
        *xs, w, bias = inputs = [tensor.to(device).requires_grad_() for tensor in tensors]
        placed = [None if index is None else index.to(device) for index in indices]
        for _ in range(2):  # the second time with the remembered order of the indices
            out = compute(list(zip(xs, placed, strict=True)), w, bias, relu)
            grads = torch.autograd.grad(out.square().sum(), inputs)
        results.append([out.detach().cpu(), *(grad.cpu() for grad in grads)])
    for right, own in zip(*results, strict=True):
        torch.testing.assert_close(own, right, rtol=1e-4, atol=1e-3)


def test_only_what_needs_a_gradient_gets_one() -> None:
    x, w, bias = torch.randn(5, 8), torch.randn(3, 8).to(DEVICE).requires_grad_(), torch.randn(3).to(DEVICE)
    out = triton.gather_linear([(x.to(DEVICE), torch.tensor([1, 1, 4]).to(DEVICE))], w, bias, False)
    out.sum().backward()
    torch.testing.assert_close(w.grad.cpu(), x[[1, 1, 4]].sum(0).expand(3, -1), rtol=1e-5, atol=1e-5)


def test_an_index_that_changed_is_sorted_again() -> None:
    index = torch.tensor([2, 0, 1]).to(DEVICE)
    assert sorted_index(index)[0].tolist() == [0, 1, 2]
    index.fill_(5)
    assert sorted_index(index)[0].tolist() == [5, 5, 5]


@pytest.mark.parametrize(
    ("n", "first", "tables", "d"), [(40, 30, 2, 16), (33, 0, 1, 70), (0, 0, 2, 5), (5, 5, 3, 64)]
)
@pytest.mark.parametrize("used", ["both", "all", "first", "none"])
def test_embed(n: int, first: int, tables: int, d: int, used: str) -> None:
    """Entities that occur twice, and −1, the last one; readers of all rows, of the first ones, or of neither."""
    torch.manual_seed(0)
    entities, codes = torch.randint(-1, 19, (n,)), torch.randint(9, (tables, 20))
    weights = [torch.randn(9, d) for _ in range(tables)]
    upstream = torch.randn(n, tables * d), torch.randn(first, tables * d)
    results = []
    for compute, device in ((reference.embed, "cpu"), (triton.embed, DEVICE)):
        own = [weight.clone().to(device).requires_grad_() for weight in weights]
        rows, (table, index) = compute(own, codes.to(device), entities.to(device), first)
        of_first = table if index is None else table[index]
        results.append([rows.detach().cpu(), of_first.detach().cpu()])
        total = 0 * sum(weight.sum() for weight in own)
        if used in ("both", "all"):
            total = total + (rows * upstream[0].to(device)).sum()
        if used in ("both", "first"):
            total = total + (of_first * upstream[1].to(device)).sum()
        results[-1] += [grad.to_dense().cpu() for grad in torch.autograd.grad(total, own)]
    for right, got in zip(*results, strict=True):
        torch.testing.assert_close(got, right, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("distinct", [True, False])
@pytest.mark.parametrize("base", [True, False])
@pytest.mark.parametrize("d", [7, 64, 100])
def test_table_and_parts(distinct: bool, base: bool, d: int) -> None:
    """The table, its rows for products and copied ones, one of them without a gradient.

    −1 gives some row, or zeros among the last rows for a product, whose gradient is ignored.
    """
    torch.manual_seed(0)
    x, read = torch.randn(50, d), torch.randperm(50)[:40] if distinct else torch.randint(20, (90,))
    copied = [torch.randint(50, (30,)), torch.tensor([3, -1, 9]), torch.randperm(50)[:5]]
    upstream = [torch.randn(50, d), torch.randn(len(read), d), *(torch.randn(len(index), d) for index in copied)]
    upstream[3][1] = 0
    last, of_last = torch.randint(-1, 20, (45,)), torch.randn(45, d)
    expected = torch.zeros(50, d).index_add(0, read, upstream[1])
    for index, values in zip(copied[:2], upstream[2:4], strict=True):
        expected.index_add_(0, index.clamp_min(0), values)
    expected.index_add_(0, last[last >= 0], of_last[last >= 0])
    table = x.to(DEVICE).requires_grad_()
    whole, rows, last_rows, *others = triton.table_and_rows(
        table, read.to(DEVICE), distinct, last.to(DEVICE), *(index.to(DEVICE) for index in copied)
    )
    assert torch.equal(last_rows.detach().cpu(), torch.where((last >= 0)[:, None], x[last], 0.0))
    assert torch.equal(triton.rows_or_zeros(x.to(DEVICE), last.to(DEVICE)).cpu(), last_rows.detach().cpu())
    assert torch.equal(whole.detach().cpu(), x) and torch.equal(rows.detach().cpu(), x[read])
    assert all(
        torch.equal(part.detach().cpu(), x[index.clamp_min(0)]) for part, index in zip(others, copied, strict=True)
    )
    pairs = list(zip([rows, last_rows, *others[:2]], [upstream[1], of_last, *upstream[2:4]], strict=True))
    pairs += [(whole, upstream[0])] * base
    (got,) = torch.autograd.grad([out for out, _ in pairs], table, [grad.to(DEVICE) for _, grad in pairs])
    torch.testing.assert_close(got.cpu(), expected + base * upstream[0], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("padding", [0, 3])
@pytest.mark.parametrize("kind", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize(("shape", "count"), [((5, 7), 5), ((70, 40), 90), ((3, 0), 2), ((2, 64), 1500)])
def test_converted(shape: tuple[int, int], count: int, kind: torch.dtype, padding: int) -> None:
    w, bias = torch.randn(shape), torch.randn(count)
    weight, low = triton.converted(w.to(DEVICE), bias.to(DEVICE), kind, padding)
    assert torch.equal(weight.cpu(), torch.nn.functional.pad(w, (0, padding)).to(kind))
    assert torch.equal(low.cpu(), bias.to(kind))
