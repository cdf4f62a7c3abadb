"""Training the gating and rescaling networks: the examples, their cache, the loss."""

import pytest
import torch
from models.count_memory.reference_counts import make_memory
from models.every_model import make_log

from dynedge.data.windows import Window
from dynedge.models.base import Step
from dynedge.models.count_memory import model as memory
from dynedge.models.count_memory.config import StandaloneMemoryConfig


def batches(model, log, end, first=0):
    return model.batches(log, model.training_windows(end), first)


@pytest.mark.parametrize(
    "config", [{}, {"gating_hidden": 0}, {"rescaling_hidden": 0}, {"contexts": ("last",)}, {"contexts": ()}]
)
def test_the_loss_is_the_cross_entropy_of_the_scores(config):
    """With so few items that all are candidates. In float32 the examples are stored as bfloat16."""
    log = make_log(events=150)
    for dtype, tolerance in ((torch.float64, 1e-4), (torch.float32, 2e-3)):
        model = make_memory(log, training_examples=10**6, windows=1, **config).to(dtype)
        state, (examples,) = model.start(), model.batches(log, model.training_windows(len(log)))
        scores = model.score(examples.window, None, model.start())
        expected = torch.nn.functional.cross_entropy(scores, torch.from_numpy(log.item).long())
        given = model.loss(examples, state, Step(0, 0, 0))
        assert given.log["loss"] == pytest.approx(float(expected), rel=tolerance)
    model.after_step(examples, state)
    end_state = model.start()
    model.score(examples.window, None, end_state)
    assert all(torch.equal(state[name], end_state[name]) for name in state)


def test_examples_are_cached_and_a_resumed_run_collects_the_same():
    log = make_log(events=150)
    model = make_memory(log, training_examples=50, windows=5)
    first, again = list(batches(model, log, 120)), list(batches(model, log, 120))
    assert all(one is other for one, other in zip(first, again, strict=True))
    resumed = list(batches(make_memory(log, training_examples=50, windows=5), log, 120, 3))
    for one, other in zip(first[3:], resumed, strict=True):
        assert one.window.events == other.window.events
        assert all(torch.equal(a, b) for a, b in zip(one.examples, other.examples, strict=True))
    assert [examples.end_state is not None for examples in resumed] == [False, True]
    assert all(torch.equal(first[-1].end_state[name], resumed[-1].end_state[name]) for name in first[-1].end_state)
    shorter = list(model.batches(log, model.training_windows(100)))
    assert shorter[-1].window.events.stop == 100


def test_events_before_the_counted_ones_count_for_users_and_popularity_only():
    log = make_log(events=150)
    whole, recent, longer = (
        list(batches(make_memory(log, training_examples=20, windows=5, counted_events=counted), log, 150))
        for counted in (150, 40, 10**9)
    )
    assert [len(window.examples.query_features) for window in recent] == [0, 0, 0, 10, 10]
    for one, other in zip(whole, longer, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(one.examples, other.examples, strict=True))
    end, full = recent[-1].end_state, whole[-1].end_state
    assert end is not None
    assert full is not None
    counted_always = ("user.", "popularity", "event_weight", "recent_items", "last_time", "clock")
    for name in full:
        assert torch.equal(end[name], full[name]) == name.startswith(counted_always), name
    tail = make_memory(log)
    state = tail.start()
    tail.observe(Window(log, range(110, 150)), state)
    assert end["near.used"][1] >= state["near.used"][1]  # these, and their neighbours among older events


def test_both_networks_learn():
    log = make_log(events=2000, users=40, items=60)
    model = memory.CountMemory.create(StandaloneMemoryConfig(windows=5), log, len(log), 0)
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    losses = []
    for epoch in range(7):
        state, total = model.start(), 0.0
        for number, examples in enumerate(model.batches(log, model.training_windows(len(log)))):
            loss = model.loss(examples, state, Step(0, epoch, number))
            optimizer.zero_grad()
            loss.total.backward()
            assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())
            if epoch:
                optimizer.step()
            total += loss.log["loss"]
        losses.append(total)
    assert losses[-1] < 0.9 * losses[0]
