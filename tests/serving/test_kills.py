"""Kills at random times under load: acknowledged events are stored once, and no bit of the state differs."""

import pytest
from serving.kill_service import replica_storm, storm
from serving.redis_server import RedisServer, require_redis
from serving.small_run import make_events, make_run, state_bits, state_hash

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


def test_replicas_apply_every_acknowledged_event_once_while_they_and_redis_are_killed(runs_folder, tmp_path):
    require_redis()
    from dynedge.serving.redis_journal import RedisJournal

    run, events = make_run(runs_folder, "edge"), make_events(runs_folder, 3000)
    (tmp_path / "redis").mkdir()
    with RedisServer(tmp_path / "redis") as redis:
        outcome = replica_storm(run, tmp_path / "data", redis, events, kills=6, restarts=2)
        assert redis.starts == 3
        assert outcome["sent_twice"] > 0
        assert outcome["acknowledged"] == {event.event_id for event in events}
        journal = RedisJournal(redis.url("events"))
        journaled = [entry.event for entry in entries_after(journal)]
        journal.close()
    assert sorted(journaled) == sorted(events)
    uninterrupted = Session.open(run)
    uninterrupted.observe(journaled)
    assert outcome["states"] == [state_hash(uninterrupted)] * 3
