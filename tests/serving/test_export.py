"""Journals are exported to Parquet files, and `prepare` reads them."""

import json
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from serving.small_run import make_events, make_run

from dynedge import cli
from dynedge.cli.serve import service_folder
from dynedge.data.ingest.pipeline import prepare
from dynedge.data.ingest.schema import Schema
from dynedge.errors import DataError, UsageError
from dynedge.inference.event_input import Event
from dynedge.serving.journal_export import write_events
from dynedge.serving.sqlite_journal import JOURNAL, SqliteJournal

NAMES = "user_id", "item_id", "timestamp", "event_id"
PLAIN = {"features": [], "item_features": []}


@pytest.fixture
def journal(tmp_path):
    opened = SqliteJournal(tmp_path / JOURNAL)
    yield opened
    opened.close()


def test_an_exported_journal_is_prepared_together_with_another_file(runs_folder, tmp_path, capsys):
    run, served = make_run(runs_folder, "memory"), tmp_path / "data"
    served.mkdir()
    events, journal = make_events(runs_folder, 500, late=0.1), SqliteJournal(served / JOURNAL)
    journal.append(events)
    old = tmp_path / "old.csv"  # in milliseconds, with other column names
    old.write_text("who,what,when,genre\nann,tea,1704067200000,x\nbob,jam,1704067201500,y\n")
    out = tmp_path / "new.parquet"
    columns = ["--user-col", "who", "--item-col", "what", "--time-col", "when"]
    try:  # the journal is open, as in a running service
        assert cli.run(["export", str(run), "--data", str(served), "--out", str(out), *columns, "--json"]) == 0
    finally:
        journal.close()
    assert json.loads(capsys.readouterr().out) == {"out": str(out), "events": 500}
    log = prepare([old, out], tmp_path / "log", Schema("who", "what", "when"))
    assert len(log) == 502
    assert log.metadata["rejected"] == 0
    prepared = sorted(
        (log.time[k], str(log.user_ids[log.user[k]]), str(log.item_ids[log.item[k]])) for k in range(len(log))
    )
    sent = sorted((round(event.time * 1e6) / 1e6, event.user, event.item) for event in events)
    assert [one[1:] for one in prepared if one[1] not in ("ann", "bob")] == [one[1:] for one in sent]
    times = np.array([one[0] for one in prepared if one[1] not in ("ann", "bob")])
    np.testing.assert_allclose(times, [one[0] for one in sent], rtol=0, atol=1e-6)
    assert {1704067200.0, 1704067201.5} <= {one[0] for one in prepared}


def test_features_keep_their_names_and_event_ids_mark_duplicates(journal, tmp_path):
    journal.append([Event("1", "7", 1.5, (0.25, -3.0), "a"), Event("2", "8", 2.0, (), None)])
    out = tmp_path / "new.parquet"
    metadata = {"features": ["length", "price"], "item_features": ["genre"]}
    assert write_events(journal, out, NAMES, metadata) == 2
    table = pq.read_table(out).to_pydict()
    assert table["length"] == [0.25, 0.0]
    assert table["price"] == [-3.0, 0.0]
    assert table["genre"] == [None, None]
    assert table["event_id"] == ["a", "journal 2"]
    schema = Schema(features=("length", "price"), item_features=("genre",), event_id="event_id")
    log = prepare([out, out], tmp_path / "log", schema)  # duplicates are dropped
    assert len(log) == 2
    assert log.user_ids[0] == 1  # integer ids are integers again
    np.testing.assert_array_equal(log.features, [[0.25, -3.0], [0.0, 0.0]])


def test_batches_are_concatenated_and_an_empty_journal_is_an_empty_file(journal, tmp_path, monkeypatch):
    out = tmp_path / "new.parquet"
    assert write_events(journal, out, NAMES, PLAIN) == 0
    assert pq.read_table(out).num_rows == 0
    monkeypatch.setattr("dynedge.serving.journal_export.BATCH_ROWS", 7)
    journal.append([Event(str(k % 5), str(k), float(k)) for k in range(23)])
    assert write_events(journal, out, NAMES, PLAIN) == 23
    table = pq.read_table(out)
    assert table["item_id"].to_pylist() == [str(k) for k in range(23)]
    assert table["event_id"].to_pylist() == [f"journal {k}" for k in range(1, 24)]


def test_a_journal_of_another_run_is_refused_and_nothing_is_written(journal, tmp_path):
    journal.append([Event("1", "7", 1.5, (0.25, -3.0))])
    with pytest.raises(DataError, match="has events with 2 features, but the run's log has 0; it is"):
        write_events(journal, tmp_path / "new.parquet", NAMES, PLAIN)
    assert [path.name for path in tmp_path.glob("new*")] == []


def test_the_data_folder_is_next_to_the_run_also_from_inside_it(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert service_folder(Path(), None) == tmp_path.with_name(tmp_path.name + ".data")
    assert service_folder(Path("run"), Path("elsewhere")) == Path("elsewhere")


def test_two_columns_of_the_same_name_are_refused(journal, tmp_path):
    with pytest.raises(UsageError, match="two columns would have the same name"):
        write_events(
            journal,
            tmp_path / "new.parquet",
            ("user_id", "item_id", "price", "event_id"),
            {**PLAIN, "features": ["price"]},
        )
    assert not (tmp_path / "new.parquet").exists()


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["RUN", "--out", "new.csv"], 2, "should end in .parquet"),
        (["RUN", "--out", "new.parquet", "--data", "nowhere"], 3, "no service has run there"),
        (["nothing", "--out", "new.parquet"], 3, "is not a run folder"),
    ],
)
def test_usage_errors_are_one_sentence(runs_folder, tmp_path, capsys, monkeypatch, arguments, code, words):
    run = make_run(runs_folder, "memory")
    monkeypatch.chdir(tmp_path)
    assert cli.run(["export", *(str(run) if one == "RUN" else one for one in arguments)]) == code
    assert words in capsys.readouterr().err
    assert not (tmp_path / "new.parquet").exists()
