"""Every model of the registry, under every recipe, keeps the promises of tests/models/every_model.py."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from models.every_model import (
    assert_candidates_are_columns,
    assert_no_leak,
    assert_observe_is_score,
    assert_peek_is_score,
    assert_seen_is_what_users_had,
    make_log,
)

from dynedge.evaluation.metrics import per_event
from dynedge.evaluation.protocol import PROTOCOLS, rank_events
from dynedge.models.base import Step
from dynedge.models.registry import BUILT_IN as MODELS

RECIPES = [(name, recipe) for name, entry in MODELS.items() for recipe in (entry.recipes or {name: entry.config()})]

SHORT = 5


def trained(name, recipe, log):
    """A model after one pass over three quarters of the log, and the state it ended in."""
    entry = MODELS[name]
    end = len(log) * 3 // 4
    torch.manual_seed(0)
    config = entry.recipes.get(recipe) or entry.config()
    short = {name: SHORT for name in ("length", "neighbours") if hasattr(config, name)}
    config = replace(config, **short)  # of histories: short ones say as much here, sooner
    model = entry.model.create(config, log, end, 0)
    optimiser = [torch.optim.SGD([parameter], 0.1) for parameter in model.parameters()]
    state = model.start()
    model.train()
    for number, prepared in enumerate(model.batches(log, model.training_windows(end))):
        loss = model.loss(prepared, state, Step(0, 0, number))
        if loss.total.requires_grad:
            loss.total.backward()
            for one in optimiser:
                one.step()
                one.zero_grad()
        model.after_step(prepared, state)
    model.end_epoch(0)
    return model.eval(), state


@pytest.fixture(params=RECIPES, ids=[recipe for _, recipe in RECIPES], scope="module")
def known(request):
    log = make_log(features=2)
    return (*trained(*request.param, log), log)


@pytest.mark.slow
def test_nobody_sees_the_future(known):
    model, _, log = known
    assert_no_leak(model, log)


@pytest.mark.slow
def test_peek(known):
    model, _, log = known
    assert_peek_is_score(model, log)


@pytest.mark.slow
def test_observe(known):
    model, _, log = known
    assert_observe_is_score(model, log)


def test_seen(known):
    model, _, log = known
    assert_seen_is_what_users_had(model, log)


def test_vectors_are_of_every_user_and_item_and_move(known):
    model, state, log = known
    with torch.no_grad():
        before = model.vectors(model.start())
        after = model.vectors(state)
    if before is None:
        pytest.skip("this model has no vectors")
    assert (len(after[0]), len(after[1])) == (log.num_users, log.num_items)
    assert all(torch.isfinite(part).all() for part in after)
    if state:  # nothing moves in a model that remembers nothing
        assert not torch.equal(before[0], after[0])
        assert not torch.equal(before[1], after[1])


def test_candidates(known):
    model, _, log = known
    assert_candidates_are_columns(model, log)


@pytest.fixture(params=RECIPES, ids=[recipe for _, recipe in RECIPES], scope="module")
def longer(request):
    log = make_log(events=2000, users=60, items=600, features=2)
    return (*trained(*request.param, log), log)


def assert_chunks_change_nothing(model, state, log, protocol):
    events = range(len(log) * 3 // 4, len(log))
    found = [
        per_event(rank_events(model, log, events, state.clone(), protocol=protocol, max_events=chunk)).mean(0)
        for chunk in (1, 200, 5000)
    ]
    assert np.array_equal(found[0], found[1])
    assert np.array_equal(found[0], found[2])


@pytest.mark.slow
@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_the_size_of_a_chunk_changes_no_metric(known, protocol):
    assert_chunks_change_nothing(*known, protocol)


@pytest.mark.slow
@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_nor_does_it_on_a_longer_log(longer, protocol):
    assert_chunks_change_nothing(*longer, protocol)


@pytest.mark.slow
def test_a_walk_ends_in_the_bits_that_one_call_ends_in(longer):
    model, state, log = longer
    ends = []
    for chunk in (1, 200, 5000):
        ends.append(state.clone())
        rank_events(model, log, range(len(log) * 3 // 4, len(log)), ends[-1], max_events=chunk)
    for other in ends[1:]:
        for name, tensor in ends[0].items():
            if not name.endswith("_slots"):  # where a growing table has something follows from the room it has
                common = min(len(tensor), len(other[name]))
                assert torch.equal(tensor[:common], other[name][:common]), name
                assert not tensor[common:].any() and not other[name][common:].any(), name
