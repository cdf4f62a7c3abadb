"""The dynamic-graph and graph baselines against their papers' equations, one by one, and what they can learn."""

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
from dynedge.models.baselines.dynamic import deepcoevolve, gcmc, jodie, tgat
from dynedge.models.baselines.dynamic.coevolving_rnn import LONG_GAP
from dynedge.models.baselines.heuristics import CONTEXTS
from dynedge.models.baselines.static import ctdne, dynaernn
from dynedge.models.registry import BUILT_IN as MODELS
from dynedge.training.config import TrainingConfig
from dynedge.training.loop import fit

pytestmark = [pytest.mark.slow, pytest.mark.slow]


def moved(model, log):
    """The model after some training steps, for numbers that are not those it starts with."""
    torch.manual_seed(0)
    state, optimiser = model.start(), torch.optim.SGD(model.parameters(), 0.05)
    for number, prepared in enumerate(model.train().batches(log, model.training_windows(len(log)))):
        model.loss(prepared, state, Step(0, 0, number)).total.backward()
        optimiser.step()
        optimiser.zero_grad()
    model.end_epoch(0)
    return model.eval()


# ---- JODIE


def test_jodie_by_its_own_loss_ranks_by_distance():
    log = make_log(features=2)
    model = moved(
        jodie.Jodie.create(jodie.JodieConfig(dim=8, windows=4, loss="mse", steady=0.1), log, len(log), 0), log
    )
    state = model.start()
    with torch.no_grad():
        model.observe(Window(log, range(60)), state)
        user, time = torch.tensor([int(log.user[60])]), torch.tensor([float(log.time[60])])
        asked = model.query(user, time, state)
        wanted = torch.cat([asked[:, :8], asked[:, 9:-1]], 1) / 2
        items = torch.cat([model.entity_states(1, torch.arange(log.num_items), state), model.item_static[:, :-1]], 1)
        away = (items - wanted).square().sum(1)
        found = model.score_query(user, time, None, state)[0]
    assert torch.allclose(found.sub(found[0]), away[0] - away, atol=1e-5)
    assert torch.allclose(model.item_static[:, :-1].norm(dim=1), torch.ones(log.num_items))


def test_what_is_regressed_is_neither_shortened_nor_moved_towards_the_guess():
    """By distance, dropout would ask for vectors that are too short, and targets with a gradient for none at all."""
    log = make_log()
    model = jodie.Jodie.create(
        jodie.JodieConfig(dim=8, windows=4, loss="mse", steady=0.0, dropout=0.9), log, len(log), 0
    )
    prepared, state = next(iter(model.train().batches(log, model.training_windows(len(log))))), model.start()
    first, again = (model.forward_window(prepared, state) for _ in range(2))
    assert torch.equal(first.query, again.query)
    guess = first.query.detach().requires_grad_()
    arena = first.arena.detach().requires_grad_()
    model.error(prepared, first._replace(query=guess, arena=arena), state, Step(0, 0, 0)).backward()
    assert guess.grad.abs().sum() > 0
    assert arena.grad is None or not arena.grad.any()


def test_jodie_projects_the_user_to_the_time_asked():
    log = make_log()
    model = jodie.Jodie.create(jodie.JodieConfig(dim=4, windows=4), log, len(log), 0).eval()
    model.ahead.data.fill_(0.5)
    state = model.start()
    with torch.no_grad():
        model.observe(Window(log, range(60)), state)
        user = torch.tensor([int(log.user[59])])
        soon, later = (model.query(user, torch.tensor([log.time[59] + gap]), state) for gap in (0.0, 99.0))
        turn = model.wants.weight[:, :4] @ model.entity_states(0, user, state)[0]
    assert torch.allclose(later - soon, 0.5 * np.log(100.0) / LONG_GAP * turn, atol=1e-5)


# ---- DeepCoevolve


def test_deepcoevolve_is_the_likelihood_of_every_pair():
    log = make_log(events=40)
    config = deepcoevolve.DeepCoevolveConfig(dim=6, windows=1, negatives=20_000)
    model = deepcoevolve.DeepCoevolve.create(config, log, len(log), 0).double().eval()
    window = Window(log, range(40))
    with torch.no_grad():
        found = model.loss(model.prepare(window), model.start(), Step(0, 0, 0)).total
        state, total, every = model.start(), 0.0, torch.arange(log.num_items)
        for k in range(40):
            user, item, time = int(log.user[k]), int(log.item[k]), float(log.time[k])
            products = model.entity_states(1, every, state) @ model.entity_states(0, torch.tensor([user]), state)[0]
            last = torch.maximum(state["item_time"], state["user_time"][user]).clamp_min(float(log.time[0]))
            waited = (torch.log1p(time - last) / model.unit).clamp_min(deepcoevolve.EARLIEST)
            strength = torch.exp(products + model.rate)
            total += (strength * waited**2 / 2).sum() - torch.log(strength[item] * waited[item])
            model.observe(Window(log, range(k, k + 1)), state)
    assert found == pytest.approx(float(total) / 40, rel=0.02)  # of 20,000 drawn items the mean is this close


