"""sampled_softmax on a CPU against the reference: loss and gradients, sampled and full, items updated in a chunk."""

import numpy as np
import pytest
import torch
from ops.softmax_reference import reference_softmax

from dynedge.models.candidate_states import candidate_columns
from dynedge.ops import thread_pool
from dynedge.ops.sampled_softmax import CHUNK, ListedScores, ScoreBonus, cpu, reference, sampled_softmax
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
    chunks, all_items = -(-n // CHUNK), np.arange(items + 3)
    sampled = (
        np.tile(all_items, (chunks, 1)) if negatives is None else rng.integers(0, items + 3, (chunks, negatives))
    )
    columns = candidate_columns(schedule, item, sampled.astype(np.int32), items + 3)
    torch.manual_seed(seed)
    shapes = [(n, 2 * d if ids else d), (schedule.rows, d), (len(columns.outside), d), (items + 3, d + 1)]
    tensors = [torch.randn(shape, dtype=dtype, requires_grad=True) for shape in shapes[: 4 if ids else 3]]
    true = torch.from_numpy(item).long(), torch.from_numpy(schedule.read_rows[:, 1]).long()
    return tensors, columns, true


def gradients(compute, tensors, columns, true, scale=1.0):
    loss = compute(*tensors, *([None] * (4 - len(tensors))), columns, *true)
    grads = torch.autograd.grad(scale * loss, tensors, materialize_grads=True)
    return loss.detach(), *(grad.to_dense() if grad.is_sparse else grad for grad in grads)


@pytest.mark.parametrize("name", CASES)
def test_loss_and_gradients(name):
    made = make(**CASES[name])
    for got, right in zip(
        gradients(sampled_softmax, *made, 0.3), gradients(reference_softmax, *made, 0.3), strict=True
    ):
        torch.testing.assert_close(got, right, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("name", ["sampled, ids", "full", "odd width", "many chunks"])
@pytest.mark.parametrize("decaying", [1, 3])
def test_decaying_columns(name, decaying):
    """Against rows that have the columns' values for each event; the last event is many half-lives later."""
    tensors, columns, true = make(**CASES[name])
    n, decay = len(true[0]), torch.arange(len(true[0])).double()[:, None] / 2.0 ** torch.arange(1, 1 + decaying)

    def run(compute):
        loss = compute(*tensors, *([None] * (4 - len(tensors))), columns, *true, decay=decay)
        used = [tensor for tensor in tensors if tensor.numel()]
        query, arena, *rest = torch.autograd.grad(0.3 * loss, used)
        return loss.detach(), query, arena[:, :-decaying], *(grad.to_dense() for grad in rest[1:])

    with torch.no_grad():
        for rows in tensors[1:3]:  # written at some time, or never
            rows[:, -decaying:] = n * torch.rand(len(rows), 1) / 2.0 ** torch.arange(1, 1 + decaying) - 1
            rows[::3, -decaying:] = -1e9
    for got, right in zip(run(sampled_softmax), run(reference_softmax), strict=True):
        torch.testing.assert_close(got, right, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("name", ["sampled, ids", "full", "many chunks"])
def test_candidates_of_single_events(name):
    """Some have none; they are not weighted as the sampled ones are."""
    tensors, columns, true = make(**CASES[name])
    listed = ListedScores(*(torch.randn(len(true[0]), dtype=torch.float64) for _ in range(2)))
    listed.others[::3] = -torch.inf
    listed = ListedScores(*(part.requires_grad_() for part in listed))

    def run(compute):
        loss = compute(*tensors, *([None] * (4 - len(tensors))), columns, *true, None, 7.5, listed=listed)
        return loss.detach(), *(grad.to_dense() for grad in torch.autograd.grad(0.3 * loss, [*tensors, *listed]))

    for got, right in zip(run(sampled_softmax), run(reference_softmax), strict=True):
        torch.testing.assert_close(got, right, rtol=1e-10, atol=1e-10)


def make_bonus(n, items, dtype=torch.float64, seed=1):
    """Some events have no bonus, some have one for every item, including their true items and updated ones."""
    rng = np.random.default_rng(seed)
    has_bonus = rng.random((n, items)) < rng.choice([0.0, 0.3, 1.0], (n, 1))
    event, item = (torch.from_numpy(part) for part in has_bonus.nonzero())
    start = torch.from_numpy(np.concatenate(([0], has_bonus.sum(1).cumsum())))
    return ScoreBonus(start, event, item, torch.randn(len(event), dtype=dtype, requires_grad=True))


@pytest.mark.parametrize("name", ["full", "full, ids", "tiles"])
def test_bonuses_are_added_and_get_their_gradient(name):
    tensors, columns, true = make(**CASES[name])
    bonus = make_bonus(len(true[0]), columns.count)

    def with_bonus(compute):
        loss = compute(*tensors, *([None] * (4 - len(tensors))), columns, *true, bonus)
        return loss.detach(), *torch.autograd.grad(0.3 * loss, [*tensors, bonus.value])

    for got, right in zip(with_bonus(sampled_softmax), with_bonus(reference_softmax), strict=True):
        torch.testing.assert_close(got, right, rtol=1e-10, atol=1e-10)
    assert not torch.equal(with_bonus(sampled_softmax)[0], gradients(sampled_softmax, tensors, columns, true)[0])


def test_candidates_can_be_weighted():
    """A weight of 2 is as if each candidate had been sampled twice; other weights agree with the reference."""
    tensors, columns, true = make(**CASES["sampled, ids"])

    def weighted(compute, number):
        loss = compute(*tensors, columns, *true, None, number)
        return loss.detach(), *(grad.to_dense() for grad in torch.autograd.grad(0.3 * loss, tensors))

    for number in (2.0, 17.3):
        for got, right in zip(weighted(sampled_softmax, number), weighted(reference_softmax, number), strict=True):
            torch.testing.assert_close(got, right, rtol=1e-10, atol=1e-10)
    n, (query, arena, outside, ids) = len(true[0]), tensors
    no_shift = arena.new_zeros(len(columns.item), 0)
    scores = reference.scores(query, torch.cat([arena, outside]), ids, columns, no_shift)
    true_vector = torch.cat([arena[true[1]], ids[true[0], :-1]], 1)
    true_score = (query * true_vector).sum(1) + ids[true[0], -1]
    is_true = columns.item[:, : columns.count].repeat_interleave(CHUNK, 0)[:n] == true[0][:, None]
    twice = scores.masked_fill(is_true, -torch.inf).repeat(1, 2)
    expected = (torch.cat([true_score[:, None], twice], 1).logsumexp(1) - true_score).sum()
    torch.testing.assert_close(weighted(sampled_softmax, 2.0)[0], expected.detach())


@pytest.mark.parametrize("q", [0.1, 1.0])
@pytest.mark.parametrize("name", ["sampled, ids", "full", "many chunks"])
def test_generalized_cross_entropy(name, q):
    tensors, columns, true = make(**CASES[name])
    bonus = make_bonus(len(true[0]), columns.count) if name == "full" else None
    listed = ListedScores(*(torch.randn(len(true[0]), dtype=torch.float64, requires_grad=True) for _ in range(2)))

    def run(compute):
        loss = compute(*tensors, *([None] * (4 - len(tensors))), columns, *true, bonus, 2.5, listed=listed, q=q)
        inputs = [*tensors, *listed, *([] if bonus is None else [bonus.value])]
        return loss.detach(), *(grad.to_dense() for grad in torch.autograd.grad(0.3 * loss, inputs))

    for got, right in zip(run(sampled_softmax), run(reference_softmax), strict=True):
        torch.testing.assert_close(got, right, rtol=1e-10, atol=1e-10)


def test_a_generalized_cross_entropy_of_one_event():
    """(1 − p^q) / q, with the gradient of −log p times p^q; as −log p where q is tiny."""
    tensors, columns, true = make(negatives=5, n=1)
    nll, *gradients_of_nll = gradients(sampled_softmax, tensors, columns, true)
    p = torch.exp(-nll)

    def run(q):
        return gradients(lambda *arguments: sampled_softmax(*arguments, q=q), tensors, columns, true)

    loss, *grads = run(0.3)
    torch.testing.assert_close(loss, (1 - p**0.3) / 0.3)
    for got, right in zip(grads, gradients_of_nll, strict=True):
        torch.testing.assert_close(got, p**0.3 * right)
    torch.testing.assert_close(run(1e-9)[0], nll)


@pytest.mark.parametrize("q", [0.0, 0.5])
@pytest.mark.parametrize("name", ["sampled, ids", "full"])
def test_gradcheck(name, q):
    tensors, columns, true = make(**{**CASES[name], "n": 12, "items": 5, "d": 2})

    def run(*tensors):
        return sampled_softmax(*tensors, *([None] * (4 - len(tensors))), columns, *true, q=q)

    tensors_used = [tensor for tensor in tensors if tensor.numel()]
    assert len(tensors_used) == len(tensors)
    if len(tensors) < 4:
        assert torch.autograd.gradcheck(run, tensors)
    else:  # the gradient of id_embeddings is sparse, which gradcheck does not support
        assert torch.autograd.gradcheck(lambda *most: run(*most, tensors[3].detach()), tensors[:3])


def test_float32_is_close_to_float64():
    """Scores of some ±10 add 2d products; exp and the sum of a softmax lose a few units of 6e-8 each."""
    for name in ("sampled, ids", "full, ids"):
        tensors, columns, true = make(**{**CASES[name], "d": 16})
        tensors32 = [tensor.detach().float().requires_grad_() for tensor in tensors]
        got, right = (
            gradients(sampled_softmax, tensors32, columns, true),
            gradients(sampled_softmax, tensors, columns, true),
        )
        for one, other in zip(got, right, strict=True):
            torch.testing.assert_close(one.double(), other, rtol=0, atol=2e-6 * float(other.abs().max()))


def test_extreme_and_nan_scores():
    tensors, columns, true = make(negatives=5, n=20, dtype=torch.float32)
    with torch.no_grad():
        tensors[0] *= 1e4  # all but one candidate have probability 0
    loss, *grads = gradients(sampled_softmax, tensors, columns, true)
    right, *expected = gradients(reference_softmax, tensors, columns, true)
    torch.testing.assert_close(loss, right, rtol=1e-5, atol=0)
    for one, other in zip(grads, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-2)
    with torch.no_grad():
        tensors[0][3, 0] = torch.nan
    assert gradients(sampled_softmax, tensors, columns, true)[0].isnan()


@pytest.mark.parametrize("name", ["many chunks", "full, ids"])
def test_bits_do_not_depend_on_the_number_of_threads(name, monkeypatch):
    made = make(**CASES[name], dtype=torch.float32)
    torch.set_num_threads(1)
    first = gradients(sampled_softmax, *made)
    for threads, min_rows, at_once in ((2, 1, cpu.BUFFER), (3, 1, cpu.BUFFER), (2, 1, 1), (1, 1, 1)):
        torch.set_num_threads(threads)
        monkeypatch.setattr(thread_pool, "MIN_ROWS", min_rows)
        monkeypatch.setattr(cpu, "BUFFER", at_once)
        assert all(
            torch.equal(one, other) for one, other in zip(gradients(sampled_softmax, *made), first, strict=True)
        )


def test_no_gradients_are_computed_without_autograd():
    tensors, columns, true = make(negatives=5)
    with torch.no_grad():
        loss = sampled_softmax(*tensors, None, columns, *true)
    assert not loss.requires_grad
    assert loss == sampled_softmax(*tensors, None, columns, *true)
