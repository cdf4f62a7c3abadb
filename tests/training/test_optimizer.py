"""The optimizer against torch.optim.Adam, for dense and sparse gradients; clipping; exact restoring of its state."""

import pytest
import torch
from torch import nn
from torch.nn import functional

from dynedge.training.optimizer import Adam


def sparse(rows, values, size):
    return torch.sparse_coo_tensor(torch.tensor([rows]), values, size)


def test_dense_parameters_follow_torch_adam():
    torch.manual_seed(0)
    ours, theirs = nn.Parameter(torch.randn(5, 3)), nn.Parameter(torch.zeros(5, 3))
    theirs.data.copy_(ours.data)
    adam, reference = Adam([("w", ours)], 0.01, 1.0), torch.optim.Adam([theirs], 0.01)
    for _ in range(20):
        grad = torch.randn(5, 3)
        ours.grad, theirs.grad = grad.clone(), grad.clone()
        adam.step()
        reference.step()
    torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6)  # 20 steps of float32 rounding


def test_each_table_row_follows_an_adam_of_its_own():
    """A row with gradients in some steps only ends where Adam on that row alone, in those steps, ends."""
    torch.manual_seed(1)
    start = torch.randn(6, 4)
    table = nn.Parameter(start.clone())
    alone = [nn.Parameter(start[r].clone()) for r in range(6)]
    adam, references = Adam([("t", table)], 1.0, 0.05), [torch.optim.Adam([row], 0.05) for row in alone]
    for _ in range(30):
        rows = torch.randint(0, 5, (4,)).tolist()  # row 5 never; repeats are summed
        values = torch.randn(4, 4)
        table.grad = sparse(rows, values, (6, 4))
        adam.step()
        for r in set(rows):
            alone[r].grad = sum(values[k] for k in range(4) if rows[k] == r)
            references[r].step()
    torch.testing.assert_close(table.detach(), torch.stack([row.detach() for row in alone]), rtol=1e-5, atol=1e-5)
    assert torch.equal(table[5], start[5])


def test_scaled_learning_rates_scale_every_step():
    """Adam's first step equals the learning rate; each factor applies to the configured rate, not the scaled one."""
    for factors in ([], [0.5], [0.3, 0.5]):
        whole, table = nn.Parameter(torch.zeros(1)), nn.Parameter(torch.zeros(3, 1))
        whole.lr_scale = 10.0
        adam = Adam([("w", whole), ("t", table)], 0.1, 0.2)
        for row, factor in enumerate([None, *factors]):
            if factor is not None:
                adam.scale_learning_rate(factor)
            before = whole.item()
            whole.grad, table.grad = torch.ones(1), sparse([row], torch.ones(1, 1), (3, 1))
            adam.step()
            assert before - whole.item() == pytest.approx(1.0 * (factor or 1), rel=1e-5)
            assert table[row].item() == pytest.approx(-0.2 * (factor or 1), rel=1e-5)


def test_a_rate_that_is_scaled_before_the_first_step_applies_to_it():
    """As where a run is resumed after epochs without improvement."""
    weight = nn.Parameter(torch.zeros(1))
    adam = Adam([("w", weight)], 0.1, 1.0)
    adam.scale_learning_rate(0.25)
    weight.grad = torch.ones(1)
    adam.step()
    assert weight.item() == pytest.approx(-0.025, rel=1e-5)


def test_clipping_applies_to_one_step():
    clipped, plain = (nn.Parameter(torch.zeros(1)) for _ in range(2))
    adams = [Adam([("w", weight)], 0.1, 1.0) for weight in (clipped, plain)]
    for adam, weight in zip(adams, (clipped, plain), strict=True):
        weight.grad = torch.full((1,), 8.0)
        if weight is clipped:
            adam.clip(1e-3)
        adam.step()
        weight.grad = torch.full((1,), 3.0)
        adam.step()
    expected = nn.Parameter(torch.zeros(1))
    reference = torch.optim.Adam([expected], 0.1)
    for grad in (1e-3, 3.0):
        expected.grad = torch.full((1,), grad)
        reference.step()
    assert clipped.item() == pytest.approx(expected.item(), rel=1e-4)
    assert plain.item() != pytest.approx(expected.item(), rel=1e-2)


def test_the_first_update_of_a_row_late_in_training_is_the_learning_rate():
    table = nn.Parameter(torch.zeros(2, 1))
    adam = Adam([("t", table)], 1.0, 0.1)
    for row in [0] * 500 + [1]:
        table.grad = sparse([row], torch.ones(1, 1), (2, 1))
        adam.step()
    assert table[1].item() == pytest.approx(-0.1, rel=1e-5)


def test_only_embedding_rows_with_gradients_change():
    table = nn.Embedding(1000, 8, sparse=True)
    before = table.weight.detach().clone()
    adam = Adam(table.named_parameters(), 1.0, 0.1)
    functional.embedding(torch.tensor([3, 7, 3]), table.weight, sparse=True).sum().backward()
    adam.clip(1.0)
    adam.step()
    changed = (table.weight != before).any(1).nonzero().flatten()
    assert changed.tolist() == [3, 7]


