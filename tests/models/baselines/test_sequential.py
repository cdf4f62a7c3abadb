"""Ring buffers against a search of the log; sequence models against their equations and on a learnable task."""

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
from dynedge.models.ring_buffer import NONE, HistoryLookup, RingBuffers
from dynedge.training.config import TrainingConfig
from dynedge.training.loop import fit

pytestmark = pytest.mark.slow

SEQUENCES = "sum-pooling", "gru4rec", "sasrec", "dien", "mimn"


def reference_histories(log, side, length):
    """The history of every event by a search of the log, newest first: [n, L, 2] of partners and times."""
    entity, partner = (log.user, log.item)[:: -1 if side else 1]
    past_events, histories = {}, []
    for k in range(len(log)):
        past = past_events.setdefault(int(entity[k]), [])
        histories.append([*past[::-1], *[(NONE, float(NONE))] * length][:length])
        past.append((int(partner[k]), float(log.time[k])))
    return np.array(histories)


@pytest.mark.parametrize("side", [0, 1])
@pytest.mark.parametrize("chunk", [1, 7, 1000])
def test_ring_buffers_hold_the_last_events(side, chunk):
    log, length, cpu = make_log(events=300), 5, torch.device("cpu")
    expected = reference_histories(log, side, length)
    buffers = RingBuffers(side, (log.num_users, log.num_items)[side], length)
    state = buffers.start(cpu)
    for start in range(0, len(log), chunk):
        window = Window(log, range(start, min(start + chunk, len(log))))
        index = buffers.index(window, cpu)
        current = buffers.current_history(index.entity[:1], state)
        history = buffers.history_before(index, state)
        rows = expected[start : start + len(window)]
        assert np.array_equal(history.partner, rows[..., 0]) and np.array_equal(history.time, rows[..., 1])
        assert torch.equal(current.partner, history.partner[:1]) and torch.equal(current.time, history.time[:1])
        buffers.advance(index, state)


@pytest.mark.parametrize("side", [0, 1])
def test_history_lookup_of_shuffled_events(side):
    log, length = make_log(events=300), 5
    events = np.random.default_rng(0).permutation(250)
    expected = reference_histories(log, side, length)[events, :, 0]
    lookup = HistoryLookup(log, 250, side, length, torch.device("cpu"))
    assert np.array_equal(lookup.histories(torch.from_numpy(events)), expected)
    assert np.array_equal(lookup.partners(torch.from_numpy(events)), (log.item, log.user)[side][events])


# ---- training


def sums_modulo(prime, weight, events=4000, users=12, seed=0):
    """The next item is (weight · last + second to last) mod prime, which the last item alone does not predict."""
    rng = np.random.default_rng(seed)
    last = rng.integers(0, prime, (users, 2))
    user, item = rng.integers(0, users, events), np.empty(events, np.int64)
    for k, u in enumerate(user):
        item[k] = rng.integers(prime) if rng.random() < 0.05 else (weight * last[u, 1] + last[u, 0]) % prime
        last[u] = last[u, 1], item[k]
    return EventLog.from_arrays(user, item, np.arange(events), num_users=users, num_items=prime)


SMALL = {"dim": 24, "history_length": 3, "window_events": 64, "full_softmax_up_to": 100, "dropout": 0.0}


def small_model(name, log, end, **settings):
    entry = MODELS[name]
    return entry.model.create(replace(entry.config(), **(SMALL | settings)), log, end, 0)


def heuristic_mrr(name, log, events):
    model = MODELS["heuristic"].model.create(RECIPES[name], log, events.start, 0)
    state = model.start()
    model.observe(Window(log, range(events.start)), state)
    return mean("mrr", rank_events(model, log, events, state))


@pytest.mark.parametrize("name", SEQUENCES)
def test_learns_a_task_that_heuristics_cannot(name):
    """For all models but sum pooling the order of the last two items matters."""
    weight, settings = (1, {"history_length": 2}) if name == "sum-pooling" else (2, {})
    log = sums_modulo(7, weight)
    config = TrainingConfig(epochs=6, patience=0, split="0.8,0.2,0", lr=5e-3)
    course = fit(small_model(name, log, 3200, **settings), log, config)
    heuristics = "popular", "recent", "next", "next-five"
    assert max(heuristic_mrr(heuristic, log, range(3200, 4000)) for heuristic in heuristics) < 0.5
    assert max(record["valid_mrr"] for record in course.history) > 0.9


