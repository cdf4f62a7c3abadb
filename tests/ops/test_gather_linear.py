"""gather_linear and gather_rows on a CPU against plain torch: values, every gradient, odd sizes, same bits."""

import pytest
import torch

from dynedge.ops import thread_pool
from dynedge.ops.gather_linear import gather_linear, gather_rows, reference

pytestmark = pytest.mark.usefixtures("poisoned")


def make(n, tables, o, dtype=torch.float64, seed=0):
    """Inputs: (rows, columns, named?) a table; a table that is not named has n rows."""
    torch.manual_seed(seed)
    xs = [torch.randn(rows if named else n, c, dtype=dtype, requires_grad=True) for rows, c, named in tables]
    indices = [torch.randint(0, rows, (n,)) if named else None for rows, _, named in tables]
    width = sum(c for _, c, _ in tables)
    w, bias = torch.randn(o, width, dtype=dtype), torch.randn(o, dtype=dtype)
    return xs, indices, w.requires_grad_(), bias.requires_grad_()


SIZES = {
    "one table": (7, [(0, 3, False)], 5),
    "few rows, named often": (50, [(4, 3, True)], 5),
    "many rows, some named": (9, [(40, 6, True)], 17),
    "side by side": (33, [(5, 16, True), (60, 7, True), (0, 2, False)], 65),
    "nothing beside something": (6, [(3, 0, True), (0, 2, False)], 4),
    "no rows": (0, [(3, 2, True)], 4),
    "threads": (1500, [(1100, 64, True), (3000, 16, True)], 33),
}


@pytest.mark.parametrize("relu", [False, True])
@pytest.mark.parametrize("name", SIZES)
def test_values_and_gradients(name, relu):
    xs, indices, w, bias = make(*SIZES[name])
    parts = list(zip(xs, indices, strict=True))
    out, right = gather_linear(parts, w, bias, relu=relu), reference.gather_linear(parts, w, bias, relu)
    torch.testing.assert_close(out, right, rtol=1e-11, atol=1e-11)
    grad = torch.randn_like(out)
    got, expected = (torch.autograd.grad(found, [*xs, w, bias], grad) for found in (out, right))
    for one, other in zip(got, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-10)


def test_gradcheck():
    xs, indices, w, bias = make(5, [(3, 2, True), (9, 3, True), (0, 1, False)], 4)

    def run(w, bias, *xs):
        return gather_linear(list(zip(xs, indices, strict=True)), w, bias, relu=True)

    assert torch.autograd.gradcheck(run, (w, bias, *xs))
    assert torch.autograd.gradcheck(lambda x: gather_rows(x, torch.tensor([2, 0, 2, 2])), xs[0])


def test_a_rows_bits_depend_on_no_other_row():
    """Nor on whether the table is multiplied whole: what is predicted may not change with what comes later."""
    (x,), (index,), w, bias = make(40, [(90, 64, True)], 50, torch.float32)
    whole = gather_linear([(x, index)], w, bias)
    few, place = index[:7].unique(return_inverse=True)
    assert torch.equal(gather_linear([(x[few], place)], w, bias), whole[:7])
    assert torch.equal(gather_linear([(x[index[:1]], None)], w, bias), whole[:1])


def test_same_bits_with_any_number_of_threads(monkeypatch):
    xs, indices, w, bias = make(*SIZES["threads"], torch.float32)
    parts = list(zip(xs, indices, strict=True))

    def run():
        out = gather_linear(parts, w, bias, relu=True)
        return out, *torch.autograd.grad(out.sum() + out.square().sum(), [*xs, w, bias])

    torch.set_num_threads(1)
    first = run()
    for threads, wide in ((2, thread_pool.MIN_ROWS), (3, 1)):
        torch.set_num_threads(threads)
        monkeypatch.setattr(thread_pool, "MIN_ROWS", wide)
        assert all(torch.equal(one, other) for one, other in zip(run(), first, strict=True))


def test_rows_picked_twice_are_summed():
    x = torch.randn(5, 3, dtype=torch.float64, requires_grad=True)
    index = torch.tensor([4, 0, 4])
    (grad,) = torch.autograd.grad(gather_rows(x, index), x, torch.tensor([[1.0] * 3, [2.0] * 3, [4.0] * 3]).double())
    assert grad[:, 0].tolist() == [2, 0, 0, 0, 5]


def test_weights_that_do_not_fit_are_refused():
    with pytest.raises(ValueError, match=r"w should be \[4, 3\] for these parts, not \[4, 2\]"):
        gather_linear([(torch.zeros(2, 3), None)], torch.zeros(4, 2), torch.zeros(4))
