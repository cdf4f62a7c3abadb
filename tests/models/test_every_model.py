"""Every model and recipe of the registry passes the checks of tests/models/every_model.py."""

import inspect
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
import torch
from models.every_model import (
    CHECKS,
    CONTRACT,
    assert_same_state,
    capabilities_of,
    changed_after,
    make_log,
    state_after,
)

from dynedge.config import flatten, set_key
from dynedge.data.id_index import IdIndex
from dynedge.evaluation.metrics import per_event
from dynedge.evaluation.protocol import PROTOCOLS, rank_events
from dynedge.models import capabilities
from dynedge.models.base import Step
from dynedge.models.count_memory.model import CountMemory
from dynedge.models.edge.model import Edge
from dynedge.models.registry import BUILT_IN, models_with
from dynedge.training import online
from dynedge.training.config import TrainingConfig
from dynedge.training.online import OnlineLearner, online_window, rank_online
from dynedge.training.optimizer import Adam

RECIPES = {recipe: entry for name, entry in BUILT_IN.items() for recipe in entry.names(name)}
# On a longer log, of the heuristics one of each kind: the others differ in a constant. The last four compute their
# states and chunks as sasrec, dien, gcmc and jodie do.
LONGER = [
    name
    for name, entry in RECIPES.items()
    if (not entry.heuristic or name in ("popular-300", "next", "near-unseen"))
    and name not in ("gsasrec", "craft", "graphmixer", "tgn")
]
# `make test-fast` checks one model of each kind.
QUICK = "edge", "jodie", "gru4rec", "ctdne", "next"
CASES = [pytest.param(name, marks=() if name in QUICK else pytest.mark.slow) for name in RECIPES]
# 100 windows of 90 events: some have no event, and training takes a third of the time of the usual 300.
SHORT = {"history_length": 5, "walk_length": 5, "neighbours": 5, "windows": 100}
LOGS = {"short": make_log(features=2), "longer": make_log(events=2000, users=60, items=600, features=2)}


@cache
def trained(recipe, log_name):
    """A model after one pass over three quarters of a log, the state it ended in, and the log."""
    entry, log = RECIPES[recipe], LOGS[log_name]
    end = len(log) * 3 // 4
    torch.manual_seed(0)
    config = entry.recipe(recipe)
    for key in flatten(config):
        if (name := key.rpartition(".")[2]) in SHORT:
            config = set_key(config, key, SHORT[name])
    model = entry.model.create(config, log, end, 0)
    optimizers = [torch.optim.SGD([parameter], 0.1) for parameter in model.parameters()]
    state = model.start()
    model.train()
    for number, batch in enumerate(model.batches(log, model.training_windows(end))):
        loss = model.loss(batch, state, Step(0, 0, number))
        if loss.total.requires_grad:
            loss.total.backward()
            for optimizer in optimizers:
                optimizer.step()
                optimizer.zero_grad()
        model.after_step(batch, state)
    model.end_epoch(0)
    return model.eval(), state, log


@pytest.mark.parametrize("recipe", CASES)
@pytest.mark.parametrize("check", CONTRACT, ids=lambda check: check.__name__.removeprefix("assert_"))
def test_contract(recipe, check):
    model, _, log = trained(recipe, "short")
    check(model, log)


def ranked_online(recipe, log, events, rate=1.0, average=100):
    """Ranks with online learning, and the names of the parameters that changed."""
    model, _, trained_on = trained(recipe, "short")
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    config = TrainingConfig(device="cpu", precision="float32", average=1)
    optimizer, state = Adam(model.named_parameters(), 1e-2, 1e-2), state_after(model, trained_on, events.start)
    ranks = rank_online(OnlineLearner(model, optimizer, state, config, rate, average), log, events, window=3)
    changed = [name for name, tensor in model.state_dict().items() if not torch.equal(before[name], tensor)]
    model.load_state_dict(before)
    model.__dict__.pop("_seen", None)  # which entities of `gcmc` have an embedding
    model.eval()
    return ranks, changed


