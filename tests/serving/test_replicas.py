"""Replicas that share a Redis Stream: the same state at the same position, whatever fails in between."""

import time
import uuid
from contextlib import contextmanager

import pytest
from serving.redis_server import RedisServer, require_redis
from serving.small_run import make_events, make_run, state_bits, stop
from starlette.testclient import TestClient

from dynedge.errors import DataError, UsageError
from dynedge.inference.event_input import Event
from dynedge.inference.session import Session
from dynedge.serving import engine as engines
from dynedge.serving import route_context
from dynedge.serving.app import make_app
from dynedge.serving.engine import Engine, EngineFailedError
from dynedge.serving.journal import JournalUnavailableError, entries_after

redis_journal = pytest.importorskip("dynedge.serving.redis_journal", exc_type=ImportError)
RedisJournal = redis_journal.RedisJournal


def wait_for(condition, seconds=30):
    deadline = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < deadline
        time.sleep(0.005)
    return value


@pytest.fixture
def run(runs_folder):
    return make_run(runs_folder, "edge")


@pytest.fixture
def url(redis_server):
    return redis_server.url(uuid.uuid4().hex)


@pytest.fixture
def start(run, tmp_path, url):
    """Starts replicas that share a stream and a folder; they are closed at the end."""
    opened = []

    def start_replica(folder=run, stream=url, **options):
        opened.append(Engine(folder, tmp_path / "data", RedisJournal(stream, **options)))
        return opened[-1]

    yield start_replica
    for engine in opened:
        engine._stopping.set()  # all at once
    for engine in opened:
        stop(engine)


def send(engine, events):
    return [engine.submit(events[at : at + 7]).result() for at in range(0, len(events), 7)]


def same_state(*replicas):
    wait_for(lambda: len({replica.position for replica in replicas}) == 1)
    first = state_bits(replicas[0].session)
    return all(state_bits(replica.session) == first for replica in replicas[1:])


def test_replicas_have_the_state_of_one_session_that_applied_the_stream(start, run, runs_folder):
    one, other = start(), start()
    events = make_events(runs_folder, 210, repeated=0.1)
    receipts = [receipt for at in range(0, 210, 70) for receipt in send(one, events[at : at + 35])]
    receipts += send(other, events[35:70]) + send(other, events[105:140]) + send(other, events[175:])
    once = {event.event_id for event in events}
    assert sum(receipt.accepted for receipt in receipts) == len(once)
    assert sum(receipt.duplicates for receipt in receipts) == 210 - len(once)
    assert same_state(one, other)
    assert sum(receipt.late for receipt in receipts) == one.late == other.late > 0
    late_comer = start()
    expected = Session.open(run)
    expected.observe([entry.event for entry in entries_after(one.journal)])
    assert state_bits(late_comer.session) == state_bits(one.session) == state_bits(expected)
    assert (one.applied, other.applied, one.lag, other.lag) == (len(once), len(once), 0, 0)


def test_a_new_replica_starts_from_the_newest_snapshot_of_the_others(start, runs_folder, monkeypatch):
    one, other = start(), start()
    events = make_events(runs_folder, 60)
    send(one, events[:40])
    one._write_snapshot(*one._copy_state())
    wait_for(lambda: other.position == one.position)
    monkeypatch.setattr(engines, "SNAPSHOT_SECONDS", 60)
    assert other._other_replica_has_one()
    assert other.snapshot_position == one.snapshot_position == one.position
    send(other, events[40:])
    wait_for(lambda: other.position == one.position)
    applied = []
    monkeypatch.setattr(Session, "observe", _counting(Session.observe, applied))
    third = start()
    assert sum(applied) == 20
    assert same_state(one, other, third)


def _counting(observe, counts):
    def counted(self, events):
        counts.append(len(events))
        return observe(self, events)

    return counted


