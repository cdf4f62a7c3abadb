"""The log on disk: a round trip, error messages for damage, and atomic writing."""

import errno
import json
import os
import subprocess
import sys

import numpy as np
import pytest
from data.small_log import write
from hypothesis import given
from hypothesis import strategies as st

from dynedge.data import checksums
from dynedge.data.id_index import IdIndex
from dynedge.data.log import METADATA, EventLog, npy_header, read_log
from dynedge.data.log_writer import ColumnWriter, LogWriter
from dynedge.errors import DataError


def test_a_written_log_is_read_back(tmp_path):
    log = read_log(write(tmp_path / "log", ["ann", "bö", ""]))
    assert log.user.tolist() == [0, 1, 2]
    assert log.time.tolist() == [0, 0.5, 1]
    assert log.user_ids.take(range(3)) == ["ann", "bö", ""]
    assert log.item_ids[0] == -7
    assert (len(log), log.num_users, log.num_items) == (3, 3, 1)
    assert np.array_equal(np.load(tmp_path / "log" / "time.npy"), log.time), "columns are plain .npy files"
    log.verify()


@given(st.lists(st.one_of(st.integers(-(2**63), 2**63 - 1), st.text()), unique_by=str))
def test_external_ids_are_returned_and_found(external):
    ids = IdIndex.from_ids(external)
    expected = external if all(isinstance(value, int) for value in external) else [str(value) for value in external]
    assert ids.take(range(len(ids))) == expected
    assert [ids.find(value) for value in external] == list(range(len(external)))
    assert ids.find("no such id") == -1


def test_a_row_out_of_range_is_an_index_error():
    ids = IdIndex.from_ids([5, 6])
    assert ids[-1] == 6
    for beyond in (2, -3):
        with pytest.raises(IndexError):
            ids[beyond]


@pytest.mark.parametrize("column", ["user", "item", "time", "user_ids", "user_ids_offsets", "item_ids"])
def test_a_damaged_column_is_an_error_that_names_it(tmp_path, column):
    path = write(tmp_path / "log") / f"{column}.npy"
    good = path.read_bytes()
    for damaged in (good[:-1], b"\x93NUMPX" + good[6:], b""):
        path.write_bytes(damaged)
        with pytest.raises(DataError, match=f"column '{column}'"):
            read_log(tmp_path / "log")
    path.unlink()
    with pytest.raises(DataError, match=f"column '{column}' is missing"):
        read_log(tmp_path / "log")


def test_a_file_that_is_longer_than_its_column_is_read_as_the_metadata_say(tmp_path):
    """As a killed `append` leaves it: with and without a header of the new number of rows."""
    path = write(tmp_path / "log") / "time.npy"
    for rows in (2, 3):
        path.write_bytes(npy_header(np.dtype(np.float64), [rows]) + np.array([0, 0.5, 9]).tobytes())
        log = read_log(tmp_path / "log")
        log.verify()
        assert log.time.tolist() == [0, 0.5]
    path.write_bytes(npy_header(np.dtype(np.float64), [1]) + np.array([0, 0.5, 9]).tobytes())
    with pytest.raises(DataError, match="column 'time' has a damaged header"):
        read_log(tmp_path / "log")