@pytest.mark.parametrize("name", SEQUENCES)
def test_training_is_reproducible_and_a_restored_model_scores_the_same(name):
    log = make_log()
    models = []
    for _ in range(2):
        model = small_model(name, log, 90)
        fit(model, log, TrainingConfig(epochs=2, split="0.75,0.25,0"))
        models.append(model.eval())
    tensors = [model.state_dict() for model in models]
    assert all(torch.equal(tensors[0][key], tensors[1][key]) for key in tensors[0])
    restored = MODELS[name].model.restore(models[0].config, LogShape.of(log), tensors[0]).eval()
    window = Window(log, range(len(log)))
    with torch.no_grad():
        scores = [model.score(model.prepare(window), None, model.start()) for model in (models[0], restored)]
    assert torch.equal(*scores)


@pytest.mark.parametrize("name", SEQUENCES)
def test_trains_in_bfloat16(name):
    log = make_log()
    config = TrainingConfig(epochs=1, split="0.75,0.25,0", device="cpu", precision="bfloat16")
    course = fit(small_model(name, log, 90), log, config)
    assert np.isfinite(course.history[0]["loss"]) and course.history[0]["valid_mrr"] > 0
    assert all(parameter.dtype == torch.float32 for parameter in course.model.parameters())


def test_every_epoch_uses_each_event_once_in_a_new_order():
    log = make_log()
    model = small_model("sum-pooling", log, 90, window_events=16)
    orders = []
    for epoch in (0, 1, 0):
        batches = model.batches(log, model.training_windows(90))
        events = [model._training_events(batch, Step(0, epoch, number)) for number, batch in enumerate(batches)]
        orders.append(np.concatenate(events))
    assert all(np.array_equal(np.sort(order), np.arange(90)) for order in orders)
    assert np.array_equal(orders[0], orders[2])
    assert not np.array_equal(orders[0], orders[1])


@pytest.mark.parametrize("name", SEQUENCES)
def test_the_sampled_loss_over_all_items_is_the_full_softmax(name):
    """A sampled item that is the true one is masked, so sampling every item once leaves all the others."""
    log = make_log()
    full, sampled = small_model(name, log, 90), small_model(name, log, 90)
    sampled.config = replace(sampled.config, full_softmax_up_to=0)
    sampled.sample_negatives = lambda step: torch.randperm(log.num_items, generator=step.generator())
    losses = [
        model.loss(next(model.batches(log, model.training_windows(90))), model.start(), Step(0, 0, 0)).total
        for model in (full, sampled)
    ]
    assert torch.allclose(*losses, rtol=1e-5)
    for loss in losses:
        loss.backward()
    for key, parameter in full.named_parameters():
        pair = parameter, sampled.get_parameter(key)
        expected, gradient = (one.grad.to_dense() for one in pair if one.grad is not None)
        assert torch.allclose(expected, gradient, atol=1e-6), key


def test_a_sampled_negative_counts_as_the_items_that_it_represents(monkeypatch):
    log = make_log()
    model = small_model("gru4rec", log, 90, full_softmax_up_to=0, negatives=4)
    weights = []

    def record(true, negatives, weight):
        weights.append(weight.tolist())
        return negatives.new_zeros(len(true), requires_grad=True)

    monkeypatch.setattr(model, "event_losses", record)
    model.loss(next(model.batches(log, model.training_windows(90))), model.start(), Step(0, 0, 0))
    assert weights == [[1.0] * 3 + [log.num_items / 4] * 4], "the user's own items count once"


def test_dien_has_only_recent_own_items_as_negatives(monkeypatch):
    """The history is encoded in full; its older items are negatives only if they are sampled."""
    log, recorded = make_log(), {}
    for most in (1, 3):
        settings = {"history_length": 3, "full_softmax_up_to": 0, "negatives": 4, "dropout": 0.0}
        model = small_model("dien", log, 90, own_negatives=most, **settings)

        def record(true, negatives, weight, most=most):
            recorded[most] = true, negatives, weight
            return negatives.new_zeros(len(true), requires_grad=True)

        monkeypatch.setattr(model, "event_losses", record)
        model.loss(next(model.batches(log, model.training_windows(90))), model.start(), Step(0, 0, 0))
    (true, recent, weight), (all_true, every, all_weight) = recorded[1], recorded[3]
    assert torch.allclose(true, all_true) and torch.allclose(recent[:, 0], every[:, 0])
    assert recent.shape[1] == every.shape[1] - 2 == 5
    assert weight.tolist() == [1.0] + [log.num_items / 4] * 4 and all_weight.tolist()[:3] == [1.0] * 3
    kept = every[:, 3:].isfinite()
    assert torch.allclose(recent[:, 1:][kept], every[:, 3:][kept])
    assert (recent[:, 1:].isfinite() & ~kept).any(), "a sampled item is a negative, also if it is an older one"


