"""Dynamic and static graph baselines against their papers' equations, and on learnable tasks."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import torch
from models.every_model import make_log
from torch.nn import functional as F

from dynedge.data.log import EventLog
from dynedge.data.windows import Window
from dynedge.errors import DataError, UsageError
from dynedge.evaluation.protocol import rank_events
from dynedge.models.base import Step
from dynedge.models.baselines.dynamic import deepcoevolve, gcmc, graphmixer, jodie, tgat, tgn
from dynedge.models.baselines.dynamic.candidate_age import CandidateAge
from dynedge.models.baselines.dynamic.coevolving_rnn import LONG_GAP
from dynedge.models.baselines.heuristics import CONTEXTS
from dynedge.models.baselines.static import ctdne, dynaernn
from dynedge.models.registry import BUILT_IN as MODELS
from dynedge.training.config import TrainingConfig
from dynedge.training.loop import fit

pytestmark = pytest.mark.slow


def trained(model, log):
    """The model after a few training steps, so that its parameters are not their initial values."""
    torch.manual_seed(0)
    state, optimizer = model.start(), torch.optim.SGD(model.parameters(), 0.05)
    for number, batch in enumerate(model.train().batches(log, model.training_windows(len(log)))):
        model.loss(batch, state, Step(0, 0, number)).total.backward()
        optimizer.step()
        optimizer.zero_grad()
    model.end_epoch(0)
    return model.eval()


# ---- JODIE


def test_jodie_with_the_papers_loss_ranks_by_distance():
    log = make_log(features=2)
    config = jodie.JodieConfig(dim=8, windows=4, loss="mse", state_change_weight=0.1)
    model = trained(jodie.Jodie.create(config, log, len(log), 0), log)
    state = model.start()
    with torch.no_grad():
        model.observe(Window(log, range(60)), state)
        user, time = torch.tensor([int(log.user[60])]), torch.tensor([float(log.time[60])])
        query = model.query(user, time, state)
        predicted = torch.cat([query[:, :8], query[:, 9:-1]], 1) / 2
        items = torch.cat([model.entity_states(1, torch.arange(log.num_items), state), model.item_static[:, :-1]], 1)
        distance = (items - predicted).square().sum(1)
        scores = model.score_query(user, time, None, state)[0]
    assert torch.allclose(scores.sub(scores[0]), distance[0] - distance, atol=1e-5)
    assert torch.allclose(model.item_static[:, :-1].norm(dim=1), torch.ones(log.num_items))


def test_the_mse_loss_uses_no_dropout_and_no_gradient_of_the_target():
    """Dropout would shorten the predicted vectors, and with a gradient the targets would collapse."""
    log = make_log()
    config = jodie.JodieConfig(dim=8, windows=4, loss="mse", state_change_weight=0.0, dropout=0.9)
    model = jodie.Jodie.create(config, log, len(log), 0)
    batch, state = next(iter(model.train().batches(log, model.training_windows(len(log))))), model.start()
    first, again = (model.forward_window(batch, state) for _ in range(2))
    assert torch.equal(first.query, again.query)
    query = first.query.detach().requires_grad_()
    arena = first.arena.detach().requires_grad_()
    model.window_loss(batch, first._replace(query=query, arena=arena), state, Step(0, 0, 0)).backward()
    assert query.grad.abs().sum() > 0
    assert arena.grad is None or not arena.grad.any()


def test_jodie_projects_the_user_to_the_time_of_the_query():
    log = make_log()
    model = jodie.Jodie.create(jodie.JodieConfig(dim=4, windows=4), log, len(log), 0).eval()
    model.projection.data.fill_(0.5)
    state = model.start()
    with torch.no_grad():
        model.observe(Window(log, range(60)), state)
        user = torch.tensor([int(log.user[59])])
        now, later = (model.query(user, torch.tensor([log.time[59] + gap]), state) for gap in (0.0, 99.0))
        direction = model.predict.weight[:, :4] @ model.entity_states(0, user, state)[0]
    assert torch.allclose(later - now, 0.5 * np.log(100.0) / LONG_GAP * direction, atol=1e-5)


@torch.no_grad()
def test_the_triplet_loss_compares_distances_to_items_as_they_were():
    log = make_log(features=2)
    config = jodie.JodieConfig(dim=8, windows=4, loss="triplet", normalize_states=True, margin=0.7)
    model = jodie.Jodie.create(config, log, len(log), 0).double().eval()
    window, step = Window(log, range(20, 50)), Step(0, 0, 3)
    start = model.start()
    model.observe(Window(log, range(20)), start)
    loss = model.loss(model.prepare(window), start.clone(), step).total
    sampled = torch.randint(log.num_items, (30, jodie.TRIPLETS), generator=step.generator())
    state, total = start.clone(), 0.0
    for k in range(30):
        event = Window(log, range(20 + k, 21 + k))
        query = model.query(torch.from_numpy(event.user).long(), torch.from_numpy(event.time), state)[0]
        predicted = torch.cat([query[:8], query[9:-1]]) / 2
        items = torch.cat([torch.from_numpy(event.item).long(), sampled[k]])
        states = F.normalize(model.entity_states(1, items, state))
        distance = (predicted - torch.cat([states, model.item_static[items, :-1]], 1)).square().sum(1)
        total += float((0.7 + distance[0] - distance[1:]).clamp_min(0).mean())
        model.observe(event, state)
    assert float(loss) == pytest.approx(total / 30)
    scores = model.score_query(torch.tensor([1]), torch.tensor([log.time[50]]), None, state)[0]
    query = model.query(torch.tensor([1]), torch.tensor([log.time[50]]), state)[0]
    vectors = torch.cat([F.normalize(model.vectors(state)[1]), model.item_static[:, :-1]], 1)
    distance = (torch.cat([query[:8], query[9:-1]]) / 2 - vectors).square().sum(1)
    assert torch.allclose(scores - scores[0], distance[0] - distance)


# ---- DeepCoevolve


def test_the_deepcoevolve_loss_estimates_the_likelihood_of_all_pairs():
    log = make_log(events=40)
    config = deepcoevolve.DeepCoevolveConfig(dim=6, windows=1, negatives=20_000)
    model = deepcoevolve.DeepCoevolve.create(config, log, len(log), 0).double().eval()
    window = Window(log, range(40))
    with torch.no_grad():
        loss = model.loss(model.prepare(window), model.start(), Step(0, 0, 0)).total
        state, expected, items = model.start(), 0.0, torch.arange(log.num_items)
        for k in range(40):
            user, item, time = int(log.user[k]), int(log.item[k]), float(log.time[k])
            products = model.entity_states(1, items, state) @ model.entity_states(0, torch.tensor([user]), state)[0]
            last = torch.maximum(state["item_time"], state["user_time"][user]).clamp_min(float(log.time[0]))
            elapsed = (torch.log1p(time - last) / model.time_unit).clamp_min(deepcoevolve.MIN_ELAPSED)
            rate = torch.exp(products + model.log_rate)
            expected += (rate * elapsed**2 / 2).sum() - torch.log(rate[item] * elapsed[item])
            model.observe(Window(log, range(k, k + 1)), state)
    assert loss == pytest.approx(float(expected) / 40, rel=0.02)  # the mean over 20,000 samples is this close


def test_simultaneous_events_do_not_set_the_time_unit_and_have_a_minimum_elapsed_time():
    """Baskets of three, an hour apart: the unit is that of an hour, and within a basket a tenth of it has elapsed."""
    time = np.append(np.repeat(3600.0 * np.arange(1, 11), 3), [1e7, 2e7])  # the last two are not for training
    log = EventLog.from_arrays(np.zeros(32, int), np.arange(32) % 7, time, num_users=1, num_items=7)
    model = deepcoevolve.DeepCoevolve.create(deepcoevolve.DeepCoevolveConfig(), log, 30, 0)
    assert float(model.time_unit) == pytest.approx(np.log1p(3600.0))
    query_time = torch.tensor([7200.0, 7200.0], dtype=torch.float64)
    last = torch.tensor([7200.0, 3600.0], dtype=torch.float64)
    elapsed = model._elapsed(query_time, last, last[:, None])
    assert elapsed.flatten().tolist() == pytest.approx([0.1, 1.0])


def test_time_starts_with_the_log_even_if_no_user_returns():
    log = EventLog.from_arrays(np.arange(9), np.arange(9) % 3, 1.6e9 + 60.0 * np.arange(9), num_users=9, num_items=3)
    model = deepcoevolve.DeepCoevolve.create(deepcoevolve.DeepCoevolveConfig(), log, 9, 0)
    assert float(model.time_origin) == 1.6e9


# ---- CTDNE


def test_walks_move_forward_in_time():
    log = make_log(events=300)
    model = ctdne.Ctdne.create(ctdne.CtdneConfig(dim=4, walk_length=8), log, 200, 0)
    first = np.arange(50, 150)
    random = np.random.default_rng(0).random((100, 8), np.float32)
    walks = ctdne._sample_walks(first, random, 1.5, *model.events, log.num_users)
    user, item = np.array(log.user), np.array(log.item) + log.num_users
    lengths = []
    for start, walk in zip(first, walks.tolist(), strict=True):
        event = start
        assert set(walk[:2]) == {user[start], item[start]}
        entities = [entity for entity in walk if entity != ctdne.PADDING]
        for a, b in pairwise(entities[1:]):
            later = [k for k in range(event + 1, 200) if {user[k], item[k]} == {a, b}]
            assert later, "a step without a later training event"
            event = later[0]
        lengths.append(len(entities))
    assert max(lengths) == 8
    assert min(walks[:, 1:].min(), 0) >= ctdne.PADDING


def test_noise_is_drawn_in_proportion_to_a_power_of_the_degree():
    log = make_log(events=300)
    model = ctdne.Ctdne.create(ctdne.CtdneConfig(dim=4), log, 200, 0)
    entities = np.concatenate([log.user[:200], log.num_users + log.item[:200]])
    degrees = np.bincount(entities, minlength=log.num_users + log.num_items)
    assert len(set(degrees.tolist())) > 5
    assert np.allclose(np.diff(model._cumulative_noise, prepend=0), degrees**0.75)


# ---- dynAERNN


def test_the_classifier_of_links_does_not_train_the_vectors():
    log = make_log(events=95)
    model = dynaernn.DynAERNN.create(dynaernn.DynAERNNConfig(dim=8, hidden=8), log, 90, 0)
    window, step = Window(log, range(60, 80)), Step(0, 0, 3)
    model.loss(window, model.start(), step).total.backward()
    weight = model.encoders[-1].layers[-2].weight
    gradient = weight.grad.clone()
    assert model.weight.grad.abs().sum() > 0
    model.zero_grad()
    model.embedding_loss(window, step)[0].backward()
    assert torch.allclose(weight.grad, gradient)
    assert gradient.abs().sum() > 0


def test_snapshots_are_the_adjacency_rows():
    log = make_log(events=95)
    snapshots = dynaernn.Snapshots(log, 90, 10)
    entities = log.num_users + log.num_items
    counts = np.zeros((10, entities, entities))
    for k in range(90):
        a, b = int(log.user[k]), log.num_users + int(log.item[k])
        counts[k // 9, a, b] += 1
        counts[k // 9, b, a] += 1
    for snapshot in range(-2, 10):
        starts, partner, weight = snapshots.rows(np.arange(entities), snapshot)
        dense = np.zeros((entities, entities))
        for row, cells in enumerate(np.split(np.arange(len(partner)), starts[1:])):
            dense[row, partner[cells]] = weight[cells]
        assert np.allclose(dense, np.log1p(counts[snapshot]) if snapshot >= 0 else 0)
    active = counts.any(2)
    assert np.array_equal(snapshots.first, np.where(active.any(0), active.argmax(0), 10))


def test_entities_without_earlier_events_share_one_vector():
    """In training as afterwards: else links would be trained with vectors that unseen entities do not have."""
    log = make_log(events=95)
    model = dynaernn.DynAERNN.create(dynaernn.DynAERNNConfig(), log, 90, 0)
    snapshot = 1
    late = np.flatnonzero(model.snapshots.first[: log.num_users] >= snapshot)
    unseen = np.flatnonzero(model.snapshots.first == 10)[:1]
    assert len(late) and len(unseen)
    vectors = model._vectors(np.concatenate([late, unseen]), snapshot)
    torch.testing.assert_close(vectors, vectors[-1:].expand_as(vectors), rtol=0, atol=1e-6)


def test_each_lag_has_an_encoder_and_the_predicted_snapshot_is_not_read():
    log = make_log(events=95)
    model = dynaernn.DynAERNN.create(dynaernn.DynAERNNConfig(dim=8, hidden=8, lookback=3), log, 90, 0)
    read = []
    for encoder in model.encoders:
        encoder.register_forward_pre_hook(lambda module, inputs: read.append((module, inputs[3].tolist())))
    model._vectors(np.arange(log.num_users), 5)
    partners = [model.snapshots.rows(np.arange(log.num_users), snapshot)[1].tolist() for snapshot in (2, 3, 4)]
    assert read == list(zip(model.encoders, partners, strict=True))
    assert len({*map(tuple, partners)}) == 3


def test_too_few_events_for_the_snapshots_are_refused():
    with pytest.raises(
        DataError, match=r"10 snapshots, and there are 9 events: .*fewer snapshots \(model\.snapshots, at least 2\)"
    ):
        dynaernn.DynAERNN.create(dynaernn.DynAERNNConfig(), make_log(), 9, 0)


# ---- TGAT


def reference_tgat(model, log, side, entity, time, before, layers):
    """An entity's vector at a time from the events before a position, by recursion over the log."""
    ids, others = (log.user, log.item)[:: -1 if side else 1]
    events = [k for k in range(before) if ids[k] == entity][::-1][: model.config.neighbours]
    x = model.x[side][entity, : model.config.dim]
    if not layers:
        return x
    h = reference_tgat(model, log, side, entity, time, before, layers - 1)
    rows = []
    for k in events:
        end = k if side else k + 1  # a user's vector is that just before the event, an item's that just after
        partner = reference_tgat(model, log, 1 - side, int(others[k]), float(log.time[k]), end, layers - 1)
        phi = model.time_encoding(torch.tensor(time - float(log.time[k])))
        rows.append(torch.cat([partner, torch.from_numpy(np.array(log.features[k])), phi]))
    layer = (model.first, model.second)[layers - 1][side]
    attended = torch.zeros_like(x)
    if rows:
        key, value = layer.key_value(torch.stack(rows)).unflatten(1, (2, layer.heads, -1)).unbind(1)
        query = layer.query(torch.cat([h, torch.cos(model.time_encoding.phase)])).unflatten(0, (layer.heads, -1))
        weight = ((key * query).sum(2) / key.shape[2] ** 0.5).softmax(0)
        attended = (weight[..., None] * value).sum(0).flatten()
    return layer.norm(h + attended + layer.out(F.relu(layer.merge(torch.cat([attended, x])))))