def test_entries_of_other_programs_are_validated_and_invalid_ones_become_dead_letters(start, redis_server, capsys):
    one, other = start(), start()
    stream, client = one.journal.stream, redis_server.client
    user, item = str(one.session.users[0]), str(one.session.items[0])
    now = int(time.time())
    good = {"user_id": user, "item_id": item, "timestamp": now - 5, "event_id": "a"}
    client.xadd(stream, good)
    client.xadd(stream, good)  # sent again
    invalid = [
        {"user_id": user, "timestamp": now},
        {"event": "[1, 2]"},
        {b"user_id": b"\xff\xfe", "item_id": item, "timestamp": now},
        {"user_id": user, "item_id": item, "timestamp": now + 90_000},
    ]
    for fields in invalid:
        client.xadd(stream, fields)
    wait_for(lambda: one.dead_lettered == len(invalid))  # an event id of another program counts once it is applied
    receipt = one.submit([Event(user, item, now - 4.0, (), "a"), Event(user, item, now - 3.0, (), "b")]).result()
    assert (receipt.accepted, receipt.duplicates) == (1, 1)
    assert same_state(one, other)
    assert one.session.coverage.events - Session.open(one.run).coverage.events == 2
    assert (one.dead_lettered, other.dead_lettered, one.applied) == (4, 4, 2)
    ((_, dead),) = client.xrange(f"{{{stream}}}:dead", count=1)
    assert dead["reason"] == "item_id: Field required."
    assert dead["user_id"] == user
    assert client.xlen(f"{{{stream}}}:dead") == 4
    assert "is not applied" in capsys.readouterr().err


def test_redis_away_refuses_events_answers_queries_and_loses_nothing(start, run, runs_folder, tmp_path, monkeypatch):
    require_redis()
    monkeypatch.setattr(engines, "FOLLOW_SECONDS", 0.05)
    (tmp_path / "redis").mkdir()
    events = make_events(runs_folder, 60)
    with RedisServer(tmp_path / "redis") as server:
        one, other = start(stream=server.url("events")), start(stream=server.url("events"))
        send(one, events[:20])
        wait_for(lambda: other.position == one.position)
        server.kill()
        wait_for(lambda: one.journal_error and other.journal_error)
        with pytest.raises(JournalUnavailableError, match=r"the journal redis://127.0.0.1:\d+/events cannot be"):
            one.submit(events[20:40])
        assert len(one.session.popular(3)[0]) == 3
        server.start()
        wait_for(lambda: not (one.journal_error or other.journal_error))
        send(other, events[10:40])
        send(one, events[40:])
        assert same_state(one, other)
        expected = Session.open(run)
        expected.observe(events)
        assert state_bits(one.session) == state_bits(expected)
        # A stream that ends before the state, as after Redis lost its data, is not followed silently.
        server.client.delete("events")
        one.journal_error = "lost"
        wait_for(lambda: "does not have the entry" in one.failure)
        for engine in (one, other):
            stop(engine)


def test_reloading_replicas_one_after_another_drops_no_request(start, runs_folder, tmp_path):
    link = tmp_path / "served"
    link.symlink_to(make_run(runs_folder, "edge"))
    one, other = start(link), start(link)
    events = make_events(runs_folder, 210)
    send(one, events[:70])
    link.unlink()
    link.symlink_to(make_run(runs_folder, "memory"))
    one.reload()
    receipts = send(one, events[70:105]) + send(other, events[105:140])
    other.reload()
    receipts += send(other, events[140:])
    assert sum(receipt.accepted for receipt in receipts) == 140
    assert one.session.config.name == other.session.config.name == "memory"
    assert same_state(one, other)
    assert one._registration == other._registration