# ---- CTDNE


def test_walks_go_forward_in_time():
    log = make_log(events=300)
    model = ctdne.Ctdne.create(ctdne.CtdneConfig(dim=4, length=8), log, 200, 0)
    first = np.arange(50, 150)
    chance = np.random.default_rng(0).random((100, 8), np.float32)
    walks = ctdne._walks(first, chance, 1.5, *model.meetings, log.num_users)
    user, item = np.array(log.user), np.array(log.item) + log.num_users
    lengths = []
    for start, entities in zip(first, walks.tolist(), strict=True):
        event = start
        assert set(entities[:2]) == {user[start], item[start]}
        reached = [entity for entity in entities if entity != ctdne.OVER]
        for a, b in pairwise(reached[1:]):
            later = [k for k in range(event + 1, 200) if {user[k], item[k]} == {a, b}]
            assert later, "a step that no later training event makes"
            event = later[0]
        lengths.append(len(reached))
    assert max(lengths) == 8
    assert min(walks[:, 1:].min(), 0) >= ctdne.OVER


# ---- DeepCoevolve


def test_what_comes_at_once_neither_sets_the_unit_of_time_nor_outweighs_the_rest():
    """Baskets of three, an hour apart: the unit is the hour's, and within a basket time is a tenth of it."""
    time = np.repeat(3600.0 * np.arange(1, 11), 3)
    log = EventLog.from_arrays(np.zeros(30, int), np.arange(30) % 7, time, num_users=1, num_items=7)
    model = deepcoevolve.DeepCoevolve.create(deepcoevolve.DeepCoevolveConfig(), log, 30, 0)
    assert float(model.unit) == pytest.approx(np.log1p(3600.0))
    asked = torch.tensor([7200.0, 7200.0], dtype=torch.float64)
    last = torch.tensor([7200.0, 3600.0], dtype=torch.float64)
    waited = model._waited(asked, last, last[:, None])
    assert waited.flatten().tolist() == pytest.approx([0.1, 1.0])


def test_time_begins_with_the_log_also_where_nobody_returns():
    log = EventLog.from_arrays(np.arange(9), np.arange(9) % 3, 1.6e9 + 60.0 * np.arange(9), num_users=9, num_items=3)
    model = deepcoevolve.DeepCoevolve.create(deepcoevolve.DeepCoevolveConfig(), log, 9, 0)
    assert float(model.origin) == 1.6e9


# ---- dynAERNN


