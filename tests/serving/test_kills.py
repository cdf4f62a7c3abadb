"""Twenty kills at random moments under load: acknowledged events are there once, and no bit of a state differs."""

from serving.kill_service import storm
from serving.small_run import bits, make_events, make_run, open_live

from dynedge.serving.engine import Engine


def test_kills(runs_folder, tmp_path):
    run, events = make_run(runs_folder, "edge"), make_events(runs_folder, 4000)
    found = storm(run, tmp_path / "data", events, kills=20)
    assert found["kills"] == 20
    assert found["sent_twice"] > 0
    assert found["acknowledged"] == {event.event_id for event in events}
    engine = Engine(run, tmp_path / "data")
    try:
        kept = [event for piece in engine.journal.since(0) for event in piece]
        assert sorted(kept) == sorted(events)
        uninterrupted = open_live(run)
        uninterrupted.observe(kept)
        assert bits(engine.live) == bits(uninterrupted)
    finally:
        engine.close()