@pytest.mark.parametrize("block_bytes", [16, 24, 1 << 20])
def test_checksums_of_blocks(tmp_path, monkeypatch, block_bytes):
    """Same checksum however the column was written; of a prefix, with or without the stored blocks; verified."""
    monkeypatch.setattr(checksums, "BLOCK_BYTES", block_bytes)
    for name, pieces in {"a": [7], "b": [3, 0, 4], "c": [1] * 7}.items():
        with LogWriter(tmp_path / name) as writer:
            for column, dtype in (("user", np.int32), ("item", np.int32), ("time", np.float64)):
                values = np.split(np.arange(7), np.cumsum(pieces)[:-1])
                for part in values:
                    writer.column(column, dtype).append(part)
            writer.ids("user_ids", IdIndex.from_ids(range(7)))
            writer.ids("item_ids", IdIndex.from_ids(range(7)))
            writer.finish(events=7, users=7, items=7, item_features=[])
    logs = [read_log(tmp_path / name) for name in "abc"]
    memory = EventLog.from_arrays(np.arange(7), np.arange(7), np.arange(7))
    assert len({log.fingerprint for log in logs}) == 1
    assert ("blocks" in logs[0].metadata["columns"]["time"]) == (block_bytes < 56)
    for events in range(8):
        assert len({log.prefix_checksum(events) for log in [*logs, memory]}) == 1
        changed = EventLog.from_arrays(np.arange(7), np.arange(7), np.where(np.arange(7) < events - 1, 0, 9))
        assert (changed.prefix_checksum(events) == memory.prefix_checksum(events)) == (events == 0)
    assert len({memory.prefix_checksum(events) for events in range(8)}) == 8
    data = bytearray((tmp_path / "a" / "time.npy").read_bytes())
    data[-3] ^= 1
    logs[0].verify()
    (tmp_path / "a" / "time.npy").write_bytes(data)
    with pytest.raises(DataError, match="column 'time' does not match"):
        logs[0].verify()


def test_verify_detects_one_flipped_bit(tmp_path):
    path = write(tmp_path / "log") / "time.npy"
    data = bytearray(path.read_bytes())
    data[-3] ^= 1
    path.write_bytes(data)
    with pytest.raises(DataError, match="column 'time' does not match its sha256"):
        read_log(tmp_path / "log").verify()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda metadata: metadata.update(version=99), "version 99"),
        (lambda metadata: metadata.update(version=0), "version 0"),
        (lambda metadata: metadata.pop("version"), "version None"),
        (lambda metadata: metadata.update(format="other"), "not the metadata of a dynedge log"),
        (lambda metadata: metadata.pop("events"), "has no 'events'"),
        (lambda metadata: metadata["columns"].pop("user"), "has no 'user'"),
        (lambda metadata: metadata["columns"]["user"].pop("shape"), "column 'user' is damaged"),
        (lambda metadata: metadata["columns"].update(user=3), "column 'user' is damaged"),
        (lambda metadata: metadata.update(events=7), "column 'user' has 2 rows instead of 7"),
    ],
)
def test_damaged_metadata_is_an_error(tmp_path, change, message):
    path = write(tmp_path / "log") / METADATA
    metadata = json.loads(path.read_text())
    change(metadata)
    path.write_text(json.dumps(metadata))
    with pytest.raises(DataError, match=message):
        read_log(tmp_path / "log")


def test_a_path_that_is_not_a_log_is_an_error(tmp_path):
    (tmp_path / "file").write_text("x")
    (tmp_path / "empty").mkdir()
    (tmp_path / "rubbish").mkdir()
    (tmp_path / "rubbish" / METADATA).write_text("{")
    for name, message in [
        ("file", "is a file"),
        ("absent", "does not exist"),
        ("empty", f"no {METADATA}"),
        ("rubbish", "not JSON"),
    ]:
        with pytest.raises(DataError, match=message):
            read_log(tmp_path / name)


def test_a_log_in_memory_is_sorted_with_all_its_columns_and_ties_keep_their_order():
    columns = {"features": [[4, 0], [1, 0], [2, 0], [3, 0]], "label": [40, 10, 20, 30]}
    log = EventLog.from_arrays([4, 1, 2, 3], [8, 5, 6, 7], [9, 0, 1, 1], **columns)
    assert log.user.tolist() == [1, 2, 3, 4]
    assert log.item.tolist() == [5, 6, 7, 8]
    assert log.time.tolist() == [0, 1, 1, 9]
    assert log.features.tolist() == [[1, 0], [2, 0], [3, 0], [4, 0]]
    assert log.label.tolist() == [10, 20, 30, 40]
    assert (log.num_users, log.num_items) == (5, 9)
    plain, other = ([[feature, 0] for feature in features] for features in ((4, 1, 2, 3), (4, 1, 2, 0)))
    logs = [EventLog.from_arrays([4, 1, 2, 3], [8, 5, 6, 7], [9, 0, 1, 1], features=one) for one in (plain, other)]
    assert logs[0].fingerprint != logs[1].fingerprint