def test_the_gradient_norm_covers_dense_and_coalesced_sparse_gradients():
    dense, table = nn.Parameter(torch.zeros(2)), nn.Parameter(torch.zeros(5, 1))
    adam = Adam([("d", dense), ("t", table)], 0.1, 0.1)
    dense.grad = torch.tensor([3.0, 0.0])
    table.grad = sparse([1, 1], torch.tensor([[1.0], [3.0]]), (5, 1))
    for max_norm, scale in ((1.0, 0.2), (10.0, 1.0), (torch.inf, 1.0)):  # a small gradient is not scaled
        adam.load({})
        assert adam.clip(max_norm).item() == pytest.approx(5.0)
        adam.step()
        assert adam.tensors()["d.mean"][0].item() == pytest.approx(0.1 * 3 * scale, rel=1e-5)
        assert adam.tensors()["t.mean"][1].item() == pytest.approx(0.1 * 4 * scale, rel=1e-5)
    adam.load({})
    adam.step()
    assert adam.tensors()["d.mean"][0].item() == pytest.approx(0.3, rel=1e-5), "clipping applies to one step"


def test_each_group_is_clipped_by_the_norm_of_its_own_gradients():
    one, other = nn.Parameter(torch.zeros(2)), nn.Parameter(torch.zeros(2))
    one.clip_group, other.clip_group = "one", "other"
    adam = Adam([("one", one), ("other", other)], 0.1, 0.1)
    one.grad, other.grad = torch.tensor([3.0, 4.0]), torch.tensor([0.0, 2.0])
    assert adam.clip(1.0).item() == pytest.approx(29**0.5)
    adam.step()
    torch.testing.assert_close(adam.tensors()["one.mean"], torch.tensor([0.06, 0.08]))
    torch.testing.assert_close(adam.tensors()["other.mean"], torch.tensor([0.0, 0.1]))


@pytest.mark.parametrize("layout", ["dense", "sparse"])
def test_rows_have_learning_rates_of_their_own(layout):
    table, plain = nn.Parameter(torch.ones(3, 2)), nn.Parameter(torch.ones(3, 2))
    table.row_lr_scale = torch.tensor([0.0, 0.25, 1.0])
    adams = [Adam([("t", one)], 0.1, 0.1) for one in (table, plain)]
    for _ in range(2):
        grad = sparse([2, 0, 1, 2], torch.arange(8.0).view(4, 2) - 3, (3, 2))
        for adam, one in zip(adams, (table, plain), strict=True):
            one.grad = grad if layout == "sparse" else grad.to_dense()
            adam.step()
    moved = torch.tensor([[0.0], [0.25], [1.0]]) * (plain - 1)
    torch.testing.assert_close(table.detach(), 1 + moved.detach())
    assert torch.equal(table[0], torch.ones(2))
    assert torch.equal(table[2], plain[2])


@pytest.mark.parametrize("order", [("dense", "sparse"), ("sparse", "dense")])
def test_gradients_may_alternate_between_dense_and_sparse(order):
    table = nn.Parameter(torch.zeros(3, 1))
    adam = Adam([("t", table)], 0.1, 0.1)
    for layout in order:
        grad = sparse([1], torch.ones(1, 1), (3, 1))
        table.grad = grad if layout == "sparse" else grad.to_dense()
        adam.clip(1.0)
        adam.step()
    torch.testing.assert_close(table.detach(), torch.tensor([[0.0], [-0.2], [0.0]]))


def test_a_step_without_gradients_changes_nothing():
    adam = Adam([("d", nn.Parameter(torch.zeros(2)))], 0.1, 0.1)
    assert adam.clip(1.0).item() == 0
    adam.step()
    assert adam.tensors() == {}


def test_restored_optimizer_continues_bit_identically():
    def parameters():
        return {"a": nn.Parameter(torch.ones(3)), "a.b": nn.Parameter(torch.ones(4, 2))}

    def steps(adam, seeds):
        for seed in seeds:
            generator = torch.Generator().manual_seed(seed)
            adam.parameters["a"].grad = torch.randn(3, generator=generator)
            rows = torch.randint(0, 4, (2,), generator=generator).tolist()
            adam.parameters["a.b"].grad = sparse(rows, torch.randn(2, 2, generator=generator), (4, 2))
            adam.step()

    whole = Adam(parameters().items(), 0.1, 0.1)
    steps(whole, range(10))
    first = Adam(parameters().items(), 0.1, 0.1)
    steps(first, range(4))
    second = Adam(first.parameters.items(), 0.1, 0.1)
    second.load({name: tensor.clone() for name, tensor in first.tensors().items()})
    steps(second, range(4, 10))
    for name, parameter in whole.parameters.items():
        assert torch.equal(parameter, second.parameters[name])
    assert all(torch.equal(tensor, second.tensors()[name]) for name, tensor in whole.tensors().items())