def test_dropout_has_its_rate_and_keeps_the_mean():
    torch.manual_seed(0)
    output = Dropout(0.25)(torch.ones(400, 250))
    assert torch.equal(output.unique(), torch.tensor([0, 256 / 192]))
    assert abs(float(output.mean()) - 1) < 0.01
    assert torch.equal(Dropout(0.25).eval()(output), output)


@pytest.mark.parametrize(
    ("name", "settings", "message"),
    [("sasrec", {"heads": 5}, "--heads 5 "), ("mimn", {"updated_channels": 9}, "--updated-channels 9 ")],
)
def test_inconsistent_settings_are_refused(name, settings, message):
    with pytest.raises(UsageError, match=message):
        small_model(name, make_log(), 90, **settings)


# ---- the papers' equations, one event at a time


@pytest.mark.parametrize("loss", ["bpr-max", "top1-max", "softmax"])
def test_gru4rec_losses_follow_their_equations(loss):
    log = make_log()
    model = small_model("gru4rec", log, 90, loss=loss, score_penalty=0.3)
    true, negatives = torch.tensor([0.3, -1.0]), torch.tensor([[1.0, 0.2, -torch.inf], [0.5, 2.0, -0.4]])
    true, negatives = true.requires_grad_(), negatives.requires_grad_()
    losses = model.event_losses(true, negatives, torch.ones(3))
    for k, scores in enumerate(([1.0, 0.2], [0.5, 2.0, -0.4])):
        own, r = true[k].detach().requires_grad_(), torch.tensor(scores, requires_grad=True)
        weight = r.softmax(0)
        expected = {
            "bpr-max": -(weight * (own - r).sigmoid()).sum().log() + 0.3 * (weight * r**2).sum(),
            "top1-max": (weight * ((r - own).sigmoid() + (r**2).sigmoid())).sum(),
            "softmax": torch.cat([own[None], r]).logsumexp(0) - own,
        }[loss]
        assert torch.allclose(losses[k], expected)
        gradients = torch.autograd.grad(losses[k], (true, negatives), retain_graph=True)
        expected_gradients = torch.autograd.grad(expected, (own, r))
        assert torch.allclose(gradients[0][k], expected_gradients[0])
        assert torch.allclose(gradients[1][k, : len(scores)], expected_gradients[1], atol=1e-7)
        assert (gradients[1][k, len(scores) :] == 0).all()  # masked negatives get no gradient


def last_scores(model, log):
    """(scores of all items before the last event, vectors of its user's last items, all item vectors), in float64."""
    model = model.double().eval()
    user, length = int(log.user[-1]), model.config.history_length
    items = [int(i) for u, i in zip(log.user[:-1], log.item[:-1], strict=True) if u == user][-length:]
    with torch.no_grad():
        scores = model.score(model.prepare(Window(log, range(len(log)))), None, model.start())[-1]
        vectors, bias = model._item_vectors(torch.arange(log.num_items))
        return scores - bias, vectors[items], vectors


def gru_gates(x, h, w, u, b, c):
    """(reset gate, update gate, new state) of a GRU step."""
    d = len(h)
    p, q = w @ x + b, u @ h + c
    r, z = (p[:d] + q[:d]).sigmoid(), (p[d : 2 * d] + q[d : 2 * d]).sigmoid()
    new = (p[2 * d :] + r * q[2 * d :]).tanh()
    return r, z, new


def cosine_scores(query, vectors, temperature):
    return torch.stack([F.cosine_similarity(query, vector, 0) / temperature for vector in vectors])


@torch.no_grad()
@pytest.mark.parametrize("length", [3, 20])  # shorter and longer than the history
def test_gru4rec_reads_the_state_after_the_newest_item(length):
    log = make_log()
    model = MODELS["gru4rec"].model.create(
        replace(MODELS["gru4rec"].config(), dim=8, history_length=length), log, 90, 0
    )
    model.initial_state.normal_()
    scores, items, vectors = last_scores(model, log)
    gru, h = model.gru, model.initial_state[0, 0]
    for item in items:
        _, keep, new = gru_gates(item, h, gru.weight_ih_l0, gru.weight_hh_l0, gru.bias_ih_l0, gru.bias_hh_l0)
        h = keep * h + (1 - keep) * new
    assert torch.allclose(cosine_scores(model.out(h), vectors, model.config.temperature), scores)


