"""Twenty kills at random times under load: acknowledged events are stored once, and no bit of the state differs."""

import pytest
from serving.kill_service import storm
from serving.small_run import make_events, make_run, state_bits

from dynedge.inference.session import Session
from dynedge.serving.engine import Engine
from dynedge.serving.journal import entries_after

pytestmark = pytest.mark.slow


def test_killed_services_lose_no_acknowledged_event(runs_folder, tmp_path):
    run, events = make_run(runs_folder, "edge"), make_events(runs_folder, 4000)
    outcome = storm(run, tmp_path / "data", events, kills=20)
    assert outcome["kills"] == 20
    assert outcome["sent_twice"] > 0
    assert outcome["acknowledged"] == {event.event_id for event in events}
    engine = Engine(run, tmp_path / "data")
    try:
        journaled = [entry.event for entry in entries_after(engine.journal)]
        assert sorted(journaled) == sorted(events)
        uninterrupted = Session.open(run)
        uninterrupted.observe(journaled)
        assert state_bits(engine.session) == state_bits(uninterrupted)
    finally:
        engine.close()
