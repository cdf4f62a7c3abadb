"""adam on a CPU against the reference."""

import pytest
import torch

from dynedge.ops.adam import DenseUpdate, cpu, reference

LR = torch.tensor(0.01, dtype=torch.float64)


def make(shape, dtype, seed=0):
    torch.manual_seed(seed)
    value, grad, mean = (torch.randn(shape, dtype=dtype) for _ in range(3))
    return value, grad, mean, torch.rand(shape, dtype=dtype)


@pytest.mark.parametrize(("dtype", "bound"), [(torch.float64, 1e-14), (torch.float32, 1e-6)])
@pytest.mark.parametrize("shape", [(), (1,), (37,), (5, 13), (2, 3, 65)])
def test_dense_step(shape, dtype, bound):
    scale = torch.tensor(0.3, dtype=torch.float64)
    results = []
    for module in (cpu, reference):
        value, grad, mean, square = make(shape, dtype)
        module.dense_steps([DenseUpdate(value, grad, mean, square, steps := torch.tensor(6), LR)], scale)
        results.append((value, mean, square, steps))
    for one, other in zip(*results, strict=True):
        torch.testing.assert_close(one, other, rtol=bound, atol=bound)


@pytest.mark.parametrize(("dtype", "bound"), [(torch.float64, 1e-14), (torch.float32, 1e-6)])
@pytest.mark.parametrize(("shape", "rows"), [((9, 7), [8, 2, 3]), ((4, 1), []), ((6,), [5, 0]), ((3, 2, 5), [1])])
def test_row_step(shape, rows, dtype, bound):
    scale, rows = torch.tensor(0.7, dtype=torch.float64), torch.tensor(rows, dtype=torch.long)
    results = []
    for module in (cpu, reference):
        value, grad, mean, square = make(shape, dtype)
        steps = torch.arange(shape[0], dtype=torch.int32)
        module.row_step(value, rows, grad[: len(rows)], mean, square, steps, LR, scale)
        results.append((value, mean, square, steps))
    for one, other in zip(*results, strict=True):
        torch.testing.assert_close(one, other, rtol=bound, atol=bound)


def test_sum_of_squares_is_exact_and_propagates_nan():
    grads = [torch.randn(1000), torch.randn(3, 5), torch.randn(()), torch.zeros(0)]
    right = sum((grad.double() ** 2).sum() for grad in grads)
    for module in (cpu, reference):
        assert module.sum_of_squares(grads).dtype == torch.float64
        torch.testing.assert_close(module.sum_of_squares(grads), right, rtol=1e-12, atol=0)
    assert cpu.sum_of_squares([*grads, torch.tensor([torch.nan])]).isnan()


@pytest.mark.parametrize("rows", [[3, 1, 3, 0, 3], [2], []])
def test_coalesce_sums_repeated_rows(rows):
    values = torch.randn(len(rows), 4, dtype=torch.float64)
    grad = torch.sparse_coo_tensor(torch.tensor([rows], dtype=torch.long), values, (6, 4), check_invariants=True)
    got, right = cpu.coalesce(grad), reference.coalesce(grad)
    assert got.is_coalesced()
    assert torch.equal(got.indices(), right.indices())
    torch.testing.assert_close(got.values(), right.values(), rtol=1e-14, atol=0)
    flat = torch.sparse_coo_tensor(torch.tensor([[1, 1]]), torch.ones(2), (3,), check_invariants=True)
    assert cpu.coalesce(flat).to_dense().tolist() == [0, 2, 0]


def test_gradients_need_not_be_contiguous():
    value, grad, mean, square = make((6, 4), torch.float32)
    transposed = grad.T.contiguous().T
    other = value.clone(), mean.clone(), square.clone()
    one = torch.ones((), dtype=torch.float64)
    cpu.dense_steps([DenseUpdate(value, grad, mean, square, torch.tensor(0), LR)], one)
    cpu.dense_steps([DenseUpdate(other[0], transposed, *other[1:], torch.tensor(0), LR)], one)
    assert torch.equal(value, other[0])


def test_parameters_of_several_kinds_at_once_have_the_bits_of_one_by_one():
    scale, shapes = torch.tensor(0.3, dtype=torch.float64), [((5, 13), torch.float32), ((7,), torch.float64)]
    shapes += [((), torch.float32), ((2, 65), torch.float32), ((0,), torch.float32)]
    results = []
    for at_once in (True, False):
        parts = [make(shape, dtype, seed) for seed, (shape, dtype) in enumerate(shapes)]
        strided = [part.T.contiguous().T for part in make((4, 3), torch.float32, 9)]
        updates = [DenseUpdate(*part, torch.tensor(k), LR * (1 + k)) for k, part in enumerate([*parts, strided])]
        for group in [updates] if at_once else [[update] for update in updates]:
            cpu.dense_steps(group, scale)
        results.append([(update.value, update.mean, update.square) for update in updates])
    for together, alone in zip(*results, strict=True):
        assert all(map(torch.equal, together, alone))