def test_fingerprints_depend_on_the_contents_only(tmp_path):
    one, same, other = (
        read_log(write(tmp_path / name, users)) for name, users in [("1", "ab"), ("2", "ab"), ("3", "abc")]
    )
    assert one.fingerprint == same.fingerprint != other.fingerprint
    arrays = [0, 1, 0], [0, 0, 1], [3.0, 1.0, 2.0]
    in_memory = EventLog.from_arrays(*arrays)
    assert in_memory.user.tolist() == [1, 0, 0], "sorted by time"
    assert in_memory.fingerprint == EventLog.from_arrays(*arrays).fingerprint
    assert in_memory.fingerprint != EventLog.from_arrays([0, 1, 0], [0, 0, 1], [3.0, 1.0, 2.5]).fingerprint


def test_an_existing_log_is_replaced_only_with_force(tmp_path):
    out = write(tmp_path / "log")
    with pytest.raises(DataError, match=r"already exists.*--force"):
        write(out, ["x"])
    assert len(read_log(out)) == 2
    write(out, ["x"], force=True)
    assert len(read_log(out)) == 1
    assert os.listdir(tmp_path) == ["log"]


def test_force_does_not_replace_a_folder_that_is_not_a_log(tmp_path):
    (tmp_path / "holiday").mkdir()
    (tmp_path / "holiday" / "photo.jpg").write_text("dear")
    with pytest.raises(DataError, match="not made by dynedge"):
        write(tmp_path / "holiday", force=True)
    assert (tmp_path / "holiday" / "photo.jpg").read_text() == "dear"


def test_an_error_while_writing_leaves_the_old_log(tmp_path):
    out = write(tmp_path / "log")
    with pytest.raises(RuntimeError), LogWriter(out, force=True) as writer:
        writer.column("user", np.int32).append(np.zeros(3))
        raise RuntimeError
    assert len(read_log(out)) == 2
    assert os.listdir(tmp_path) == ["log"]


@pytest.mark.parametrize("step", ["append", "close"])
def test_a_full_disk_raises_one_sentence_and_leaves_the_old_log(tmp_path, monkeypatch, step):
    out = write(tmp_path / "log")

    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(ColumnWriter, step, full)
    with pytest.raises(DataError, match="disk is full"):
        write(out, ["x"], force=True)
    monkeypatch.undo()
    assert len(read_log(out)) == 2
    assert os.listdir(tmp_path) == ["log"]


@pytest.mark.slow
def test_a_writer_killed_at_any_step_leaves_the_old_log_or_the_new(tmp_path):
    """The process is killed just before its n-th relevant system call, for every n until it completes."""
    script = (
        "import os, sys, pathlib\n"
        "sys.path.insert(0, sys.argv[2])\n"
        "from small_log import write\n"
        "import dynedge.utils.atomic_io as atomic\n"
        "def dying(real):\n"
        "    def call(*a, **k):\n"
        "        global left\n"
        "        left -= 1\n"
        "        if left < 0: os._exit(137)\n"
        "        return real(*a, **k)\n"
        "    return call\n"
        "for step in sys.stdin:\n"
        "    child = os.fork()\n"
        "    if not child:\n"
        "        left = int(step)\n"
        "        os.fsync, os.rename, os.open = dying(os.fsync), dying(os.rename), dying(os.open)\n"
        "        atomic._exchange = dying(atomic._exchange)\n"
        "        atomic.shutil.rmtree = dying(atomic.shutil.rmtree)\n"
        "        write(pathlib.Path(sys.argv[1]), ['x'], force=True)\n"
        "        os._exit(0)\n"
        "    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)\n"
    )
    out = write(tmp_path / "log")
    seen, step = set(), 0
    command = [sys.executable, "-c", script, out, os.path.dirname(__file__)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, **pipes) as writer:
        while True:
            print(step, file=writer.stdin, flush=True)
            code = int(writer.stdout.readline())
            log = read_log(out)
            log.verify()
            seen.add(len(log))
            if code == 0:
                break
            assert code == 137
            step += 1
    assert step > 10, "it was never killed"
    assert seen == {1, 2}, "the old log has two events, the new one one"
    write(out, force=True)
    assert os.listdir(tmp_path) == ["log"], "the leftovers of killed writers are removed"
