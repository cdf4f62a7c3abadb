"""sampled_softmax on a CPU against plain torch: error and gradients; sampled and full; what moves inside a chunk."""

import numpy as np
import pytest
import torch

from dynedge.models.candidate_rows import find
from dynedge.ops import thread_pool
from dynedge.ops.sampled_softmax import CHUNK, ScoreBonus, cpu, reference, sampled_softmax
from dynedge.plan.links import Linker
from dynedge.plan.schedule import build_schedule

pytestmark = pytest.mark.usefixtures("poisoned")

CASES = {
    "sampled": {"negatives": 5},
    "sampled, ids": {"negatives": 5, "ids": True},
    "one negative": {"negatives": 1, "n": 3},
    "full": {"negatives": None},
    "full, ids": {"negatives": None, "ids": True, "active": 3},
    "tiles": {"negatives": None, "items": 600, "ids": True},
    "odd width": {"negatives": 40, "d": 17, "ids": True},
    "many chunks": {"negatives": 7, "n": 1200, "items": 30},
    "no events": {"negatives": 4, "n": 0},
}


def make(negatives, n=300, items=12, d=4, ids=False, active=0, dtype=torch.float64, seed=0):
    rng = np.random.default_rng(seed)
    user, item = rng.integers(0, 9, n).astype(np.int32), rng.integers(0, items, n).astype(np.int32)
    active_item = np.arange(items + 3) < active  # three items never happen
    schedule = build_schedule(user, item, Linker(np.zeros(9, bool), active_item)(user, item), np.zeros(0, np.int64))
    chunks, every = -(-n // CHUNK), np.arange(items + 3)
    drawn = np.tile(every, (chunks, 1)) if negatives is None else rng.integers(0, items + 3, (chunks, negatives))
    columns = find(schedule, item, drawn.astype(np.int32), items + 3)
    torch.manual_seed(seed)
    shapes = [(n, 2 * d if ids else d), (schedule.rows, d), (len(columns.outside), d), (items + 3, d + 1)]
    tensors = [torch.randn(shape, dtype=dtype, requires_grad=True) for shape in shapes[: 4 if ids else 3]]
    true = torch.from_numpy(item).long(), torch.from_numpy(schedule.read_rows[:, 1]).long()
    return tensors, columns, true


def gradients(compute, tensors, columns, true, scale=1.0):
    error = compute(*tensors, *([None] * (4 - len(tensors))), columns, *true)
    grads = torch.autograd.grad(scale * error, tensors, materialize_grads=True)
    return error.detach(), *(grad.to_dense() if grad.is_sparse else grad for grad in grads)


@pytest.mark.parametrize("name", CASES)
def test_error_and_gradients(name):
    made = make(**CASES[name])
    for got, right in zip(
        gradients(sampled_softmax, *made, 0.3), gradients(reference.sampled_softmax, *made, 0.3), strict=True
    ):
        torch.testing.assert_close(got, right, rtol=1e-10, atol=1e-10)


def make_bonus(n, items, dtype=torch.float64, seed=1):
    """Some events have none, some have one for every item, their true ones and those that move among them."""
    rng = np.random.default_rng(seed)
    there = rng.random((n, items)) < rng.choice([0.0, 0.3, 1.0], (n, 1))
    event, item = (torch.from_numpy(part) for part in there.nonzero())
    start = torch.from_numpy(np.concatenate(([0], there.sum(1).cumsum())))
    return ScoreBonus(start, event, item, torch.randn(len(event), dtype=dtype, requires_grad=True))


@pytest.mark.parametrize("name", ["full", "full, ids", "tiles"])
def test_bonuses_are_added_and_get_their_gradient(name):
    tensors, columns, true = make(**CASES[name])
    bonus = make_bonus(len(true[0]), columns.count)

    def with_bonus(compute):
        error = compute(*tensors, *([None] * (4 - len(tensors))), columns, *true, bonus)
        return error.detach(), *torch.autograd.grad(0.3 * error, [*tensors, bonus.value])

    for got, right in zip(with_bonus(sampled_softmax), with_bonus(reference.sampled_softmax), strict=True):
        torch.testing.assert_close(got, right, rtol=1e-10, atol=1e-10)
    assert not torch.equal(with_bonus(sampled_softmax)[0], gradients(sampled_softmax, tensors, columns, true)[0])


def test_candidates_that_stand_for_more():
    """As if each had been drawn twice; and of any number as the reference has it."""
    tensors, columns, true = make(**CASES["sampled, ids"])

    def standing(compute, number):
        error = compute(*tensors, columns, *true, None, number)
        return error.detach(), *(grad.to_dense() for grad in torch.autograd.grad(0.3 * error, tensors))

    for number in (2.0, 17.3):
        for got, right in zip(
            standing(sampled_softmax, number), standing(reference.sampled_softmax, number), strict=True
        ):
            torch.testing.assert_close(got, right, rtol=1e-10, atol=1e-10)
    n, (wanted, arena, outside, ids) = len(true[0]), tensors
    found = reference.scores(wanted, torch.cat([arena, outside]), ids, columns)
    own = torch.cat([arena[true[1]], ids[true[0], :-1]], 1)
    mine = (wanted * own).sum(1) + ids[true[0], -1]
    same = columns.item[:, : columns.count].repeat_interleave(CHUNK, 0)[:n] == true[0][:, None]
    twice = found.masked_fill(same, -torch.inf).repeat(1, 2)
    expected = (torch.cat([mine[:, None], twice], 1).logsumexp(1) - mine).sum()
    torch.testing.assert_close(standing(sampled_softmax, 2.0)[0], expected.detach())


@pytest.mark.parametrize("name", ["sampled, ids", "full"])
def test_gradcheck(name):
    tensors, columns, true = make(**{**CASES[name], "n": 12, "items": 5, "d": 2})

    def run(*tensors):
        return sampled_softmax(*tensors, *([None] * (4 - len(tensors))), columns, *true)

    few = [tensor for tensor in tensors if tensor.numel()]
    assert len(few) == len(tensors)
    if len(tensors) < 4:
        assert torch.autograd.gradcheck(run, tensors)
    else:  # the gradient of ids is sparse, which gradcheck does not take
        assert torch.autograd.gradcheck(lambda *most: run(*most, tensors[3].detach()), tensors[:3])


def test_float32_is_near_float64():
    """Scores of some ±10 add 2d products; exp and the sum of a softmax lose a few units of 6e-8 each."""
    for name in ("sampled, ids", "full, ids"):
        tensors, columns, true = make(**{**CASES[name], "d": 16})
        small = [tensor.detach().float().requires_grad_() for tensor in tensors]
        got, right = (
            gradients(sampled_softmax, small, columns, true),
            gradients(sampled_softmax, tensors, columns, true),
        )
        for one, other in zip(got, right, strict=True):
            torch.testing.assert_close(one.double(), other, rtol=0, atol=2e-6 * float(other.abs().max()))


def test_scores_far_apart_and_not_finite():
    tensors, columns, true = make(negatives=5, n=20, dtype=torch.float32)
    with torch.no_grad():
        tensors[0] *= 1e4  # all but one candidate have no weight at all
    error, *grads = gradients(sampled_softmax, tensors, columns, true)
    right, *expected = gradients(reference.sampled_softmax, tensors, columns, true)
    torch.testing.assert_close(error, right, rtol=1e-5, atol=0)
    for one, other in zip(grads, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-2)
    with torch.no_grad():
        tensors[0][3, 0] = torch.nan
    assert gradients(sampled_softmax, tensors, columns, true)[0].isnan()


@pytest.mark.parametrize("name", ["many chunks", "full, ids"])
def test_same_bits_with_any_number_of_threads(name, monkeypatch):
    made = make(**CASES[name], dtype=torch.float32)
    torch.set_num_threads(1)
    first = gradients(sampled_softmax, *made)
    for threads, wide, at_once in ((2, 1, cpu.AT_ONCE), (3, 1, cpu.AT_ONCE), (2, 1, 1), (1, 1, 1)):
        torch.set_num_threads(threads)
        monkeypatch.setattr(thread_pool, "MIN_ROWS", wide)
        monkeypatch.setattr(cpu, "AT_ONCE", at_once)
        assert all(
            torch.equal(one, other) for one, other in zip(gradients(sampled_softmax, *made), first, strict=True)
        )


def test_without_gradients_none_are_made():
    tensors, columns, true = make(negatives=5)
    with torch.no_grad():
        error = sampled_softmax(*tensors, None, columns, *true)
    assert not error.requires_grad
    assert error == sampled_softmax(*tensors, None, columns, *true)
