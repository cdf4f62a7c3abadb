"""Histories against a plain walk, the sequence models against their papers' equations, and what they can learn."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from models.every_model import make_log
from torch.nn import functional as F

from dynedge.data.log import EventLog
from dynedge.data.windows import Window
from dynedge.errors import UsageError
from dynedge.evaluation.metrics import mean
from dynedge.evaluation.protocol import rank_events
from dynedge.models.base import LogShape, Step
from dynedge.models.baselines.heuristics import RECIPES
from dynedge.models.baselines.sequential.base import Dropout
from dynedge.models.registry import BUILT_IN as MODELS
from dynedge.models.ring_buffer import NONE, Past, Rings
from dynedge.training.config import TrainingConfig
from dynedge.training.loop import fit

pytestmark = [pytest.mark.slow, pytest.mark.slow]

SEQUENCES = "sum-pooling", "gru4rec", "sasrec", "dien", "mimn"


def plain_histories(log, side, length):
    """Every event's history by looking back through the log, newest first."""
    entity, partner = (log.user, log.item)[:: -1 if side else 1]
    met, found = {}, []
    for k in range(len(log)):
        lately = met.setdefault(int(entity[k]), [])
        newest = [*lately[::-1], *[(NONE, float(NONE))] * length][:length]
        found.append(newest)
        lately.append((int(partner[k]), float(log.time[k])))
    return np.array(found)  # [n, L, 2]


@pytest.mark.parametrize("side", [0, 1])
@pytest.mark.parametrize("chunk", [1, 7, 1000])
def test_rings_are_what_a_look_back_finds(side, chunk):
    log, length, cpu = make_log(events=300), 5, torch.device("cpu")
    expected = plain_histories(log, side, length)
    rings = Rings(side, (log.num_users, log.num_items)[side], length)
    state = rings.start(cpu)
    for at in range(0, len(log), chunk):
        window = Window(log, range(at, min(at + chunk, len(log))))
        indexed = rings.index(window, cpu)
        now = rings.now(indexed.entity[:1], state)
        found = rings.before(indexed, state)
        rows = expected[at : at + len(window)]
        assert np.array_equal(found.partner, rows[..., 0]) and np.array_equal(found.time, rows[..., 1])
        assert torch.equal(now.partner, found.partner[:1]) and torch.equal(now.time, found.time[:1])
        rings.advance(indexed, state)


@pytest.mark.parametrize("side", [0, 1])
def test_the_past_of_shuffled_events_is_the_same(side):
    log, length = make_log(events=300), 5
    events = np.random.default_rng(0).permutation(250)
    expected = plain_histories(log, side, length)[events, :, 0]
    assert np.array_equal(Past(log, 250, side, length).before(events), expected)


# ---- what is learned


def sums_modulo(prime, weight, events=4000, users=12, seed=0):
    """The next item is (weight · last + the one before) mod prime: what the last item alone says nothing about."""
    rng = np.random.default_rng(seed)
    last = rng.integers(0, prime, (users, 2))
    user, item = rng.integers(0, users, events), np.empty(events, np.int64)
    for k, u in enumerate(user):
        item[k] = rng.integers(prime) if rng.random() < 0.05 else (weight * last[u, 1] + last[u, 0]) % prime
        last[u] = last[u, 1], item[k]
    return EventLog.from_arrays(user, item, np.arange(events), num_users=users, num_items=prime)


SMALL = {"dim": 24, "length": 3, "window_events": 64, "full_softmax_up_to": 100, "dropout": 0.0}


def small(name, log, end, **more):
    entry = MODELS[name]
    return entry.model.create(replace(entry.config(), **(SMALL | more)), log, end, 0)


def rule_mrr(name, log, events):
    model = MODELS["heuristic"].model.create(RECIPES[name], log, events.start, 0)
    state = model.start()
    model.observe(Window(log, range(events.start)), state)
    return mean("mrr", rank_events(model, log, events, state))


@pytest.mark.parametrize("name", SEQUENCES)
def test_each_learns_what_plain_rules_cannot(name):
    """For all but the sum the order of the last two items matters."""
    weight, more = (1, {"length": 2}) if name == "sum-pooling" else (2, {})
    log = sums_modulo(7, weight)
    config = TrainingConfig(epochs=6, patience=0, split="0.8,0.2,0", lr=5e-3)
    course = fit(small(name, log, 3200, **more), log, config)
    assert max(rule_mrr(rule, log, range(3200, 4000)) for rule in ("popular", "recent", "next", "next-five")) < 0.5
    assert max(record["valid_mrr"] for record in course.history) > 0.9