def test_trimming_keeps_what_the_oldest_snapshot_needs(start, runs_folder, tmp_path):
    one, events = start(keep_seconds=0.0), make_events(runs_folder, 60)
    for at in (0, 20, 40):
        send(one, events[at : at + 20])
        one._write_snapshot(*one._copy_state())
    oldest = one.snapshots.oldest_position
    kept = [entry.position for entry in entries_after(one.journal)]
    assert kept[0] == oldest  # of the last two snapshots
    assert len(kept) == 21
    assert one.journal.append(events[39:]).is_new == [False] * 21
    assert one.journal.append(events[38:39]).is_new == [True]  # its event id is forgotten with it
    assert one.journal.trimmed[0] < oldest
    again = start()
    assert same_state(one, again)
    with pytest.raises(DataError, match=r"was trimmed up to .* has no snapshot of"):
        Engine(one.run, tmp_path / "elsewhere", RedisJournal(one.journal.name))


@contextmanager
def serving(engine):
    app = make_app(engine)
    with TestClient(app, base_url="http://127.0.0.1", raise_server_exceptions=False) as client:
        yield client


def test_answers_carry_their_position_and_wait_for_a_requested_one(start, runs_folder, monkeypatch):
    one, other = start(), start()
    (event,) = make_events(runs_folder, 1, new=0, late=0)
    body = {"user_id": event.user, "item_id": event.item, "timestamp": event.time, "event_id": "x"}
    with serving(one) as client, serving(other) as reader:
        before = reader.get(f"/users/{event.user}/recommendations").json()["position"]
        assert before == "0-0"
        position = client.post("/events", json={"events": [body]}).json()["position"]
        paths = f"/users/{event.user}/recommendations", f"/items/{event.item}/similar", f"/items/{event.item}"
        for path in paths:
            assert reader.get(path, params={"min_position": position}).json()["position"] == position
        asked = reader.post(f"/recommendations?min_position={position}", json={"user_ids": [event.user]})
        assert asked.json()["position"] == position
        asked = reader.post(f"/users/{event.user}/what-if?min_position={position}", json={"item_id": event.item})
        assert asked.json()["position"] == position
        monkeypatch.setattr(route_context, "REACH_SECONDS", 0.01)
        milliseconds, _, sequence = position.partition("-")
        behind = reader.get(paths[0], params={"min_position": f"{int(milliseconds) + 10**6}-{sequence}"})
        assert (behind.status_code, behind.headers["retry-after"]) == (503, "1")
        assert f"this replica is at {position}" in behind.json()["detail"]
        assert reader.get(paths[0], params={"min_position": "soon"}).status_code == 422
        metrics = reader.get("/metrics").text
        for line in ("events_applied_total 1.0", "lag_events 0.0", "applied_position 1.0", "dead_lettered_total 0.0"):
            assert line in metrics


def test_settings_that_lose_events_are_reported(redis_server):
    journal = RedisJournal(redis_server.url("settings"))
    assert "on its disk (appendfsync always)" in journal.durability()
    client = redis_server.client
    for name, value, words in (
        ("appendfsync", "everysec", "last second of acknowledged events"),
        ("maxmemory-policy", "allkeys-lru", "set it to noeviction"),
    ):
        before = client.config_get(name)[name]
        client.config_set(name, value)
        try:
            assert words in journal.durability()
        finally:
            client.config_set(name, before)


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("redis://:secret@127.0.0.1:1/events", r"redis://127.0.0.1:1/events cannot be used: .*refused"),
        ("redis://127.0.0.1:1", "should be redis://HOST:PORT/STREAM"),
        ("http://127.0.0.1:1/events", "should be redis://HOST:PORT/STREAM"),
        ("redis://127.0.0.1:1/events?group=x", "should be redis://HOST:PORT/STREAM"),
        ("redis://127.0.0.1:x/events", "cannot be used"),
    ],
)
def test_a_journal_that_cannot_be_used_is_one_sentence_without_the_password(url, words):
    with pytest.raises(UsageError, match=words) as error:
        RedisJournal(url)
    assert "secret" not in str(error.value)


