"""The compiled step of one event has the bits of the window path."""

import numpy as np
import pytest
import torch
from serving.small_run import make_events, make_run, make_run_with_features, state_bits

from dynedge.data.windows import Window
from dynedge.inference.session import Session
from dynedge.models.base import NonFiniteStateError
from dynedge.models.edge.event_step import EventStep


def recurrence_of(session):
    return getattr(session.model, "recurrence", session.model)


def observe_one_by_one(session, events):
    for event in events:
        session.observe([event])
    return state_bits(session)


@pytest.mark.parametrize("make", [lambda folder: make_run(folder, "edge"), make_run_with_features])
def test_single_events_have_the_bits_of_windows(runs_folder, monkeypatch, make):
    """With known and new entities, late events, event features, and after a parameter has changed."""
    run, events = make(runs_folder), make_events(runs_folder, 120)
    stepped, by_window, at_once = (Session.open(run) for _ in range(3))
    width = stepped.run_log.features.shape[1]
    rng = np.random.default_rng(0)
    events = [event._replace(features=tuple(rng.normal(size=width))) for event in events]
    sessions = stepped, by_window, at_once
    assert EventStep.supports(recurrence_of(stepped))
    for part in (events[:70], events[70:]):
        bits = [observe_one_by_one(stepped, part)]
        with monkeypatch.context() as patch:
            patch.setattr(EventStep, "supports", lambda model: False)
            bits.append(observe_one_by_one(by_window, part))
        at_once.observe(part)
        bits.append(state_bits(at_once))
        assert bits[0] == bits[1] == bits[2]
        for session in sessions:
            with torch.no_grad():
                recurrence_of(session).gru.own.mul_(0.9)
                recurrence_of(session).xi.add_(0.1)
    assert "_event_step" in vars(recurrence_of(stepped))
    assert "_event_step" not in vars(recurrence_of(by_window))


def test_an_event_that_would_make_a_state_infinite_changes_nothing(runs_folder):
    session = Session.open(make_run(runs_folder, "edge"))
    events = make_events(runs_folder, 2, new=0)
    session.observe(events[:1])
    before, recurrence = state_bits(session), recurrence_of(session)
    with torch.no_grad():
        recurrence.gru.bias.fill_(torch.nan)
    log = session._log(*(np.array([0], np.int32) for _ in range(2)), np.array([events[1].time]), events[1:])
    with pytest.raises(NonFiniteStateError):
        session.model.observe(Window(log, range(1)), session.state)
    assert state_bits(session) == before
