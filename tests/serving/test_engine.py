"""The engine: after crashes, damage and reloads, the state has the bits of an uninterrupted one."""

import json
import threading
import time

import numpy as np
import pytest
from serving.small_run import make_events, make_run, state_bits

from dynedge.errors import DataError
from dynedge.inference.session import Session
from dynedge.serving import engine as engines
from dynedge.serving import snapshots
from dynedge.serving.engine import BusyError, Engine, EngineFailedError
from dynedge.serving.journal import DiskFullError


@pytest.fixture
def run(runs_folder):
    return make_run(runs_folder, "edge")


@pytest.fixture
def start(run, tmp_path):
    """Starts engines on one data folder; they are closed at the end."""
    opened = []

    def start_engine(folder=run):
        opened.append(Engine(folder, tmp_path / "data"))
        return opened[-1]

    yield start_engine
    for engine in opened:
        stop(engine)


def stop(engine):
    """Closes without a last snapshot, as after a kill."""
    engine.snapshot_position = 10**9
    if engine._writer.is_alive():
        engine.close()


def send(engine, events):
    receipts = [engine.submit(events[at : at + 7]) for at in range(0, len(events), 7)]
    return [receipt.result() for receipt in receipts]


def snapshot(engine):
    engine._write_snapshot(*engine._copy_state())


def test_a_restart_continues_from_the_snapshot_and_the_journal_after_it(start, run, runs_folder):
    events = make_events(runs_folder, 400, repeated=0.05)
    once = list({event.event_id: event for event in events}.values())
    uninterrupted = Session.open(run)
    uninterrupted.observe(once)
    for at in range(0, 400, 100):
        engine = start()
        receipts = send(engine, events[at : at + 100])
        assert sum(one.accepted + one.duplicates for one in receipts) == 100
        if at < 300:
            snapshot(engine)
        stop(engine)
    engine = start()
    assert engine.journal.end == len(once)
    assert state_bits(engine.session) == state_bits(uninterrupted)


def test_a_damaged_snapshot_falls_back_to_the_one_before_and_then_to_the_whole_journal(
    start, run, runs_folder, capsys
):
    events = make_events(runs_folder, 90)
    engine = start()
    for at in range(0, 90, 30):
        send(engine, events[at : at + 30])
        snapshot(engine)
    expected, folder = state_bits(engine.session), engine.snapshots.folder
    stop(engine)
    files = sorted(folder.glob("*.safetensors"))
    assert [int(path.stem) for path in files] == [60, 90]  # the first was removed
    for path, damaged in zip(reversed(files), (lambda raw: raw[:-9], lambda raw: b""), strict=True):
        path.write_bytes(damaged(path.read_bytes()))
        again = start()
        assert state_bits(again.session) == expected
        assert "does not match its checksum" in capsys.readouterr().err
        stop(again)
    flipped = bytearray(json.dumps({"position": "x"}).encode())
    (folder / files[0].name).with_suffix(".json").write_bytes(flipped)
    assert state_bits(start().session) == expected


def test_a_snapshot_of_another_version_is_refused_with_a_sentence(start, runs_folder, capsys):
    engine = start()
    send(engine, make_events(runs_folder, 30))
    snapshot(engine)
    expected = state_bits(engine.session)
    stop(engine)
    (path,) = engine.snapshots.folder.glob("*.json")
    info = json.loads(path.read_text())
    assert info.pop("version") == snapshots.VERSION
    path.write_text(json.dumps(info))
    assert state_bits(start().session) == expected
    assert (
        f"is a snapshot of version 1, but this dynedge reads version {snapshots.VERSION}" in capsys.readouterr().err
    )


def test_a_snapshot_of_another_run_is_ignored(start, runs_folder):
    """Of the journal, that run takes in what is newer than its training; its newest training event is not."""
    engine, other = start(), make_run(runs_folder, "memory")
    expected = Session.open(other)
    newest = expected.coverage.last_time
    events = make_events(runs_folder, 30)
    events[3:3] = [events[0]._replace(time=time, event_id=str(time)) for time in (newest - 1, newest, newest + 0.5)]
    send(engine, events)
    snapshot(engine)
    stop(engine)
    again = start(other)
    expected.observe([event for event in events if event.time > newest])
    assert state_bits(again.session) == state_bits(expected)