@torch.no_grad()
@pytest.mark.parametrize("length", [3, 20])
def test_sasrec_attends_to_the_same_item_and_older_ones(length):
    log = make_log()
    config = replace(MODELS["sasrec"].config(), dim=8, history_length=length, blocks=3, heads=2, temperature=0.0)
    model = MODELS["sasrec"].model.create(config, log, 90, 0)
    scores, items, vectors = last_scores(model, log)
    assert len(items) > 2
    x = [item + position for item, position in zip(items.flip(0), model.positions, strict=False)]  # newest first
    for block in model.blocks:
        normed = [block.attention_norm(one) for one in x]
        output = []
        for i, one in enumerate(x):
            query, parts = block.query(normed[i]), [block.key_value(normed[j]) for j in range(i, len(x))]
            attended = []
            for head in (slice(0, 4), slice(4, 8)):
                keys, values = [part[:8][head] for part in parts], [part[8:][head] for part in parts]
                weights = torch.stack([query[head] @ key / 4**0.5 for key in keys]).softmax(0)
                attended.append(sum(weight * value for weight, value in zip(weights, values, strict=True)))
            hidden = one + block.out(torch.cat(attended))
            output.append(hidden + block.feed_forward(block.feed_forward_norm(hidden)))
        x = output
    assert torch.allclose(vectors @ model.norm(x[0]), scores)


def test_gsasrec_raises_the_true_items_probability_to_a_power():
    log = make_log()
    config = replace(MODELS["gsasrec"].config(), dim=8, history_length=3, negatives=4, calibration=0.75)
    model = MODELS["gsasrec"].model.create(config, log, 90, 0)
    true, own, sampled = torch.tensor([0.3, -1.0]), torch.randn(2, 3), torch.randn(2, 4)
    sampled[0, 1] = -torch.inf  # masked
    losses = model.event_losses(true, torch.cat([own, sampled], 1), torch.ones(7))
    share = 4 / (log.num_items - 1)
    beta = share * (0.75 * (1 - 1 / share) + 1 / share)
    expected = -beta * true.sigmoid().log() - (1 - sampled.sigmoid()).log().sum(1)
    assert torch.allclose(losses, expected)


@torch.no_grad()
@pytest.mark.parametrize("length", [3, 20])
def test_craft_attends_from_each_candidate(length):
    log = make_log()
    config = replace(MODELS["craft"].config(), dim=8, history_length=length, heads=2, hidden=5)
    model = MODELS["craft"].model.create(config, log, 90, 0)
    scores, items, vectors = last_scores(model, log)
    parts = [model.key_value(one + p) for one, p in zip(items.flip(0), model.positions, strict=False)]
    for item in (0, 3):
        query, attended = model.query(vectors[item]), []
        for head in (slice(0, 4), slice(4, 8)):
            weight = torch.stack([query[head] @ part[:8][head] / 2 for part in parts]).softmax(0)
            attended.append(sum(w * part[8:][head] for w, part in zip(weight, parts, strict=True)))
        a, total = torch.cat(attended), items.sum(0)
        hidden = model.attended(a) + model.matched(a * vectors[item])
        expected = model.mlp(total[None], vectors[item][None, None], hidden[None, None])
        assert torch.allclose(scores[item], expected[0, 0])


@torch.no_grad()
@pytest.mark.parametrize("length", [3, 20])
def test_dien_follows_its_equations(length):
    log = make_log()
    config = replace(MODELS["dien"].config(), dim=8, history_length=length, interest_dim=5)
    model = MODELS["dien"].model.create(config, log, 90, 0)
    model.initial_interest.normal_()
    scores, items, vectors = last_scores(model, log)
    gru, h, states = model.extractor, torch.zeros(8).double(), []
    for item in items:
        _, keep, new = gru_gates(item, h, gru.weight_ih_l0, gru.weight_hh_l0, gru.bias_ih_l0, gru.bias_hh_l0)
        h = keep * h + (1 - keep) * new
        states.append(h)
    history_sum = items.sum(0) / length**0.5
    for candidate, expected in zip(vectors, scores, strict=True):
        weights = torch.stack([model.attention.weight @ h @ candidate for h in states]).softmax(0)
        interest = model.initial_interest
        for h, a in zip(states, weights, strict=True):
            hidden_parameters = model.gate_hidden.weight, model.gate_input.bias, model.gate_hidden.bias
            _, update, new = gru_gates(h, interest, model.gate_input.weight, *hidden_parameters)
            interest = (1 - a * update) * interest + a * update * new
        mlp = model.mlp
        hidden = mlp.event(history_sum) + mlp.candidate(candidate) + mlp.product(history_sum * candidate)
        assert torch.allclose(mlp.out((hidden + model.interest_out(interest)).relu())[0], expected)