def test_snapshots_are_the_adjacency_rows():
    log = make_log(events=95)
    snapshots = dynaernn.Snapshots(log, 90, 10)
    everyone = log.num_users + log.num_items
    dense = np.zeros((10, everyone, everyone))
    for k in range(90):
        a, b = int(log.user[k]), log.num_users + int(log.item[k])
        dense[k // 9, a, b] += 1
        dense[k // 9, b, a] += 1
    starts, partner, weight = snapshots.rows(np.arange(everyone), range(-2, 10))
    found = np.zeros((everyone * 12, everyone))
    for row, some in enumerate(np.split(np.arange(len(partner)), starts[1:])):
        found[row, partner[some]] = weight[some]
    found = found.reshape(everyone, 12, everyone)
    assert not found[:, :2].any()
    assert np.allclose(found[:, 2:], np.log1p(dense).transpose(1, 0, 2))
    there = dense.any(2)
    assert np.array_equal(snapshots.first, np.where(there.any(0), there.argmax(0), 10))


def test_whoever_comes_later_is_nobody_yet():
    """In training as afterwards, when nothing is known of them at all: or links are learned with vectors of none."""
    log = make_log(events=95)
    model = dynaernn.DynAERNN.create(dynaernn.DynAERNNConfig(), log, 90, 0)
    snapshot = 1
    late = np.flatnonzero(model.snapshots.first[: log.num_users] >= snapshot)
    stranger = np.flatnonzero(model.snapshots.first == 10)[:1]
    assert len(late) and len(stranger)
    vectors = model._vectors(np.concatenate([late, stranger]), snapshot)
    torch.testing.assert_close(vectors, vectors[-1:].expand_as(vectors), rtol=0, atol=1e-6)


def test_too_few_events_for_the_snapshots():
    with pytest.raises(
        DataError, match=r"10 snapshots, and there are 9 events: .*fewer snapshots \(model\.snapshots, at least 2\)"
    ):
        dynaernn.DynAERNN.create(dynaernn.DynAERNNConfig(), make_log(), 9, 0)


# ---- TGAT


def plain_tgat(model, log, side, entity, time, before, layers):
    """An entity's vector at a time from the events before a position, by recursion over all of the log."""
    ids, others = (log.user, log.item)[:: -1 if side else 1]
    events = [k for k in range(before) if ids[k] == entity][::-1][: model.config.neighbours]
    x = model.x[side][entity, : model.config.dim]
    if not layers:
        return x
    own = plain_tgat(model, log, side, entity, time, before, layers - 1)
    rows = []
    for k in events:  # a user is as of just before the event, an item as of just after
        as_of = k if side else k + 1
        partner = plain_tgat(model, log, 1 - side, int(others[k]), float(log.time[k]), as_of, layers - 1)
        phi = torch.cos((time - float(log.time[k])) * model.rate + model.phase)
        rows.append(torch.cat([partner, torch.from_numpy(np.array(log.features[k])), phi]))
    layer = (model.first, model.second)[layers - 1][side]
    heard = torch.zeros_like(x)
    if rows:
        key, value = layer.pair(torch.stack(rows)).unflatten(1, (2, layer.heads, -1)).unbind(1)
        query = layer.query(torch.cat([own, torch.cos(model.phase)])).unflatten(0, (layer.heads, -1))
        share = ((key * query).sum(2) / key.shape[2] ** 0.5).softmax(0)
        heard = (share[..., None] * value).sum(0).flatten()
    return layer.norm(own + heard + layer.out(F.relu(layer.merge(torch.cat([heard, x])))))


@pytest.mark.parametrize("chunk", [7, 60])
def test_tgat_is_two_layers_of_recursion(chunk):
    log = make_log(features=2)
    config = tgat.TGATConfig(dim=8, times=4, windows=4, neighbours=3)
    model, state = moved(tgat.TGAT.create(config, log, len(log), 0), log), None
    with torch.no_grad():
        state = model.start()
        for at in range(0, 60, chunk):
            model.observe(Window(log, range(at, min(at + chunk, 60))), state)
        users, items = model.vectors(state)
        for side, (ids, found) in enumerate(((log.user, users), (log.item, items))):
            for entity in np.unique(ids[:60]).tolist():
                last = max(k for k in range(60) if ids[k] == entity)
                expected = plain_tgat(model, log, side, entity, float(log.time[last]), 60, 2)
                assert torch.allclose(found[entity], expected, atol=1e-5)


# ---- GCMC


@pytest.mark.parametrize("recipe", gcmc.RECIPES)
def test_gcmc_vectors_are_made_of_the_last_neighbours(recipe):
    log = make_log()
    config = replace(gcmc.RECIPES[recipe], dim=8, windows=4, neighbours=4, heads=2)
    model = moved(gcmc.GCMC.create(config, log, len(log), 0), log)
    with torch.no_grad():
        state = model.start()
        model.observe(Window(log, range(70)), state)
        found = model.vectors(state)
        for side, (ids, others) in enumerate(((log.user, log.item), (log.item, log.user))):
            for entity in range(len(found[side])):
                met = [int(others[k]) for k in range(70) if ids[k] == entity][-4:]
                mine, theirs, layer = model.x[side][entity], model.x[1 - side][met], model.encoders[side]
                if recipe == "gcmc":
                    hidden = F.relu(theirs.sum(0) / max(len(met), 1) ** 0.5)
                elif recipe == "gcmc-sage":
                    mean = theirs.mean(0) if met else torch.zeros_like(mine)
                    hidden = F.relu(layer.join(torch.cat([mine, mean])))
                else:
                    turned = torch.cat([layer.turn[0](mine)[None], layer.turn[1](theirs)]).unflatten(1, (2, 4))
                    pull = (turned[0] * layer.pull[0]).sum(1) + (turned * layer.pull[1]).sum(2)
                    hidden = F.elu((F.leaky_relu(pull, 0.2).softmax(0)[..., None] * turned).sum(0)).flatten()
                assert torch.allclose(found[side][entity], model.dense(hidden), atol=1e-5)


@pytest.mark.parametrize("chunk", [1, 7, 60])
def test_gcmc_knows_only_neighbours_that_training_met(chunk):
    """Whoever comes later asks by what they had, but leaves no trace in the items they meet."""
    log = make_log(events=120)
    model = moved(gcmc.GCMC.create(replace(gcmc.RECIPES["gcmc"], dim=8, windows=4, neighbours=5), log, 60, 0), log)
    met = set(np.asarray(log.user[:60]).tolist()), set(np.asarray(log.item[:60]).tolist())
    strangers = [k for k in range(60, 120) if int(log.user[k]) not in met[0]]
    assert strangers, "the log has nobody new"
    with torch.no_grad():
        alone, state = model.start(), model.start()
        for first in range(0, 120, chunk):
            events = range(first, min(first + chunk, 120))
            scores = [model.score(model.prepare(Window(log, range(k, k + 1))), None, alone) for k in events]
            together = model.score(model.prepare(Window(log, events)), None, state)  # also as items move inside it
            torch.testing.assert_close(together, torch.cat(scores))
        found = model.vectors(state)
        for side, own, other in ((0, log.user, log.item), (1, log.item, log.user)):
            for entity in range(len(found[side])):
                known = [int(other[k]) for k in range(120) if own[k] == entity and int(other[k]) in met[1 - side]][
                    -5:
                ]
                total = model.x[1 - side][known].sum(0) if known else torch.zeros(8)
                expected = model.dense(F.relu(total / max(len(known), 1) ** 0.5))
                torch.testing.assert_close(found[side][entity], expected)


def test_heads_that_do_not_divide_the_width():
    log = make_log()
    with pytest.raises(UsageError, match="3 heads do not divide a width of 64"):
        tgat.TGAT.create(tgat.TGATConfig(heads=3), log, len(log), 0)
    with pytest.raises(UsageError, match="3 heads do not divide a width of 64"):
        gcmc.GCMC.create(replace(gcmc.RECIPES["gcmc-gat"], heads=3), log, len(log), 0)


# ---- what is learned

TASTES, EACH, NOISE = 5, 4, 100


def tastes(events=6000, users=50, seed=0):
    """A third of a user's events is of the four items of its taste; between them, items that say nothing.

    Who a user is says what it likes; its last items do not, nor what followed them, nor what everyone likes.
    """
    rng = np.random.default_rng(seed)
    user = rng.integers(0, users, events)
    liked = rng.random(events) < 1 / 3
    item = np.where(liked, EACH * (user % TASTES) + rng.integers(0, EACH, events), TASTES * EACH)
    item += np.where(liked, 0, rng.integers(0, NOISE, events))
    return EventLog.from_arrays(user, item, np.arange(events), num_users=users, num_items=TASTES * EACH + NOISE)


def ranks(name, recipe, log, *, epochs, lr=0.005, **more):
    """Of the validation events, after some training."""
    entry = MODELS[name]
    config = replace(entry.recipes.get(recipe) or entry.config(), **more)
    training = TrainingConfig(epochs=epochs, lr=lr, row_lr=0.02, patience=0)
    events, valid = training.train_valid_ranges(log)
    course = fit(entry.model.create(config, log, events.stop, 0), log, training)
    return rank_events(course.model.eval(), log, valid, course.state.clone())


def mrr_of_tastes(name, recipe, log, **more):
    """Over the validation events that are of a taste. Whoever knows the four items gets 25/48 at best."""
    found = ranks(name, recipe, log, **more)
    valid = TrainingConfig().train_valid_ranges(log)[1]
    return float((1 / found)[np.asarray(log.item)[valid.start : valid.stop] < TASTES * EACH].mean())


@pytest.fixture(scope="module")
def best_rule():
    log = tastes()
    return log, max(mrr_of_tastes("heuristic", rule, log, epochs=1) for rule in CONTEXTS)


LEARNERS = {
    "jodie": {"epochs": 3},
    "ctdne": {"epochs": 4},
    "dynaernn": {"epochs": 5},
    "tgat": {"epochs": 3, "neighbours": 5},
    "gcmc": {"epochs": 3},
    "gcmc-sage": {"epochs": 3},
    "gcmc-gat": {"epochs": 3},
}


@pytest.mark.parametrize("recipe", LEARNERS)
def test_learns_what_the_rules_cannot_see(recipe, best_rule):
    log, rule = best_rule
    name = "gcmc" if recipe.startswith("gcmc") else recipe
    found = mrr_of_tastes(name, recipe, log, windows=40, dim=32, **LEARNERS[recipe])
    assert found > rule + 0.03


def two_waits(events=3000, users=12, seed=0):
    """Each user has an item that it comes to after a short wait, and one for after a long one, as often."""
    rng = np.random.default_rng(seed)
    user, late = rng.integers(0, users, events), rng.random(events) < 0.5
    now, time = np.zeros(users), np.empty(events)
    for k, u in enumerate(user):
        now[u] += rng.integers(5_000, 20_000) if late[k] else rng.integers(1, 20)
        time[k] = now[u]
    return EventLog.from_arrays(user, 2 * user + late, time, num_users=users, num_items=2 * users)


def test_deepcoevolve_knows_items_by_how_long_they_are_waited_for():
    log = two_waits()
    rule = max((1 / ranks("heuristic", rule, log, epochs=1)).mean() for rule in CONTEXTS)
    found = (1 / ranks("deepcoevolve", "deepcoevolve", log, epochs=6, windows=40, dim=16, negatives=24)).mean()
    assert found > rule + 0.05
