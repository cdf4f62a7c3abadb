"""gather_linear and gather_rows on a CPU against the reference: values, every gradient, odd sizes, same bits."""

import pytest
import torch

from dynedge.ops import thread_pool
from dynedge.ops.gather_linear import gather_linear, gather_rows, reference

pytestmark = pytest.mark.usefixtures("poisoned")


def make(n, tables, o, dtype=torch.float64, seed=0):
    """Random inputs; tables are (rows, columns, is_indexed), and one without an index has n rows."""
    torch.manual_seed(seed)
    xs = [
        torch.randn(rows if is_indexed else n, c, dtype=dtype, requires_grad=True) for rows, c, is_indexed in tables
    ]
    indices = [torch.randint(0, rows, (n,)) if is_indexed else None for rows, _, is_indexed in tables]
    width = sum(c for _, c, _ in tables)
    w, bias = torch.randn(o, width, dtype=dtype), torch.randn(o, dtype=dtype)
    return xs, indices, w.requires_grad_(), bias.requires_grad_()


SIZES = {
    "one table": (7, [(0, 3, False)], 5),
    "few rows, read often": (50, [(4, 3, True)], 5),
    "many rows, some read": (9, [(40, 6, True)], 17),
    "several tables": (33, [(5, 16, True), (60, 7, True), (0, 2, False)], 65),
    "a table without columns": (6, [(3, 0, True), (0, 2, False)], 4),
    "no rows": (0, [(3, 2, True)], 4),
    "threads": (1500, [(1100, 64, True), (3000, 16, True)], 33),
}


@pytest.mark.parametrize("relu", [False, True])
@pytest.mark.parametrize("name", SIZES)
def test_values_and_gradients(name, relu):
    xs, indices, w, bias = make(*SIZES[name])
    parts = list(zip(xs, indices, strict=True))
    out, expected_out = gather_linear(parts, w, bias, relu=relu), reference.gather_linear(parts, w, bias, relu)
    torch.testing.assert_close(out, expected_out, rtol=1e-11, atol=1e-11)
    grad = torch.randn_like(out)
    got, expected = (torch.autograd.grad(result, [*xs, w, bias], grad) for result in (out, expected_out))
    for one, other in zip(got, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-10)


def test_gradcheck():
    xs, indices, w, bias = make(5, [(3, 2, True), (9, 3, True), (0, 1, False)], 4)

    def run(w, bias, *xs):
        return gather_linear(list(zip(xs, indices, strict=True)), w, bias, relu=True)

    assert torch.autograd.gradcheck(run, (w, bias, *xs))
    assert torch.autograd.gradcheck(lambda x: gather_rows(x, torch.tensor([2, 0, 2, 2])), xs[0])


def test_bits_of_a_row_do_not_depend_on_other_rows():
    """Nor on whether the table is multiplied as a whole: later events must not change a prediction."""
    (x,), (index,), w, bias = make(40, [(90, 64, True)], 50, torch.float32)
    whole = gather_linear([(x, index)], w, bias)
    first_rows, place = index[:7].unique(return_inverse=True)
    assert torch.equal(gather_linear([(x[first_rows], place)], w, bias), whole[:7])
    assert torch.equal(gather_linear([(x[index[:1]], None)], w, bias), whole[:1])


def test_bits_do_not_depend_on_the_number_of_threads(monkeypatch):
    xs, indices, w, bias = make(*SIZES["threads"], torch.float32)
    parts = list(zip(xs, indices, strict=True))

    def run():
        out = gather_linear(parts, w, bias, relu=True)
        return out, *torch.autograd.grad(out.sum() + out.square().sum(), [*xs, w, bias])

    torch.set_num_threads(1)
    first = run()
    for threads, min_rows in ((2, thread_pool.MIN_ROWS), (3, 1)):
        torch.set_num_threads(threads)
        monkeypatch.setattr(thread_pool, "MIN_ROWS", min_rows)
        assert all(torch.equal(one, other) for one, other in zip(run(), first, strict=True))


def test_gradients_of_repeated_rows_are_summed():
    x = torch.randn(5, 3, dtype=torch.float64, requires_grad=True)
    index = torch.tensor([4, 0, 4])
    (grad,) = torch.autograd.grad(gather_rows(x, index), x, torch.tensor([[1.0] * 3, [2.0] * 3, [4.0] * 3]).double())
    assert grad[:, 0].tolist() == [2, 0, 0, 0, 5]


def test_weights_of_the_wrong_shape_are_refused():
    with pytest.raises(ValueError, match=r"w should be \[4, 3\] for these parts, not \[4, 2\]"):
        gather_linear([(torch.zeros(2, 3), None)], torch.zeros(4, 2), torch.zeros(4))