@pytest.mark.parametrize("chunk", [7, 60])
def test_tgat_vectors_are_two_recursive_layers(chunk):
    log = make_log(features=2)
    config = tgat.TGATConfig(dim=8, time_dim=4, windows=4, neighbours=3)
    model = trained(tgat.TGAT.create(config, log, len(log), 0), log)
    with torch.no_grad():
        state = model.start()
        for start in range(0, 60, chunk):
            model.observe(Window(log, range(start, min(start + chunk, 60))), state)
        users, items = model.vectors(state)
        for side, (ids, vectors) in enumerate(((log.user, users), (log.item, items))):
            for entity in np.unique(ids[:60]).tolist():
                last = max(k for k in range(60) if ids[k] == entity)
                expected = reference_tgat(model, log, side, entity, float(log.time[last]), 60, 2)
                assert torch.allclose(vectors[entity], expected, atol=1e-5)


def test_learned_frequencies_change_and_have_a_scaled_gradient():
    encoding = tgat.TimeEncoding(4)
    encoding(torch.tensor([5e6], dtype=torch.float64)).sum().backward()
    seconds, frequency = 5e6, encoding.initial.double()
    expected = -torch.sin(seconds * frequency) * seconds * frequency * tgat.GRADIENT_SCALE
    assert torch.allclose(encoding.log_factor.grad.double(), expected, rtol=1e-2)
    encoding.log_factor.data.fill_(float(np.log(2)))
    assert torch.allclose(encoding(torch.tensor(0.3)), torch.cos(0.6 * encoding.initial))


