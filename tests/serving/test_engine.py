"""The engine: after crashes, damage and reloads, the state has the bits of an uninterrupted one."""

import json
import os
import shutil
import threading
import time

import numpy as np
import pytest
import torch
from serving.small_run import make_events, make_run, make_run_with_features, state_bits, stop

from dynedge.errors import DataError
from dynedge.inference.event_input import MAX_FEATURE, Event
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


def pause_after_commit(engine, monkeypatch):
    """(set when the writer has committed events, to be set for it to go on and apply them)."""
    append, committed, go_on = engine.journal.append, threading.Event(), threading.Event()

    def append_and_wait(*arguments):
        is_new = append(*arguments)
        committed.set()
        go_on.wait(60)
        return is_new

    monkeypatch.setattr(engine.journal, "append", append_and_wait)
    return committed, go_on


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


def test_a_snapshot_that_is_a_pipe_is_not_read(start, runs_folder, capsys):
    engine = start()
    send(engine, make_events(runs_folder, 5))
    engine.close()
    for path in engine.snapshots.folder.glob("*.safetensors"):
        path.unlink()
        os.mkfifo(path)
    assert start().position == engine.position
    assert "is not a regular file" in capsys.readouterr().err


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


def test_a_snapshot_of_a_run_of_the_same_shape_is_ignored(start, run, runs_folder, tmp_path):
    session = Session.open(run)
    session.observe([Event(str(session.users[0]), str(session.items[0]), session.coverage.last_time)])
    session.save(tmp_path / "later")
    engine, events = start(), make_events(runs_folder, 30)
    send(engine, events)
    snapshot(engine)
    stop(engine)
    expected = Session.open(tmp_path / "later")
    expected.observe([event for event in events if event.time > expected.coverage.last_time])
    assert state_bits(start(tmp_path / "later").session) == state_bits(expected)


def test_events_that_arrive_at_the_end_of_a_reload_are_replayed(start, run, runs_folder, monkeypatch):
    engine, events = start(), make_events(runs_folder, 60)
    send(engine, events[:30])
    enable = Session.enable_quantized_search

    def arrive_and_enable(session, *arguments):  # after the replays that do not hold up events
        send(engine, events[30:])
        return enable(session, *arguments)

    monkeypatch.setattr(Session, "enable_quantized_search", arrive_and_enable)
    engine.reload()
    expected = Session.open(run)
    expected.observe(events)
    assert state_bits(engine.session) == state_bits(expected)


def test_a_snapshot_is_the_state_at_its_position_whatever_happens_while_it_is_written(start, runs_folder):
    engine, events = start(), make_events(runs_folder, 60)
    send(engine, events[:30])
    _, tensors = engine._copy_state()
    before = {name: tensor.clone() for name, tensor in tensors.items()}
    send(engine, events[30:])
    assert all(torch.equal(tensor, before[name]) for name, tensor in tensors.items())


def test_a_run_that_was_saved_with_later_events_is_another_run(run, tmp_path):
    copy = shutil.copytree(run, tmp_path / "run")
    assert engines._fingerprint(copy) == engines._fingerprint(run)
    session = Session.open(run)
    session.observe([Event(str(session.users[0]), str(session.items[0]), session.coverage.last_time + 1)])
    session.save(copy, force=True)
    assert engines._fingerprint(copy) != engines._fingerprint(run)


def test_snapshots_are_written_in_the_background(start, runs_folder, monkeypatch):
    monkeypatch.setattr(engines, "SNAPSHOT_EVENTS", 50)
    engine = start()
    send(engine, make_events(runs_folder, 120))
    deadline = time.monotonic() + 30
    while not engine.snapshot_position and time.monotonic() < deadline:
        time.sleep(0.01)
    assert 50 <= engine.snapshot_position <= 120
    (info, _), *_ = engine.snapshots.of_run(engine._registration.fingerprint)
    assert info.position == engine.snapshot_position


def test_a_failed_snapshot_does_not_stop_the_service(start, runs_folder, monkeypatch, capsys):
    def full(*_):
        raise OSError(28, "No space left on device")

    engine = start()
    monkeypatch.setattr(engine.snapshots, "write", full)
    snapshot(engine)
    assert "the snapshot could not be written" in capsys.readouterr().err
    assert engine.snapshot_error
    assert send(engine, make_events(runs_folder, 5))[0].accepted == 5


def test_a_state_that_cannot_be_copied_does_not_stop_the_writer(start, runs_folder, monkeypatch):
    def no_memory(self):
        raise MemoryError

    monkeypatch.setattr(engines, "SNAPSHOT_EVENTS", 1)
    engine, events = start(), make_events(runs_folder, 10)
    monkeypatch.setattr(Engine, "_copy_state", no_memory)
    for event in events:
        assert engine.submit([event]).result(20).accepted == 1
    assert engine.snapshot_error == "MemoryError"
    monkeypatch.undo()


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


def test_late_events_are_counted_for_their_own_request(start, runs_folder):
    engine = start()
    newest = engine.session.coverage.last_time
    user, item = str(engine.session.users[0]), str(engine.session.items[0])
    first, late, timely = (Event(user, item, newest + seconds) for seconds in (9, 1, 10))
    with engine.lock:
        receipts = [engine.submit([first])]
        while not engine._queue.empty():
            pass
        receipts += [engine.submit(events) for events in ([late, timely], [timely], [late, late])]  # one batch
    assert [receipt.result().late for receipt in receipts] == [0, 1, 0, 2]
    assert (engine.late, engine.accepted) == (3, 6)