@pytest.mark.parametrize("name", SEQUENCES)
def test_the_same_bits_again_and_after_loading(name):
    log = make_log()
    ends = []
    for _ in range(2):
        model = small(name, log, 90)
        fit(model, log, TrainingConfig(epochs=2, split="0.75,0.25,0"))
        ends.append(model.eval())
    tensors = [one.state_dict() for one in ends]
    assert all(torch.equal(tensors[0][key], tensors[1][key]) for key in tensors[0])
    restored = MODELS[name].model.restore(ends[0].config, LogShape.of(log), tensors[0]).eval()
    window = Window(log, range(len(log)))
    with torch.no_grad():
        found = [one.score(one.prepare(window), None, one.start()) for one in (ends[0], restored)]
    assert torch.equal(*found)


@pytest.mark.parametrize("name", SEQUENCES)
def test_each_learns_in_bfloat16(name):
    log = make_log()
    course = fit(
        small(name, log, 90), log, TrainingConfig(epochs=1, split="0.75,0.25,0", device="cpu", precision="bfloat16")
    )
    assert np.isfinite(course.history[0]["loss"]) and course.history[0]["valid_mrr"] > 0
    assert all(parameter.dtype == torch.float32 for parameter in course.model.parameters())


def test_an_epoch_learns_from_each_event_once_in_an_order_of_its_own():
    log = make_log()
    model = small("sum-pooling", log, 90, window_events=16)
    orders = []
    for epoch in (0, 1, 0):
        prepared = model.batches(log, model.training_windows(90))
        orders.append(np.concatenate([model._chosen(one, Step(0, epoch, k)) for k, one in enumerate(prepared)]))
    assert all(np.array_equal(np.sort(order), np.arange(90)) for order in orders)
    assert np.array_equal(orders[0], orders[2])
    assert not np.array_equal(orders[0], orders[1])


@pytest.mark.parametrize("name", SEQUENCES)
def test_a_draw_of_all_items_is_the_full_softmax(name):
    """A drawn item that is the true one does not count, so that drawing every item once leaves the others."""
    log = make_log()
    full, drawn = small(name, log, 90), small(name, log, 90)
    drawn.config = replace(drawn.config, full_softmax_up_to=0)
    drawn.sample_negatives = lambda batch, step: torch.randperm(log.num_items, generator=step.generator())
    losses = [
        one.loss(next(one.batches(log, one.training_windows(90))), one.start(), Step(0, 0, 0)).total
        for one in (full, drawn)
    ]
    assert torch.allclose(*losses, rtol=1e-5)
    for loss in losses:
        loss.backward()
    for key, parameter in full.named_parameters():
        mine, other = (one.grad.to_dense() for one in (parameter, drawn.get_parameter(key)) if one.grad is not None)
        assert torch.allclose(mine, other, atol=1e-6), key


def test_dropout_leaves_out_its_share_and_keeps_the_mean():
    torch.manual_seed(0)
    found = Dropout(0.25)(torch.ones(400, 250))
    assert torch.equal(found.unique(), torch.tensor([0, 256 / 192]))
    assert abs(float(found.mean()) - 1) < 0.01
    assert torch.equal(Dropout(0.25).eval()(found), found)


@pytest.mark.parametrize(
    ("name", "wrong", "said"), [("sasrec", {"heads": 5}, "--heads 5 "), ("mimn", {"read_most": 9}, "--read-most 9 ")]
)
def test_settings_that_do_not_fit_each_other_are_refused(name, wrong, said):
    with pytest.raises(UsageError, match=said):
        small(name, make_log(), 90, **wrong)


# ---- the papers' equations, one event at a time


@pytest.mark.parametrize("loss", ["bpr-max", "top1-max", "softmax"])
def test_losses_of_gru4rec(loss):
    log = make_log()
    model = small("gru4rec", log, 90, loss=loss, penalty=0.3)
    true, others = torch.tensor([0.3, -1.0]), torch.tensor([[1.0, 0.2, -torch.inf], [0.5, 2.0, -0.4]])
    true, others = true.requires_grad_(), others.requires_grad_()
    found = model.error(true, others, torch.ones(3))
    for k, rivals in enumerate(([1.0, 0.2], [0.5, 2.0, -0.4])):
        own, r = true[k].detach().requires_grad_(), torch.tensor(rivals, requires_grad=True)
        share = r.softmax(0)
        expected = {
            "bpr-max": -(share * (own - r).sigmoid()).sum().log() + 0.3 * (share * r**2).sum(),
            "top1-max": (share * ((r - own).sigmoid() + (r**2).sigmoid())).sum(),
            "softmax": torch.cat([own[None], r]).logsumexp(0) - own,
        }[loss]
        assert torch.allclose(found[k], expected)
        gradients = torch.autograd.grad(found[k], (true, others), retain_graph=True)
        plain = torch.autograd.grad(expected, (own, r))
        assert torch.allclose(gradients[0][k], plain[0])
        assert torch.allclose(gradients[1][k, : len(rivals)], plain[1], atol=1e-7)
        assert (gradients[1][k, len(rivals) :] == 0).all()  # nobody has no part in it


