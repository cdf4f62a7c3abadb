"""Nothing is lost: whatever happens to a service, it goes on in the bits of one that nothing happened to."""

import json
import threading
import time

import numpy as np
import pytest
from serving.small_run import bits, make_events, make_run, open_live

from dynedge.errors import DataError
from dynedge.serving import engine as engines
from dynedge.serving.engine import BrokenError, BusyError, Engine
from dynedge.serving.journal import DiskFullError


@pytest.fixture
def run(runs_folder):
    return make_run(runs_folder, "edge")


@pytest.fixture
def start(run, tmp_path):
    """Engines on one data folder, closed at the end."""
    opened = []

    def begin(folder=run):
        opened.append(Engine(folder, tmp_path / "data"))
        return opened[-1]

    yield begin
    for engine in opened:
        stop(engine)


def stop(engine):
    """As if it were killed: no last snapshot."""
    engine.snapshot_at = 10**9
    if engine._writer.is_alive():
        engine.close()


def send(engine, events):
    answers = [engine.submit(events[at : at + 7]) for at in range(0, len(events), 7)]
    return [answer.result() for answer in answers]


def snapshot(engine):
    engine._save(*engine._copied())


def test_a_restart_goes_on_from_snapshot_and_tail(start, run, runs_folder):
    events = make_events(runs_folder, 400, repeated=0.05)
    once = list({event.event_id: event for event in events}.values())
    uninterrupted = open_live(run)
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
    assert bits(engine.live) == bits(uninterrupted)


def test_a_corrupt_snapshot_falls_back_to_the_one_before_and_without_any_the_journal_has_it_all(
    start, run, runs_folder, capsys
):
    events = make_events(runs_folder, 90)
    engine = start()
    for at in range(0, 90, 30):
        send(engine, events[at : at + 30])
        snapshot(engine)
    expected, folder = bits(engine.live), engine.snapshots.folder
    stop(engine)
    kept = sorted(folder.glob("*.safetensors"))
    assert [int(path.stem) for path in kept] == [60, 90]  # the first is gone
    for path, damaged in zip(reversed(kept), (lambda raw: raw[:-9], lambda raw: b""), strict=True):
        path.write_bytes(damaged(path.read_bytes()))
        again = start()
        assert bits(again.live) == expected
        assert "does not match its checksum" in capsys.readouterr().err
        stop(again)
    flipped = bytearray(json.dumps({"position": "x"}).encode())
    (folder / kept[0].name).with_suffix(".json").write_bytes(flipped)
    assert bits(start().live) == expected


def test_a_snapshot_of_another_run_is_not_taken(start, runs_folder):
    engine = start()
    send(engine, make_events(runs_folder, 30))
    snapshot(engine)
    stop(engine)
    other = make_run(runs_folder, "memory")
    again = start(other)
    taken = open_live(other)
    taken.observe([event for event in make_events(runs_folder, 30) if event.time > taken.coverage.last_time])
    assert bits(again.live) == bits(taken)


def test_snapshots_are_taken_in_the_background(start, runs_folder, monkeypatch):
    monkeypatch.setattr(engines, "EVERY_EVENTS", 50)
    engine = start()
    send(engine, make_events(runs_folder, 120))
    deadline = time.monotonic() + 30
    while not engine.snapshot_at and time.monotonic() < deadline:
        time.sleep(0.01)
    assert 50 <= engine.snapshot_at <= 120
    assert engine.snapshots.newest(engine._fingerprint)[0].position == engine.snapshot_at


def test_a_snapshot_that_cannot_be_written_stops_nothing(start, runs_folder, monkeypatch, capsys):
    def full(*_):
        raise OSError(28, "No space left on device")

    engine = start()
    monkeypatch.setattr(engine.snapshots, "write", full)
    snapshot(engine)
    assert "no snapshot could be written" in capsys.readouterr().err
    assert engine.snapshot_failed
    assert send(engine, make_events(runs_folder, 5))[0].accepted == 5


def test_a_full_disk_refuses_events_and_answers_questions(start, runs_folder, run):
    engine = start()
    events = make_events(runs_folder, 1000)
    send(engine, events[:20])
    pages = engine.journal._writing.execute("PRAGMA page_count").fetchone()[0]
    engine.journal._writing.execute(f"PRAGMA max_page_count = {pages}")
    before = bits(engine.live)
    with pytest.raises(DiskFullError):
        engine.submit(events[20:]).result()
    assert bits(engine.live) == before
    assert engine.live.recommend(np.array([0]), 3)[0].shape == (1, 3)
    engine.journal._writing.execute("PRAGMA max_page_count = 100000")
    assert engine.submit(events[20:]).result().accepted == 980


def test_too_much_waiting_is_refused_at_once(start, runs_folder, monkeypatch):
    monkeypatch.setattr(engines, "WAITING", 10)
    engine = start()
    events = make_events(runs_folder, 30)
    with engine.lock:  # nothing moves on
        first = engine.submit(events[:7])
        with pytest.raises(BusyError):
            engine.submit(events[7:14])
    assert first.result().accepted == 7
    assert engine.submit(events[7:]).result().accepted == 23  # one large request alone is no crowd


def test_what_is_cancelled_before_its_turn_leaves_no_trace(start, runs_folder):
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


def test_another_run_takes_the_old_one_s_place_while_events_come(start, runs_folder, tmp_path):
    """Its state is that of one that took in the journal from its beginning."""
    link = tmp_path / "served"
    link.symlink_to(make_run(runs_folder, "edge"))
    engine = start(link)
    events = make_events(runs_folder, 500)
    send(engine, events[:200])
    link.unlink()
    link.symlink_to(make_run(runs_folder, "memory"))
    swapping = threading.Thread(target=engine.swap)
    swapping.start()
    send(engine, events[200:400])
    swapping.join()
    send(engine, events[400:])
    assert engine.live.config.name == "memory"
    expected, joined = open_live(link), engine.journal.join(engine._fingerprint, 0.0)
    assert 200 <= joined[0] <= 400
    expected.observe([event for k, event in enumerate(events) if k >= joined[0] or event.time > joined[1]])
    assert bits(engine.live) == bits(expected)
    stop(engine)
    assert bits(start(link).live) == bits(expected)


def test_states_that_fell_behind_the_journal_take_no_more_until_they_are_opened_anew(
    start, run, runs_folder, monkeypatch
):
    def broken(events):
        raise RuntimeError("a bug")

    events = make_events(runs_folder, 20)
    engine = start()
    send(engine, events[:7])
    monkeypatch.setattr(engine.live, "observe", broken)
    with pytest.raises(RuntimeError):
        engine.submit(events[7:14]).result()
    with pytest.raises(BrokenError, match="a bug"):
        engine.submit(events[14:])
    stop(engine)
    again = start()
    expected = open_live(run)
    expected.observe(events[:14])
    assert bits(again.live) == bits(expected)


def test_one_service_a_folder(start, run, tmp_path):
    start()
    with pytest.raises(DataError, match="in use by another process"):
        Engine(run, tmp_path / "data")