@torch.no_grad()
def test_candidates_are_scored_by_the_time_since_their_last_event():
    age = CandidateAge(6, 5).double()
    for parameter in age.parameters():
        parameter.normal_()
    vector, now = torch.randn(2, 6).double(), torch.tensor([1.6e9, 1.6e9 + 55], dtype=torch.float64)
    last = torch.tensor([1.6e9 - 7, 1.6e9 - 86_400, -1.0], dtype=torch.float64)
    query = age.query(torch.zeros(2, 12).double(), vector, now)[:, 6:16]
    scores = query @ age.item_columns(last).T
    gap = now[:, None] - last
    expected = (age.weight(vector)[:, None] * torch.cos(gap[..., None] * age.frequency + age.phase)).sum(2)
    assert torch.allclose(scores[:, :2], expected[:, :2], atol=1e-5)
    assert not scores[:, 2].any(), "an item without events"


# ---- TGN


@torch.no_grad()
@pytest.mark.parametrize("chunk", [7, 60])
def test_tgn_updates_both_memories_and_attends_to_current_ones(chunk):
    log = make_log(features=2)
    with torch.enable_grad():
        model = trained(tgn.TGN.create(tgn.TGNConfig(dim=8, time_dim=4, windows=4, neighbours=3), log, 120, 0), log)
    model = model.double()
    state = model.start()
    for start in range(0, 60, chunk):
        model.observe(Window(log, range(start, min(start + chunk, 60))), state)
    memory = [{}, {}]
    seen = [{}, {}]
    for k in range(60):
        pair = int(log.user[k]), int(log.item[k])
        before = [memory[side].get(pair[side], model.xi[side]) for side in (0, 1)]
        for side in (0, 1):
            gap = torch.tensor(log.time[k] - seen[side].get(pair[side], 0.0))
            phi = model.time_encoding(gap) * (pair[side] in seen[side])
            message = model.feature[side] @ torch.cat([torch.from_numpy(log.features[k]).double(), phi])
            p = model.other[side] @ before[1 - side] + message + model.bias[side]
            q = model.own[side] @ before[side] + model.own_bias[side]
            (pr, pz, pn), (qr, qz, qn) = p.chunk(3), q.chunk(3)
            keep, new = (pz + qz).sigmoid(), (pn + (pr + qr).sigmoid() * qn).tanh()
            memory[side][pair[side]] = (1 - keep) * new + keep * before[side]
        for side in (0, 1):
            seen[side][pair[side]] = log.time[k]
    for side, states in enumerate(model.vectors(state)):
        for entity, expected in memory[side].items():
            assert torch.allclose(states[entity], expected)
    user, time = int(log.user[60]), torch.tensor([log.time[60]])
    events = [k for k in range(60) if log.user[k] == user][::-1][:3]
    own = memory[0][user] + model.x[0][user]
    items = torch.stack([memory[1][int(log.item[k])] + model.x[1][int(log.item[k]), :8] for k in events])
    phi = model.time_encoding(time - torch.from_numpy(log.time[events].copy()))
    embedding = model.attention(
        own[None], own[None], model.time_encoding(torch.zeros(1).double()), [items[None]], phi[None],
        torch.ones(1, len(events), dtype=torch.bool),
    )  # fmt: skip
    query = model.query(torch.tensor([user]), time, state)
    assert torch.allclose(query[:, :8], model.query_out(embedding)[:, :8] / 8**0.5)