def test_counts_have_the_events_of_a_position_when_it_is_seen(run, runs_folder, tmp_path):
    seen = []

    class Watched(Engine):
        def __setattr__(self, name, value):
            if name == "position":
                seen.append((value, self.applied, self.late > 0))
            super().__setattr__(name, value)

    engine = Watched(run, tmp_path / "data")
    engine.submit([*make_events(runs_folder, 2), Event("1", "1", 1.0)]).result()
    stop(engine)
    assert [one for one in seen if one[0] == 3] == [(3, 3, True)]


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


def test_an_event_that_would_make_a_state_infinite_is_left_out(start, runs_folder):
    """In any batch: the state is that of the other events, bit for bit, also after a restart and without snapshot."""
    run = make_run_with_features(runs_folder)
    good = [event._replace(features=(0.5, -1.0)) for event in make_events(runs_folder, 40)]
    huge = good[20]._replace(features=(MAX_FEATURE, MAX_FEATURE), event_id="huge")
    engine = start(run)
    assert engine.submit([*good[:20], huge, *good[20:]]).result().accepted == 41
    assert engine.session.not_applied == 1
    assert engine.session.coverage.events == Session.open(run).coverage.events + 40
    bits = state_bits(engine.session)  # asserts that all numbers are finite
    one_by_one = Session.open(run)
    for event in (*good[:20], huge, *good[20:]):
        one_by_one.observe([event])
    assert state_bits(one_by_one) == bits
    stop(engine)
    again = start(run)
    assert (state_bits(again.session), again.session.not_applied) == (bits, 1)


def test_a_journal_and_a_snapshot_with_infinite_numbers_are_served_again(start, runs_folder, capsys):
    run = make_run_with_features(runs_folder)
    events = [event._replace(features=(0.5, -1.0)) for event in make_events(runs_folder, 20)]
    engine = start(run)
    send(engine, events[:10])
    engine.journal._writer.execute(
        "INSERT INTO events VALUES (11, NULL, ?, ?, ?, ?)",
        (*events[0][:3], np.array([np.inf, 1.0], np.float32).tobytes()),
    )
    expected = state_bits(engine.session)
    engine.session.state["user"][0] = np.nan
    engine.journal.end = engine.position = 11
    snapshot(engine)
    stop(engine)
    again = start(run)
    assert "has a number that is not finite" in capsys.readouterr().err
    assert (state_bits(again.session), again.dead_lettered) == (expected, 1)


@pytest.mark.parametrize("lost", ["all", "some"])
def test_a_snapshot_with_more_events_than_the_journal_is_refused(start, run, runs_folder, tmp_path, lost):
    engine = start()
    send(engine, make_events(runs_folder, 30))
    snapshot(engine)
    if lost == "some":
        engine.journal._writer.execute("DELETE FROM events WHERE position > 12")
    stop(engine)
    if lost == "all":
        for path in (tmp_path / "data").glob("journal.sqlite*"):
            path.unlink()
    with pytest.raises(DataError, match=r"position 30, but .* ends at (0|12): the journal was lost"):
        Engine(run, tmp_path / "data")
    assert len(list((tmp_path / "data" / "snapshots").glob("*.safetensors"))) == 1
    (tmp_path / "data" / "snapshots").rename(tmp_path / "aside")
    assert start().journal.end == (0 if lost == "all" else 12)


def test_the_snapshot_position_is_that_of_the_newest_snapshot_after_a_restart_and_a_shutdown(start, runs_folder):
    events = make_events(runs_folder, 30)
    engine = start()
    send(engine, events[:10])
    snapshot(engine)
    send(engine, events[10:20])
    stop(engine)
    again = start()
    assert again.snapshot_position == 10
    again.close()  # nothing new has arrived, but the newest snapshot is older than the state
    assert [int(path.stem) for path in sorted(again.snapshots.folder.glob("*.json"))] == [10, 20]


def test_a_reload_during_a_commit_applies_every_event_once(start, runs_folder, monkeypatch):
    """The writer has committed events and not applied them yet when a reload opens the run and replaces it."""
    engine, events = start(), make_events(runs_folder, 60)
    send(engine, events[:40])
    committed, reloaded = pause_after_commit(engine, monkeypatch)
    receipt = engine.submit(events[40:])
    committed.wait(60)
    assert engine.reload() == 40
    assert engine.reload() == 40
    reloaded.set()
    assert receipt.result().accepted == 20
    expected = Session.open(engine.run)
    expected.observe(events)
    assert state_bits(engine.session) == state_bits(expected)


def test_a_run_that_joins_during_a_commit_has_the_same_state_after_a_restart(
    start, runs_folder, tmp_path, monkeypatch
):
    link = tmp_path / "served"
    link.symlink_to(make_run(runs_folder, "edge"))
    engine, events = start(link), make_events(runs_folder, 40, late=0.5)
    send(engine, events[:20])
    committed, reloaded = pause_after_commit(engine, monkeypatch)
    receipt = engine.submit(events[20:])
    committed.wait(60)
    link.unlink()
    link.symlink_to(make_run(runs_folder, "memory"))
    engine.reload()
    reloaded.set()
    receipt.result()
    bits = state_bits(engine.session)
    stop(engine)
    assert state_bits(start(link).session) == bits