@torch.no_grad()
def test_diens_auxiliary_loss_predicts_the_next_item():
    log = make_log()
    model = MODELS["dien"].model.create(replace(MODELS["dien"].config(), dim=4), log, 90, 0).double().train()
    states, items = torch.randn(2, 3, 4, dtype=torch.float64), torch.randn(2, 3, 4, dtype=torch.float64)
    mask = torch.tensor([[True, True, True], [True, True, False]])
    losses = model._auxiliary_losses(states, items, mask)

    def term(state, item, sign):
        return F.logsigmoid(sign * (state @ item))

    first = [
        term(states[0, 0], items[0, 1], 1),
        term(states[0, 1], items[0, 2], 1),
        term(states[0, 0], items[1, 1], -1),
    ]
    second = [term(states[1, 0], items[1, 1], 1), term(states[1, 0], items[0, 1], -1)]
    assert torch.allclose(losses, -torch.stack([sum(first) / 2, sum(second)]))
    assert not model.eval()._auxiliary_losses(states, items, mask).any()


@torch.no_grad()
@pytest.mark.parametrize("length", [3, 20])
def test_mimn_follows_its_equations(length):
    log = make_log()
    config = replace(MODELS["mimn"].config(), dim=8, history_length=length, slots=3, slot_dim=5, updated_channels=2)
    model = MODELS["mimn"].model.create(config, log, 90, 0)
    scores, items, vectors = last_scores(model, log)

    def step(gru, x, other, h):
        w = torch.cat([gru.input.weight, gru.other.weight], 1)
        _, keep, new = gru_gates(torch.cat([x, other]), h, w, gru.hidden.weight, gru.input.bias, gru.hidden.bias)
        return keep * h + (1 - keep) * new

    def content_weights(memory, key, strength):
        return torch.stack([F.softplus(strength) * F.cosine_similarity(slot, key, 0) for slot in memory]).softmax(0)

    memory, channels = model.initial_memory.clone(), torch.zeros(3, 5).double()
    utilization, h, read = torch.zeros(3).double(), torch.zeros(5).double(), torch.zeros(5).double()
    for item in items:
        h = step(model.controller, item, read, h)
        interface = model.interface(h)
        read_weight = content_weights(memory, interface[:5], interface[20])
        write_weight = content_weights(memory, interface[5:10], interface[21])
        write_weight = write_weight * model.rebalance(utilization).softmax(0)
        read, utilization = read_weight @ memory, utilization + write_weight
        erase, add = interface[10:15].sigmoid(), interface[15:20].tanh()
        for i in range(3):
            memory[i] = (1 - write_weight[i] * erase) * memory[i] + write_weight[i] * add
        for i in read_weight.argsort(descending=True)[:2]:
            channels[i] = step(model.induction, item, memory[i], channels[i])
    history_sum, mlp = items.sum(0) / length**0.5, model.mlp
    for candidate, expected in zip(vectors, scores, strict=True):
        from_memory = content_weights(memory, model.key(candidate), model.strength) @ memory
        from_channels = (channels @ model.attention(candidate) / 5**0.5).softmax(0) @ channels
        hidden = mlp.event(history_sum) + mlp.candidate(candidate) + mlp.product(history_sum * candidate)
        hidden = hidden + model.memory_out(from_memory) + model.channels_out(from_channels)
        assert torch.allclose(mlp.out(hidden.relu())[0], expected)


@pytest.mark.parametrize("name", [*SEQUENCES, "gsasrec", "craft"])
def test_an_encoding_does_not_depend_on_where_vectors_are(name):
    """Rows of one table for all events, or of a table for each event, as training on a GPU has them."""
    torch.manual_seed(0)
    model = MODELS[name].model(replace(MODELS[name].config(), history_length=6), LogShape.of(make_log())).eval()
    history, vectors = torch.randint(0, 40, (11, 6)), torch.randn(40, model.config.dim)
    mask = torch.arange(6) < torch.randint(0, 7, (11, 1))
    columns = torch.arange(6).expand_as(history)
    shared, own = model.encode_history(history, mask, vectors), model.encode_history(columns, mask, vectors[history])
    for one, other in zip(*((part,) if torch.is_tensor(part) else part for part in (shared, own)), strict=True):
        torch.testing.assert_close(one, other)