# ---- GraphMixer


@torch.no_grad()
def test_graphmixer_mixes_the_last_events():
    log = make_log()
    with torch.enable_grad():
        config = graphmixer.GraphMixerConfig(dim=8, time_dim=4, windows=4, neighbours=3)
        model = trained(graphmixer.GraphMixer.create(config, log, 120, 0), log)
    state = model.start()
    model.observe(Window(log, range(60)), state)
    user, now = int(log.user[60]), float(log.time[60])
    events = [k for k in range(60) if log.user[k] == user][::-1][:3]
    mixer, neighbours = model.mixers[0], [model.x[1][int(log.item[k]), :8] for k in events]
    phi = [torch.cos((now - log.time[k]) * model.frequency) for k in events]
    y = torch.stack([mixer.token(torch.cat(parts).float()) for parts in zip(phi, neighbours, strict=True)])
    for layer, norm, turn in ((mixer.across, mixer.norms[0], True), (mixer.within, mixer.norms[1], False)):
        normed = norm(y).T if turn else norm(y)
        mixed = layer.second(F.gelu(layer.first(normed)))
        y = y + (mixed.T if turn else mixed)
    node = model.x[0][user] + torch.stack(neighbours).mean(0)
    expected = model.combine_users(torch.cat([mixer.norms[2](y).mean(0), node]))
    found = model._encode_now(0, torch.tensor([user]), torch.tensor([now]), state)[0]
    assert torch.allclose(found, expected, atol=1e-5)


