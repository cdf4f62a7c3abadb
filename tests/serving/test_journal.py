"""The journal: what was accepted is there, once, in the order of arrival."""

import sqlite3

import pytest

from dynedge.errors import DataError
from dynedge.inference.event_input import Event
from dynedge.serving.journal import DiskFullError, Journal


@pytest.fixture
def path(tmp_path):
    return tmp_path / "journal.sqlite"


def all_of(journal, position=0):
    return [event for piece in journal.since(position) for event in piece]


def test_events_are_kept_in_order_with_all_they_carry(path):
    events = [Event("ann", "a", 3.5, (1.0, -2.5), "x"), Event("bob", "b", 1.0), Event("ann", "ü/?", 2.0)]
    journal = Journal(path)
    assert journal.append(events) == [True] * 3
    journal.close()
    again = Journal(path)
    assert all_of(again) == events
    assert all_of(again, 1) == events[1:]
    assert again.end == 3
    assert again.of_user("ann", 10) == [events[2], events[0]]
    assert again.of_user("ann", 1) == [events[2]]


def test_an_event_id_has_one_effect(path):
    journal = Journal(path)
    first, other, nameless = Event("u", "i", 1.0, (), "a"), Event("v", "j", 2.0, (), "a"), Event("u", "i", 1.0)
    assert journal.append([first, other, nameless, nameless]) == [True, False, True, True]
    assert journal.append([other, Event("u", "i", 1.0, (), "b")]) == [False, True]
    assert [event.event_id for event in all_of(journal)] == ["a", None, None, "b"]
    assert journal.append([other]) == [False]


def test_many_at_once(path):
    journal = Journal(path)
    events = [Event("u", "i", float(k), (), f"{k % 4000}") for k in range(10_000)]
    assert sum(journal.append(events)) == 4000
    assert [event.time for event in all_of(journal)] == list(range(4000))


def test_a_full_disk_turns_all_of_a_commit_away_and_the_journal_goes_on_when_there_is_room(path):
    journal = Journal(path)
    assert journal.append([Event("u", "i", 1.0)]) == [True]
    pages = journal._writing.execute("PRAGMA page_count").fetchone()[0]
    journal._writing.execute(f"PRAGMA max_page_count = {pages + 2}")
    many = [Event("u" * 200, "i" * 200, 1.0) for _ in range(200)]
    with pytest.raises(DiskFullError):
        journal.append(many)
    assert len(all_of(journal)) == journal.end == 1
    journal._writing.execute("PRAGMA max_page_count = 100000")
    assert all(journal.append(many))
    assert len(all_of(journal)) == journal.end == 201


def test_a_commit_waits_for_the_disk(path):
    journal = Journal(path)
    assert journal._writing.execute("PRAGMA journal_mode").fetchone()[0] == "wal"
    assert journal._writing.execute("PRAGMA synchronous").fetchone()[0] == 2


def test_a_stream_s_position_is_kept_with_its_events(path):
    journal = Journal(path)
    assert journal.source("redis") is None
    journal.append([Event("u", "i", 1.0)], ("redis", "5-0"))
    journal.append([], ("redis", "6-0"))
    assert journal.source("redis") == "6-0"


def test_the_first_run_takes_in_all_and_a_later_one_what_is_newer_than_it(path):
    journal = Journal(path)
    assert journal.join("first", 100.0) == (0, float("-inf"))
    journal.append([Event("u", "i", 1.0), Event("u", "i", 200.0)])
    assert journal.join("second", 150.0) == (2, 150.0)
    journal.append([Event("u", "i", 3.0)])
    assert journal.join("second", 150.0) == (2, 150.0)
    assert journal.join("first", 100.0) == (0, float("-inf"))


def test_what_is_no_journal_is_refused(path):
    path.write_bytes(b"something else" * 1000)
    with pytest.raises(DataError, match="cannot be used as a journal"):
        Journal(path)
    path.unlink()
    with sqlite3.connect(path) as other:
        other.execute("PRAGMA user_version = 7")
    other.close()
    with pytest.raises(DataError, match="version 7"):
        Journal(path)