def last_scores(model, log):
    """(scores of all items before the log's last event, the vectors of its user's items, all vectors), in float64."""
    model = model.double().eval()
    user = int(log.user[-1])
    items = [int(i) for u, i in zip(log.user[:-1], log.item[:-1], strict=True) if u == user][-model.config.length :]
    with torch.no_grad():
        found = model.score(model.prepare(Window(log, range(len(log)))), None, model.start())[-1]
        vectors, bias = model._vectors(torch.arange(log.num_items))
        return found - bias, vectors[items], vectors


def gru_step(x, h, w, u, b, c, gate=1.0):
    """A GRU by its equations; `gate` multiplies the update, whose other share keeps the state."""
    d = len(h)
    p, q = w @ x + b, u @ h + c
    r, z = (p[:d] + q[:d]).sigmoid(), (p[d : 2 * d] + q[d : 2 * d]).sigmoid()
    fresh = (p[2 * d :] + r * q[2 * d :]).tanh()
    return r, z, fresh


@torch.no_grad()
@pytest.mark.parametrize("length", [3, 20])  # the history is longer, and shorter
def test_dien_is_its_equations(length):
    log = make_log()
    model = MODELS["dien"].model.create(
        replace(MODELS["dien"].config(), dim=8, length=length, interest=5), log, 90, 0
    )
    model.begin.normal_()
    found, items, vectors = last_scores(model, log)
    gru, h, states = model.extractor, torch.zeros(8).double(), []
    for item in items:
        _, keep, fresh = gru_step(item, h, gru.weight_ih_l0, gru.weight_hh_l0, gru.bias_ih_l0, gru.bias_hh_l0)
        h = keep * h + (1 - keep) * fresh
        states.append(h)
    summed = items.sum(0) / length**0.5
    for candidate, expected in zip(vectors, found, strict=True):
        weights = torch.stack([model.attention.weight @ h @ candidate for h in states]).softmax(0)
        interest = model.begin
        for h, a in zip(states, weights, strict=True):
            own = model.own.weight, model.steps.bias, model.own.bias
            _, update, fresh = gru_step(h, interest, model.steps.weight, *own)
            interest = (1 - a * update) * interest + a * update * fresh
        judge = model.judge
        hidden = judge.event(summed) + judge.candidate(candidate) + judge.product(summed * candidate)
        assert torch.allclose(judge.last((hidden + model.evolved(interest)).relu())[0], expected)


@torch.no_grad()
@pytest.mark.parametrize("length", [3, 20])
def test_mimn_is_its_equations(length):
    log = make_log()
    config = replace(MODELS["mimn"].config(), dim=8, length=length, slots=3, width=5, read_most=2)
    model = MODELS["mimn"].model.create(config, log, 90, 0)
    found, items, vectors = last_scores(model, log)

    def step(gru, x, other, h):
        w = torch.cat([gru.given.weight, gru.other.weight], 1)
        _, keep, fresh = gru_step(torch.cat([x, other]), h, w, gru.own.weight, gru.given.bias, gru.own.bias)
        return keep * h + (1 - keep) * fresh

    def weights(memory, key, strength):
        return torch.stack([F.softplus(strength) * F.cosine_similarity(slot, key, 0) for slot in memory]).softmax(0)

    memory, channels = model.begin.clone(), torch.zeros(3, 5).double()
    use, h, read = torch.zeros(3).double(), torch.zeros(5).double(), torch.zeros(5).double()
    for item in items:
        h = step(model.controller, item, read, h)
        said = model.says(h)
        look = weights(memory, said[:5], said[20])
        write = weights(memory, said[5:10], said[21]) * model.rebalance(use).softmax(0)
        read, use = look @ memory, use + write
        for i in range(3):
            memory[i] = (1 - write[i] * said[10:15].sigmoid()) * memory[i] + write[i] * said[15:20].tanh()
        for i in look.argsort(descending=True)[:2]:
            channels[i] = step(model.induction, item, memory[i], channels[i])
    summed = items.sum(0) / length**0.5
    for candidate, expected in zip(vectors, found, strict=True):
        read = weights(memory, model.key(candidate), model.strength) @ memory
        felt = (channels @ model.attention(candidate) / 5**0.5).softmax(0) @ channels
        hidden = model.judge.event(summed) + model.judge.candidate(candidate)
        hidden = hidden + model.judge.product(summed * candidate) + model.of_memory(read) + model.of_channels(felt)
        assert torch.allclose(model.judge.last(hidden.relu())[0], expected)