# ---- GCMC


@pytest.mark.parametrize("recipe", gcmc.RECIPES)
def test_gcmc_vectors_follow_their_equations(recipe):
    log = make_log()
    config = replace(gcmc.RECIPES[recipe], dim=8, windows=4, neighbours=4, heads=2)
    model = trained(gcmc.GCMC.create(config, log, len(log), 0), log)
    with torch.no_grad():
        state = model.start()
        model.observe(Window(log, range(70)), state)
        vectors = model.vectors(state)
        for side, (ids, others) in enumerate(((log.user, log.item), (log.item, log.user))):
            for entity in range(len(vectors[side])):
                neighbours = [int(others[k]) for k in range(70) if ids[k] == entity][-4:]
                own, other, encoder = model.x[side][entity], model.x[1 - side][neighbours], model.encoders[side]
                if recipe == "gcmc":
                    hidden = F.relu(other.sum(0) / max(len(neighbours), 1) ** 0.5)
                elif recipe == "gcmc-sage":
                    mean = other.mean(0) if neighbours else torch.zeros_like(own)
                    hidden = F.relu(encoder.combine(torch.cat([own, mean])))
                else:
                    transformed = torch.cat([encoder.transform[0](own)[None], encoder.transform[1](other)])
                    transformed = transformed.unflatten(1, (2, 4))
                    target, sources = (
                        (part * a).sum(-1)
                        for part, a in zip((transformed[0], transformed), encoder.attention, strict=True)
                    )
                    weight = F.leaky_relu(target + sources, 0.2).softmax(0)
                    hidden = F.elu((weight[..., None] * transformed).sum(0)).flatten()
                assert torch.allclose(vectors[side][entity], model.dense(hidden), atol=1e-5)


