"""Redis Streams: every entry is applied once, across restarts of either side."""

import shutil
import socket
import subprocess
import time

import pytest
from serving.small_run import make_events, make_run, state_bits

from dynedge.errors import UsageError
from dynedge.inference.session import Session
from dynedge.serving.engine import Engine

pytestmark = pytest.mark.slow

redis = pytest.importorskip("redis", reason="the extra `redis` is not installed")
if shutil.which("redis-server") is None:
    pytest.skip("redis-server is not installed; Debian has it in the package redis-server", allow_module_level=True)


def wait_for(condition, seconds=30):
    deadline = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    return value


@pytest.fixture
def server(tmp_path):
    """(url, client) of a new redis-server without persistence."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = ["redis-server", "--port", str(port), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"]
    process = subprocess.Popen([*command, "--dir", str(tmp_path)], stdout=subprocess.DEVNULL)
    client = redis.Redis(port=port, decode_responses=True)

    def answers():
        try:
            return client.ping()
        except redis.ConnectionError:
            return False

    wait_for(answers)
    yield f"redis://127.0.0.1:{port}/0?stream=plays&group=dynedge", client
    client.close()
    process.terminate()
    process.wait()


def add(client, events):
    for event in events:
        fields = {"user_id": event.user, "item_id": event.item, "timestamp": repr(event.time)}
        client.xadd("plays", fields | ({"event_id": event.event_id} if event.event_id else {}))


def test_a_stream_is_read_across_restarts(server, runs_folder, tmp_path, capsys):
    from dynedge.serving.redis_stream import RedisSource

    url, client = server
    run, events = make_run(runs_folder, "edge"), make_events(runs_folder, 200)
    events = [event if k % 2 else event._replace(event_id=None) for k, event in enumerate(events)]

    def read_until(position):
        engine = Engine(run, tmp_path / "data")
        source = RedisSource(engine, url)
        source.start()
        try:
            wait_for(lambda: engine.journal.end >= position)
        finally:
            source.stop()
            engine.snapshot_position = 10**9  # no last snapshot, as after a kill
            engine.close()
        return source, engine

    add(client, events[:100])
    read_until(100)
    # Delivered and not acknowledged, as after a kill between the commit and the acknowledgement.
    add(client, events[100:150])
    client.xreadgroup("dynedge", "dynedge", {"plays": ">"}, count=1000)
    client.xadd("plays", {"user_id": "u", "timestamp": "1"})
    add(client, events[150:])
    source, engine = read_until(200)
    assert source.rejected == 1
    assert "is not a valid event: item_id" in capsys.readouterr().err
    wait_for(lambda: client.xpending("plays", "dynedge")["pending"] == 0)
    # Redis loses the group: it is created again at the journaled position, and nothing is applied twice.
    client.xgroup_destroy("plays", "dynedge")
    add(client, [events[0]._replace(event_id="one more")])
    _, engine = read_until(201)
    assert engine.journal.end == 201
    expected = Session.open(run)
    expected.observe([*events, events[0]])
    assert state_bits(engine.session) == state_bits(expected)


def test_an_unreachable_source_is_one_sentence_without_the_password(runs_folder, tmp_path):
    from dynedge.serving.redis_stream import RedisSource

    engine = Engine(make_run(runs_folder, "edge"), tmp_path / "data")
    try:
        with pytest.raises(UsageError, match=r"redis://127.0.0.1:1/0 cannot be reached"):
            RedisSource(engine, "redis://:secret@127.0.0.1:1/0")
    finally:
        engine.close()