def test_snapshots_are_written_in_the_background(start, runs_folder, monkeypatch):
    monkeypatch.setattr(engines, "SNAPSHOT_EVENTS", 50)
    engine = start()
    send(engine, make_events(runs_folder, 120))
    deadline = time.monotonic() + 30
    while not engine.snapshot_position and time.monotonic() < deadline:
        time.sleep(0.01)
    assert 50 <= engine.snapshot_position <= 120
    assert engine.snapshots.newest(engine._registration.fingerprint)[0].position == engine.snapshot_position


def test_a_failed_snapshot_does_not_stop_the_service(start, runs_folder, monkeypatch, capsys):
    def full(*_):
        raise OSError(28, "No space left on device")

    engine = start()
    monkeypatch.setattr(engine.snapshots, "write", full)
    snapshot(engine)
    assert "the snapshot could not be written" in capsys.readouterr().err
    assert engine.snapshot_error
    assert send(engine, make_events(runs_folder, 5))[0].accepted == 5


def test_a_full_disk_refuses_events_and_still_answers_queries(start, runs_folder, run):
    engine = start()
    events = make_events(runs_folder, 1000)
    send(engine, events[:20])
    pages = engine.journal._writer.execute("PRAGMA page_count").fetchone()[0]
    engine.journal._writer.execute(f"PRAGMA max_page_count = {pages}")
    before = state_bits(engine.session)
    with pytest.raises(DiskFullError):
        engine.submit(events[20:]).result()
    assert state_bits(engine.session) == before
    assert engine.session.top_items(np.array([0]), 3)[0].shape == (1, 3)
    engine.journal._writer.execute("PRAGMA max_page_count = 100000")
    assert engine.submit(events[20:]).result().accepted == 980


def test_a_full_queue_refuses_requests_at_once(start, runs_folder, monkeypatch):
    monkeypatch.setattr(engines, "MAX_QUEUED_EVENTS", 10)
    engine = start()
    events = make_events(runs_folder, 30)
    with engine.lock:  # the writer has to wait
        first = engine.submit(events[:7])
        with pytest.raises(BusyError):
            engine.submit(events[7:14])
    assert first.result().accepted == 7
    assert engine.submit(events[7:]).result().accepted == 23  # one large request on an empty queue is accepted


def test_a_request_cancelled_in_the_queue_leaves_no_trace(start, runs_folder):
    engine = start()
    events = make_events(runs_folder, 3)
    with engine.lock:
        engine.submit(events[:1])
        while not engine._queue.empty():
            pass
        assert engine.submit(events[1:2]).cancel()
        last = engine.submit(events[2:])
    assert last.result().accepted == 1
    assert engine.journal.end == 2


def test_reload_replaces_the_run_while_events_arrive(start, runs_folder, tmp_path):
    """The new run's state is that of one that replayed the journal from its beginning."""
    link = tmp_path / "served"
    link.symlink_to(make_run(runs_folder, "edge"))
    engine = start(link)
    events = make_events(runs_folder, 500)
    send(engine, events[:200])
    link.unlink()
    link.symlink_to(make_run(runs_folder, "memory"))
    reloading = threading.Thread(target=engine.reload)
    reloading.start()
    send(engine, events[200:400])
    reloading.join()
    send(engine, events[400:])
    assert engine.session.config.name == "memory"
    expected = Session.open(link)
    first, trained_until = engine.journal.register_run(engine._registration.fingerprint, 0.0)
    assert 200 <= first <= 400
    expected.observe([event for k, event in enumerate(events) if k >= first or event.time > trained_until])
    assert state_bits(engine.session) == state_bits(expected)
    stop(engine)
    assert state_bits(start(link).session) == state_bits(expected)


def test_an_engine_whose_state_fell_behind_the_journal_refuses_events_until_restart(
    start, run, runs_folder, monkeypatch
):
    def broken(events):
        raise RuntimeError("a bug")

    events = make_events(runs_folder, 20)
    engine = start()
    send(engine, events[:7])
    monkeypatch.setattr(engine.session, "observe", broken)
    with pytest.raises(RuntimeError):
        engine.submit(events[7:14]).result()
    with pytest.raises(EngineFailedError, match="a bug"):
        engine.submit(events[14:])
    stop(engine)
    again = start()
    expected = Session.open(run)
    expected.observe(events[:14])
    assert state_bits(again.session) == state_bits(expected)


def test_a_data_folder_is_used_by_one_service_at_a_time(start, run, tmp_path):
    start()
    with pytest.raises(DataError, match="in use by another process"):
        Engine(run, tmp_path / "data")