@pytest.mark.parametrize("chunk", [1, 7, 60])
def test_gcmc_stores_only_neighbours_seen_in_training(chunk):
    """Users who are new after training get scores from their neighbours, but do not become neighbours of items."""
    log = make_log(events=120)
    config = replace(gcmc.RECIPES["gcmc"], dim=8, windows=4, neighbours=5)
    model = trained(gcmc.GCMC.create(config, log, 60, 0), log)
    seen = set(np.asarray(log.user[:60]).tolist()), set(np.asarray(log.item[:60]).tolist())
    assert [k for k in range(60, 120) if int(log.user[k]) not in seen[0]], "the log has no new user"
    with torch.no_grad():
        stepwise, state = model.start(), model.start()
        for first in range(0, 120, chunk):
            events = range(first, min(first + chunk, 120))
            expected = [model.score(model.prepare(Window(log, range(k, k + 1))), None, stepwise) for k in events]
            scores = model.score(
                model.prepare(Window(log, events)), None, state
            )  # items change inside the window too
            torch.testing.assert_close(scores, torch.cat(expected))
        vectors = model.vectors(state)
        for side, ids, others in ((0, log.user, log.item), (1, log.item, log.user)):
            for entity in range(len(vectors[side])):
                partners = [int(others[k]) for k in range(120) if ids[k] == entity]
                neighbours = [partner for partner in partners if partner in seen[1 - side]][-5:]
                total = model.x[1 - side][neighbours].sum(0) if neighbours else torch.zeros(8)
                expected = model.dense(F.relu(total / max(len(neighbours), 1) ** 0.5))
                torch.testing.assert_close(vectors[side][entity], expected)


def test_heads_that_do_not_divide_the_width_are_refused():
    log = make_log()
    with pytest.raises(UsageError, match="--heads 3 should divide --dim 64"):
        tgat.TGAT.create(tgat.TGATConfig(heads=3), log, len(log), 0)
    with pytest.raises(UsageError, match="--heads 3 should divide --dim 64"):
        gcmc.GCMC.create(replace(gcmc.RECIPES["gcmc-gat"], heads=3), log, len(log), 0)


# ---- training

GROUPS, GROUP_ITEMS, NOISE_ITEMS = 5, 4, 100


