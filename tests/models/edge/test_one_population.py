"""Logs of one population: the single table of states against a loop over events, and counts of both directions."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from models.every_model import scores as scores_of

from dynedge.data.log import EventLog
from dynedge.data.windows import MirroredWindow, Window
from dynedge.models.base import Step
from dynedge.models.edge import one_population
from dynedge.models.edge.config import OnePopulationConfig
from dynedge.models.registry import find_entry
from dynedge.ops.level_gru import reference
from dynedge.runs import train_run as training
from dynedge.runs.run_config import recipe_config

pytestmark = pytest.mark.slow


def make_log(events=60, people=7, seed=0):
    """Messages between people, some of them to oneself; the last person has none."""
    rng = np.random.default_rng(seed)
    user, item = rng.integers(0, people, (2, events))
    time = np.sort(rng.integers(0, 3 * events, events))
    sizes = {"num_users": people + 1, "num_items": people + 1}
    log = EventLog.from_arrays(user, item, time, features=rng.standard_normal((events, 2)), **sizes)
    return replace(log, metadata={"one_population": True})


def make_model(log):
    torch.manual_seed(0)
    config = OnePopulationConfig(dim=5, windows=4, negatives=4, dropout=0.0)
    model = one_population.OnePopulation.create(config, log, len(log), 0).double()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(0.4 * torch.randn(parameter.shape, dtype=torch.float64))
    return model


def reference_scores(model, log):
    """(scores before each event, final states): one event after the other, one state per person."""
    count, d = log.num_items, model.config.dim
    state, time, met, scores = [model.xi] * count, [None] * count, [-1] * count, []

    def gap(now, before):
        return torch.tensor([0.0, 0.0] if before is None else [np.log1p(now - before), 1.0]).double()

    for a, b, now, features in zip(
        log.user.tolist(), log.item.tolist(), log.time.tolist(), log.features, strict=True
    ):
        own, other = torch.from_numpy(features).double(), met[a]
        last = torch.zeros(d).double() if other < 0 else state[other]
        ids = torch.zeros(d).double() if other < 0 else model.candidate[other, :-1]
        query = model.head(torch.cat([state[a], model.item_ids[other], last, gap(now, time[a])]))
        query = query + model.skip.weight @ torch.cat([last, ids])
        scores.append(torch.stack(state) @ query[:d] + model.candidate[:, :-1] @ query[d:] + model.candidate[:, -1])
        before = state[a], state[b]
        for side, (entity, partner) in enumerate(((a, b), (b, a))):
            if side == 0 and a == b:
                continue
            inputs = torch.cat([model.item_ids[partner], gap(now, time[entity]), own])
            pre = model.feature[side] @ inputs + model.bias[side]
            weights = model.own, model.other, model.own_bias
            parts = before[side][None], before[1 - side][None], pre[None], *weights
            state[entity] = reference.update(*parts)[0]
        for entity, partner in ((a, b), (b, a)):
            time[entity], met[entity] = now, partner
    return torch.stack(scores), torch.stack(state)


@pytest.mark.parametrize("chunk", [1, 7, 60])
def test_scores_and_states_equal_the_reference(chunk):
    log = make_log()
    assert (log.user == log.item).any()
    model = make_model(log).eval()
    expected, states = reference_scores(model, log)
    assert torch.allclose(scores_of(model, log, chunk), expected, atol=1e-10)
    state = model.start()
    for start in range(0, len(log), chunk):
        model.observe(Window(log, range(start, min(start + chunk, len(log)))), state)
    assert torch.allclose(model.vectors(state)[0], states, atol=1e-12)


def test_loss_and_gradients_equal_the_reference():
    log = make_log(events=30)
    model = make_model(log)
    expected, _ = reference_scores(model, log)
    negatives = torch.randint(log.num_items, (30, 4), generator=Step(0, 0, 0).generator())
    losses = []
    for k, item in enumerate(log.item.tolist()):
        others = [expected[k, j] + np.log(log.num_items / 4) for j in negatives[k].tolist() if j != item]
        losses.append(torch.logsumexp(torch.stack([expected[k, item], *others]), 0) - expected[k, item])
    names = ["xi", "own", "other", "own_bias", "feature", "candidate"]
    parameters = [getattr(model, name) for name in names]
    grads = torch.autograd.grad(torch.stack(losses).mean(), parameters)
    loss = model.loss(model.prepare(Window(log, range(30))), model.start(), Step(0, 0, 0))
    assert loss.log["loss"] == pytest.approx(torch.stack(losses).mean().item(), abs=1e-12)
    loss.total.backward()
    for name, parameter, grad in zip(names, parameters, grads, strict=True):
        given = parameter.grad.to_dense() if parameter.grad.is_sparse else parameter.grad
        assert torch.allclose(given, grad, atol=1e-10), name


def test_counts_are_those_of_both_directions():
    log = make_log()
    entry = find_entry("recent")
    config = entry.recipe("recent")
    one = entry.model.create(config, log, len(log), 0)
    both = MirroredWindow(log, range(len(log)))
    doubled = EventLog.from_arrays(both.user, both.item, both.time, num_users=8, num_items=8)
    two = entry.model.create(config, doubled, len(doubled), 0)
    expected = scores_of(two, doubled, len(doubled))[::2]
    for chunk in (1, 7, 60):
        assert torch.equal(scores_of(one, log, chunk), expected)
    ranks = one.rank(one.prepare(Window(log, range(60))), None, torch.from_numpy(log.item).long(), one.start())
    assert torch.equal(ranks, two.rank(Window(doubled, range(120)), None, torch.zeros(120).long(), two.start())[::2])


def test_a_model_with_two_tables_says_so(tmp_path, capsys):
    from dynedge.runs.folder import RunFolder

    for name, warned in (("popular", False), ("sum-pooling", True)):
        config = recipe_config(name)
        config = replace(config, training=replace(config.training, epochs=0))
        with RunFolder(tmp_path / name) as run:
            training.train_run(run, config, make_log())
        assert ("has separate vectors for users and items" in capsys.readouterr().err) == warned
