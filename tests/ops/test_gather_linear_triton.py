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