def log_of_groups(events=6000, users=50, seed=0):
    """A third of a user's events are of the four items of its group; the others are of random items.

    The user's identity predicts its group's items; its last items, what followed them and popularity do not.
    """
    rng = np.random.default_rng(seed)
    user = rng.integers(0, users, events)
    in_group = rng.random(events) < 1 / 3
    group_items = GROUPS * GROUP_ITEMS
    item = np.where(in_group, GROUP_ITEMS * (user % GROUPS) + rng.integers(0, GROUP_ITEMS, events), group_items)
    item += np.where(in_group, 0, rng.integers(0, NOISE_ITEMS, events))
    return EventLog.from_arrays(user, item, np.arange(events), num_users=users, num_items=group_items + NOISE_ITEMS)


def ranks(name, recipe, log, *, epochs, lr=0.005, **settings):
    """Ranks of the validation events after training."""
    entry = MODELS[name]
    config = replace(entry.recipes.get(recipe) or entry.config(), **settings)
    training = TrainingConfig(epochs=epochs, lr=lr, row_lr=0.02, patience=0)
    events, valid = training.train_valid_ranges(log)
    course = fit(entry.model.create(config, log, events.stop, 0), log, training)
    return rank_events(course.model.eval(), log, valid, course.state.clone())


def group_mrr(name, recipe, log, **settings):
    """MRR of the validation events of a group's items; knowing the four items gives 25/48 at best."""
    valid_ranks = ranks(name, recipe, log, **settings)
    valid = TrainingConfig().train_valid_ranges(log)[1]
    return float((1 / valid_ranks)[np.asarray(log.item)[valid.start : valid.stop] < GROUPS * GROUP_ITEMS].mean())


@pytest.fixture(scope="module")
def best_heuristic():
    log = log_of_groups()
    return log, max(group_mrr("heuristic", heuristic, log, epochs=1) for heuristic in CONTEXTS)


@pytest.mark.parametrize("name", ["ctdne", "dynaernn"])
def test_a_new_user_gets_popular_items_from_a_static_model(name):
    rng = np.random.default_rng(0)
    item = np.minimum(rng.zipf(1.6, 1500) - 1, 19)
    log = EventLog.from_arrays(rng.integers(0, 40, 1500), item, np.arange(1500), num_users=41, num_items=20)
    config = TrainingConfig(epochs=3, patience=0, split="0.9,0.1,0", row_lr=0.05)
    model = MODELS[name].model.create(replace(MODELS[name].config(), dim=8, windows=30), log, 1350, 0)
    fit(model, log, config)
    with torch.no_grad():
        scores = model.score_query(torch.tensor([40]), torch.zeros(1), None, model.start())[0]
    assert {0, 1} <= set(scores.topk(4).indices.tolist())


LEARNERS = {
    "jodie": {"epochs": 3},
    "ctdne": {"epochs": 4},
    "dynaernn": {"epochs": 5},
    "tgat": {"epochs": 3, "neighbours": 5},
    "tgn": {"epochs": 3, "neighbours": 5},
    "gcmc": {"epochs": 3},
    "gcmc-sage": {"epochs": 3},
    "gcmc-gat": {"epochs": 3},
}


@pytest.mark.parametrize("recipe", LEARNERS)
def test_learns_groups_of_users_that_heuristics_cannot(recipe, best_heuristic):
    log, heuristic_mrr = best_heuristic
    name = "gcmc" if recipe.startswith("gcmc") else recipe
    assert group_mrr(name, recipe, log, windows=40, dim=32, **LEARNERS[recipe]) > heuristic_mrr + 0.03


def log_of_waiting_times(events=3000, users=12, seed=0):
    """Each user has one item after short gaps and another one after long gaps, equally often."""
    rng = np.random.default_rng(seed)
    user, is_long = rng.integers(0, users, events), rng.random(events) < 0.5
    now, time = np.zeros(users), np.empty(events)
    for k, u in enumerate(user):
        now[u] += rng.integers(5_000, 20_000) if is_long[k] else rng.integers(1, 20)
        time[k] = now[u]
    return EventLog.from_arrays(user, 2 * user + is_long, time, num_users=users, num_items=2 * users)


def test_deepcoevolve_learns_waiting_times():
    log = log_of_waiting_times()
    heuristic_mrr = max((1 / ranks("heuristic", heuristic, log, epochs=1)).mean() for heuristic in CONTEXTS)
    mrr = (1 / ranks("deepcoevolve", "deepcoevolve", log, epochs=6, windows=40, dim=16, negatives=24)).mean()
    assert mrr > heuristic_mrr + 0.05