@pytest.mark.parametrize(
    "recipe", [case for case, entry in zip(CASES, RECIPES.values(), strict=True) if not entry.heuristic]
)
def test_online_learning_changes_parameters_and_leaks_nothing(recipe):
    log = LOGS["short"]
    events = range(len(log) * 3 // 4, len(log))
    expected, learned = ranked_online(recipe, log, events)
    assert learned
    again, _ = ranked_online(recipe, log, events)
    assert np.array_equal(expected, again)
    other_future = changed_after(log, events.start + 26, np.random.default_rng(0))  # after two replays
    changed, _ = ranked_online(recipe, other_future, events)
    assert np.array_equal(changed[:26], expected[:26])
    assert not np.array_equal(changed[26:], expected[26:])


def test_online_learning_replays_the_latest_windows(monkeypatch):
    events = range(len(LOGS["short"]) * 3 // 4, len(LOGS["short"]))

    def ranks():
        return {
            name: ranked_online(name, LOGS["short"], events, average=0)[0] for name in ("edge", "memory", "jodie")
        }

    replayed = ranks()
    monkeypatch.setattr(online, "REPLAYED_WINDOWS", 0)
    same = {name: np.array_equal(once, replayed[name]) for name, once in ranks().items()}
    assert same == {"edge": False, "memory": False, "jodie": True}  # jodie's loss depends on the state


def test_windows_of_online_learning_are_so_small_that_validation_has_several():
    assert [online_window(range(count)) for count in (0, 10, 150, 6000, 10**6)] == [1, 1, 7, 300, 300]


def test_online_learning_ranks_by_averaged_parameters():
    events = range(len(LOGS["short"]) * 3 // 4, len(LOGS["short"]))
    settings = {"last": (1.0, 0), "of one window": (1.0, 1), "of 1e12 windows": (1.0, 10**12), "frozen": (0.0, 0)}
    ranks = {name: ranked_online("edge", LOGS["short"], events, *setting)[0] for name, setting in settings.items()}
    assert np.array_equal(ranks["last"], ranks["of one window"])
    assert np.array_equal(ranks["frozen"], ranks["of 1e12 windows"])
    assert not np.array_equal(ranks["last"], ranks["frozen"])


@pytest.mark.parametrize(
    "recipe", [case for case, entry in zip(CASES, RECIPES.values(), strict=True) if not entry.heuristic]
)
def test_a_model_grows_with_its_log(recipe):
    model, _, log = trained(recipe, "short")
    shape = replace(model.shape, users=log.num_users + 3, items=log.num_items + 2)
    shape = replace(shape, item_categories=np.zeros((shape.items, 0), np.int32))
    tensors = model.grown_tensors(shape, 0)
    grown = RECIPES[recipe].model.restore(model.config, shape, tensors).eval()
    for name, rows in model.entity_rows().items():
        old = model.state_dict()[name].split(rows.blocks(model.shape))
        for before, after in zip(old, tensors[name].split(rows.blocks(shape)), strict=True):
            assert torch.equal(after[: len(before)], before)
    larger = replace(
        log, user_ids=IdIndex(np.arange(shape.users)), item_ids=IdIndex(np.arange(shape.items)),
        item_categories=shape.item_categories,
    )  # fmt: skip
    states = [state_after(one, of, len(log)) for one, of in ((model, log), (grown, larger))]
    users, times = torch.arange(log.num_users), torch.full((log.num_users,), float(log.time[-1]), dtype=torch.float64)
    with torch.no_grad():
        before, after = (
            one.score_query(users, times, None, state) for one, state in zip((model, grown), states, strict=True)
        )
    if not isinstance(model, CountMemory | Edge):  # whose probabilities are shared out among more items
        assert torch.allclose(before, after[:, : log.num_items], atol=1e-5)
    assert after.shape == (log.num_users, shape.items)


DECLARED = [
    (recipe, capability)
    for recipe, entry in RECIPES.items()
    for capability in CHECKS
    if entry.model.supports(capability, entry.recipe(recipe))
]


@pytest.mark.parametrize(
    ("recipe", "capability"),
    [pytest.param(*case, marks=() if case[0] in QUICK else pytest.mark.slow) for case in DECLARED],
    ids=[f"{recipe}-{capability.__name__}" for recipe, capability in DECLARED],
)
def test_capability(recipe, capability):
    make = trained.__wrapped__ if capability is capabilities.Growable else trained  # growing changes the model
    model, _, log = make(recipe, "short")
    assert capability in capabilities_of(model)
    CHECKS[capability](model, log)


def test_every_capability_has_a_check():
    declared = {
        value
        for value in vars(capabilities).values()
        if inspect.isclass(value) and inspect.isabstract(value) and value.__module__ == capabilities.__name__
    }
    assert declared == set(CHECKS)
    assert all(models_with(capability) for capability in CHECKS)
    assert {"jodie", "tgat", "gcmc", "ctdne"} <= set(models_with(capabilities.HasVectors))
    assert "jodie" not in models_with(capabilities.RemembersSeen)


def assert_chunks_change_nothing(model, state, log, protocol):
    events = range(len(log) * 3 // 4, len(log))
    metrics = [
        per_event(rank_events(model, log, events, state.clone(), protocol=protocol, max_events=size)).mean(0)
        for size in (1, 200, 5000)
    ]
    assert np.array_equal(metrics[0], metrics[1])
    assert np.array_equal(metrics[0], metrics[2])


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("recipe", CASES)
def test_the_size_of_a_chunk_changes_no_metric(recipe, protocol):
    assert_chunks_change_nothing(*trained(recipe, "short"), protocol)


@pytest.mark.slow
@pytest.mark.parametrize("protocol", ["full", "sampled-499"])  # with 600 items the third is nearly the first
@pytest.mark.parametrize("recipe", LONGER)
def test_the_size_of_a_chunk_changes_no_metric_on_a_longer_log(recipe, protocol):
    assert_chunks_change_nothing(*trained(recipe, "longer"), protocol)


@pytest.mark.slow
@pytest.mark.parametrize("recipe", LONGER)
def test_the_size_of_a_chunk_changes_no_bit_of_the_state(recipe):
    model, state, log = trained(recipe, "longer")
    ends = []
    for size in (1, 200, 5000):
        ends.append(state.clone())
        rank_events(model, log, range(len(log) * 3 // 4, len(log)), ends[-1], max_events=size)
    for other in ends[1:]:
        assert_same_state(ends[0], other)
