"""The journal: every accepted event is stored once, in the order of arrival."""

import sqlite3

import pytest

from dynedge.errors import DataError
from dynedge.inference.event_input import Event
from dynedge.serving.journal import DiskFullError, entries_after
from dynedge.serving.sqlite_journal import VERSION, SqliteJournal


@pytest.fixture
def path(tmp_path):
    return tmp_path / "journal.sqlite"


def all_of(journal, position=0):
    return [entry.event for entry in entries_after(journal, position)]


def test_events_are_stored_in_order_with_all_their_fields(path):
    events = [Event("ann", "a", 3.5, (1.0, -2.5), "x"), Event("bob", "b", 1.0), Event("ann", "ü/?", 2.0)]
    journal = SqliteJournal(path)
    assert journal.append(events).is_new == [True] * 3
    journal.close()
    again = SqliteJournal(path)
    assert all_of(again) == events
    assert all_of(again, 1) == events[1:]
    assert again.end == 3
    assert again.of_user("ann", 10) == [events[2], events[0]]
    assert again.of_user("ann", 1) == [events[2]]


def test_an_event_id_is_stored_once(path):
    journal = SqliteJournal(path)
    first, other, nameless = Event("u", "i", 1.0, (), "a"), Event("v", "j", 2.0, (), "a"), Event("u", "i", 1.0)
    assert journal.append([first, other, nameless, nameless]).is_new == [True, False, True, True]
    assert journal.append([other, Event("u", "i", 1.0, (), "b")]).is_new == [False, True]
    assert [event.event_id for event in all_of(journal)] == ["a", None, None, "b"]
    assert journal.append([other]).is_new == [False]


def test_many_events_in_one_transaction(path):
    journal = SqliteJournal(path)
    events = [Event("u", "i", float(k), (), f"{k % 4000}") for k in range(10_000)]
    assert sum(journal.append(events).is_new) == 4000
    assert [event.time for event in all_of(journal)] == list(range(4000))


def test_a_full_disk_rolls_a_commit_back_and_the_journal_continues_once_there_is_space(path):
    journal = SqliteJournal(path)
    assert journal.append([Event("u", "i", 1.0)]).is_new == [True]
    pages = journal._writer.execute("PRAGMA page_count").fetchone()[0]
    journal._writer.execute(f"PRAGMA max_page_count = {pages + 2}")
    many = [Event("u" * 200, "i" * 200, 1.0) for _ in range(200)]
    with pytest.raises(DiskFullError):
        journal.append(many)
    assert len(all_of(journal)) == journal.end == 1
    journal._writer.execute("PRAGMA max_page_count = 100000")
    assert all(journal.append(many).is_new)
    assert len(all_of(journal)) == journal.end == 201


def test_commits_are_synchronous(path):
    journal = SqliteJournal(path)
    assert journal._writer.execute("PRAGMA journal_mode").fetchone()[0] == "wal"
    assert journal._writer.execute("PRAGMA synchronous").fetchone()[0] == 2


def test_the_first_run_replays_everything_and_a_later_one_what_is_newer_than_its_training(path):
    journal = SqliteJournal(path)
    assert journal.register_run("first", 100.0) == (0, float("-inf"))
    journal.append([Event("u", "i", 1.0), Event("u", "i", 200.0)])
    assert journal.register_run("second", 150.0) == (2, 150.0)
    journal.append([Event("u", "i", 3.0)])
    assert journal.register_run("second", 150.0) == (2, 150.0)
    assert journal.register_run("first", 100.0) == (0, float("-inf"))


@pytest.mark.parametrize("version", [1, 7])
def test_a_file_that_is_not_a_journal_or_of_another_version_is_refused(path, version):
    path.write_bytes(b"something else" * 1000)
    with pytest.raises(DataError, match="cannot be used as a journal"):
        SqliteJournal(path)
    path.unlink()
    with sqlite3.connect(path) as other:
        other.execute(f"PRAGMA user_version = {version}")
    other.close()
    with pytest.raises(DataError, match=f"journal of version {version}, but this dynedge reads version {VERSION}"):
        SqliteJournal(path)