def test_a_redis_without_memory_is_a_full_disk(start, redis_server, runs_folder):
    engine, events = start(), make_events(runs_folder, 2)
    redis_server.client.config_set("maxmemory", "1")
    try:
        with pytest.raises(redis_journal.DiskFullError, match="no space left"):
            engine.submit(events[:1]).result()
    finally:
        redis_server.client.config_set("maxmemory", "0")
    assert engine.submit(events).result().accepted == 2


NOW = 1_709_300_000
FROM_OUTSIDE = {"user_id": "u", "item_id": "i", "timestamp": str(NOW)}
POISON = {
    "deep JSON": {"event": "[" * 100_000},
    "a time of 401 digits": {"event": f'["u", "i", {"9" * 401}, [], null]'},
    "a feature of 401 digits": {"event": f'["u", "i", {NOW}, [{"9" * 401}], null]'},
    "not a number": {"event": '["u", "i", NaN, [], null]'},
    "a late time": {"event": '["u", "i", 1e300, [], null]'},
    "an early time": {"event": '["u", "i", -1e300, [], null]'},
    "a zero byte": {"event": f'["a\\u0000b", "i", {NOW}, [], null]'},
    "no id": {"event": f'["", "i", {NOW}, [], null]'},
    "an id that is no text": {"event": f'[7, "i", {NOW}, [], null]'},
    "a lone surrogate": {"event": f'["\\ud800", "i", {NOW}, [], null]'},
    "features that are no list": {"event": f'["u", "i", {NOW}, "12", null]'},
    "deep features": FROM_OUTSIDE | {"features": "[" * 100_000},
    "infinite features": FROM_OUTSIDE | {"features": "[1e39]"},
    "many fields": {f"field {k}": "x" for k in range(5000)},
}


def test_no_entry_stops_a_replica_now_or_at_its_next_start(start, redis_server, runs_folder):
    engine, (event,) = start(), make_events(runs_folder, 1)
    for fields in POISON.values():
        redis_server.client.xadd(engine.journal.stream, fields)
    assert engine.submit([event]).result().accepted == 1
    assert engine.applied == 1
    assert engine.dead_lettered == len(POISON)
    assert not engine.failure
    stop(engine)
    again = start()
    assert again.session.coverage.events == engine.session.coverage.events
    assert redis_server.client.xlen(f"{{{again.journal.stream}}}:dead") == len(POISON)


def test_an_invalid_entry_does_not_take_its_event_id(start, redis_server):
    one, other = start(), start()
    for timestamp in ("yesterday", NOW, NOW + 1):  # corrected, then sent again
        redis_server.client.xadd(one.journal.stream, FROM_OUTSIDE | {"timestamp": timestamp, "event_id": "a"})
    wait_for(lambda: one.applied + one.dead_lettered == other.applied + other.dead_lettered == 2)
    assert same_state(one, other)
    assert one.session.coverage.last_time == NOW


@pytest.mark.parametrize("key", ["ids", "runs", "trimmed"])
def test_keys_that_others_have_changed_give_a_sentence(start, redis_server, runs_folder, key):
    engine = start()
    engine.submit(make_events(runs_folder, 1)).result()
    name, client = f"{{{engine.journal.stream}}}:{key}", redis_server.client
    client.hset(name, mapping=dict.fromkeys([*client.hkeys(name), "position", "time", "a"], "x"))
    client.xadd(engine.journal.stream, FROM_OUTSIDE | {"event_id": "a"})
    stop(engine)
    with pytest.raises(DataError, match="has keys that dynedge did not write"):
        start()


def test_a_stream_that_was_deleted_is_noticed(start, redis_server, runs_folder):
    engine, events = start(), make_events(runs_folder, 3)
    engine.submit(events[:2]).result()
    redis_server.client.delete(engine.journal.stream)
    wait_for(lambda: engine.failure)
    assert "Redis lost events" in engine.failure
    with pytest.raises(EngineFailedError):
        engine.submit(events[2:])
