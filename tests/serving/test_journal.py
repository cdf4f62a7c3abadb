"""Both journals: every accepted event is stored once, in the order of arrival."""

import sqlite3
import uuid
from contextlib import ExitStack, closing

import pytest

from dynedge.errors import DataError, UsageError
from dynedge.inference.event_input import Event
from dynedge.serving.journal import DiskFullError, entries_after
from dynedge.serving.sqlite_journal import VERSION, SqliteJournal


@pytest.fixture
def path(tmp_path):
    return tmp_path / "journal.sqlite"


@pytest.fixture
def open_sqlite(path):
    """Opens a journal in a file, as often as it is called."""
    with ExitStack() as opened:
        yield lambda: opened.enter_context(closing(SqliteJournal(path)))


@pytest.fixture(params=["sqlite", "redis"])
def open_journal(request):
    """Opens one journal, as often as it is called."""
    if request.param == "sqlite":
        yield request.getfixturevalue("open_sqlite")
        return
    from dynedge.serving.redis_journal import RedisJournal

    url = request.getfixturevalue("redis_server").url(uuid.uuid4().hex)
    with ExitStack() as opened:
        yield lambda: opened.enter_context(closing(RedisJournal(url)))


def all_of(journal, position=0):
    return [entry.event for entry in entries_after(journal, position)]


def test_events_are_stored_in_order_with_all_their_fields(open_journal):
    events = [Event("ann", "a", 3.5, (1.0, -2.5), "x"), Event("bob", "b", 0.1 + 0.2), Event("ann", "ü/?", 2.0)]
    journal = open_journal()
    assert (journal.end, journal.count, all_of(journal)) == (0, 0, [])
    appended = journal.append(events)
    assert appended.is_new == [True] * 3
    assert 0 < appended.positions[0] < appended.positions[1] < appended.positions[2]
    again = open_journal()
    assert all_of(again) == events
    assert all_of(again, appended.positions[0]) == events[1:]
    assert (again.end, again.count) == (appended.positions[-1], 3)
    assert [entry.event for entry in again.of_user("ann", 10)] == [events[2], events[0]]
    assert [entry.event for entry in again.of_user("ann", 1)] == [events[2]]


def test_an_event_id_is_stored_once(open_journal):
    journal, other_process = open_journal(), open_journal()
    first, other, nameless = Event("u", "i", 1.0, (), "a"), Event("v", "j", 2.0, (), "a"), Event("u", "i", 1.0)
    positions, is_new = journal.append([first, other, nameless, nameless])
    assert is_new == [True, False, True, True]
    assert positions[0] == positions[1] < positions[2] < positions[3]
    writer = other_process if journal.shared else journal
    again = writer.append([other, Event("u", "i", 1.0, (), "b")])
    assert again.is_new == [False, True]
    assert again.positions[0] == positions[0]
    assert [event.event_id for event in all_of(journal)] == ["a", None, None, "b"]
    assert journal.append([other]).is_new == [False]


def test_many_events_in_one_transaction(open_journal):
    journal = open_journal()
    events = [Event("u", "i", float(k), (), f"{k % 4500}") for k in range(10_000)]
    assert sum(journal.append(events).is_new) == 4500
    assert [event.time for event in all_of(journal)] == list(range(4500))
    assert not any(journal.append(events[:4500]).is_new)


def test_positions_have_a_text(open_journal):
    journal = open_journal()
    (position,), _ = journal.append([Event("u", "i", 1.0)])
    assert journal.parse(journal.text(position)) == position
    for wrong in ("", "x", "-1", "1-", "1.5", "٣", "9" * 50):
        with pytest.raises(UsageError, match="is not a position"):
            journal.parse(wrong)


def test_lag_is_the_number_of_entries_after_a_position(open_journal):
    journal = open_journal()
    first = journal.append([Event("u", "i", 1.0)] * 3).positions[-1]
    assert journal.wait(0, 0.01)
    assert (journal.lag(first), journal.count) == (0, 3)
    last = journal.append([Event("u", "i", 1.0)] * 4).positions[-1]
    assert journal.wait(first, 0.01)
    assert (journal.lag(first), journal.lag(last)) == (4, 0)
    assert not journal.wait(last, 0.01)


def test_a_position_that_the_journal_does_not_have_is_noticed(open_journal):
    journal = open_journal()
    journal.append([Event("u", "i", 1.0)])
    journal.check(0)
    journal.check(journal.end)
    with pytest.raises(DataError):
        journal.check(journal.end + 1)


def test_the_first_run_replays_everything_and_a_later_one_what_is_newer_than_its_training(open_journal):
    journal = open_journal()
    assert journal.register_run("first", 100.0) == (0, float("-inf"))
    journal.append([Event("u", "i", 1.0), Event("u", "i", 200.0)])
    end = journal.end
    assert journal.register_run("second", 150.0) == (end, 150.0)
    journal.append([Event("u", "i", 3.0)])
    assert open_journal().register_run("second", 150.0) == (end, 150.0)
    assert journal.register_run("first", 100.0) == (0, float("-inf"))


def test_a_full_disk_rolls_a_commit_back_and_the_journal_continues_once_there_is_space(open_sqlite):
    journal = open_sqlite()
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


def test_commits_are_synchronous(open_sqlite):
    journal = open_sqlite()
    assert journal._writer.execute("PRAGMA journal_mode").fetchone()[0] == "wal"
    assert journal._writer.execute("PRAGMA synchronous").fetchone()[0] == 2


@pytest.mark.parametrize("version", [1, 7])
def test_a_file_that_is_not_a_journal_or_of_another_version_is_refused(path, open_sqlite, version):
    path.write_bytes(b"something else" * 1000)
    with pytest.raises(DataError, match="cannot be used as a journal"):
        open_sqlite()
    path.unlink()
    with sqlite3.connect(path) as other:
        other.execute(f"PRAGMA user_version = {version}")
    other.close()
    with pytest.raises(DataError, match=f"journal of version {version}, but this dynedge reads version {VERSION}"):
        open_sqlite()


def test_damaged_pages_and_rows_that_are_no_events_give_a_sentence(path, open_sqlite):
    journal = open_sqlite()
    journal.append([Event(f"user {k}", "item", float(k), (1.0,)) for k in range(3000)])
    journal._writer.execute("UPDATE events SET features = x'00' WHERE position = 2")
    with pytest.raises(DataError, match=r"journal.* is damaged \(position 2 is no event\): restore it from a backup"):
        open_sqlite().read(0)
    journal._writer.execute("DELETE FROM events WHERE position = 2")
    with pytest.raises(DataError, match=r"journal.* is damaged \(position 2 is missing\)"):
        open_sqlite().read(0)
    journal._writer.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    journal.close()
    whole = bytearray(path.read_bytes())
    whole[4 * 4096 : 24 * 4096] = bytes(20 * 4096)
    path.write_bytes(whole)
    with pytest.raises(DataError, match="is damaged"):
        all_of(open_sqlite())
    journal = open_sqlite()
    journal._writer.execute("ALTER TABLE runs RENAME COLUMN fingerprint TO print")
    with pytest.raises(DataError, match="is damaged"):
        journal.register_run("abc", 0.0)


def test_a_damaged_name_in_the_schema_gives_a_sentence(path, open_sqlite):
    """SQLite quotes the name in its message, which is no text then."""
    journal = open_sqlite()
    journal._writer.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    journal.close()
    path.write_bytes(path.read_bytes().replace(b"event_id IS NOT", b"event\xf2id IS NOT"))
    with pytest.raises(DataError, match="cannot be used as a journal"):
        open_sqlite()
