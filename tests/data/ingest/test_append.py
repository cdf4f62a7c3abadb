"""`append` against preparing all files at once, under every interruption, and beside readers of the old log."""

import csv
import errno
import hashlib
import json
import os
import subprocess
import sys

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dynedge.data import checksums, log_writer
from dynedge.data.ingest import append as append_module
from dynedge.data.ingest import external_sort, id_encoder, text_reader
from dynedge.data.ingest.append import append
from dynedge.data.ingest.pipeline import prepare
from dynedge.data.ingest.schema import Schema
from dynedge.data.log import HEADER_BYTES, METADATA, read_log
from dynedge.errors import DataError, UsageError
from dynedge.plan.plan_cache import PlanCache, PlanConfig

COLUMNS = ("user_id", "item_id", "timestamp", "stars", "a", "b", "kind", "color", "key")
SCHEMA = Schema(label="stars", features=("a", "b"), item_features=("kind", "color"), event_id="key", time_unit="s")


def random_rows(count, start, rng, *, text_from=10**9):
    """Rows in no order of time; ids are integers up to row `text_from`, and some rows are invalid or repeated."""
    rows = []
    for k in range(start, start + count):
        user = int(rng.integers(20 + k // 4))
        row = [
            user if k < text_from else f"u{user}",
            f"i{rng.integers(9 + k // 9)}",
            start + int(rng.integers(count)),
        ]
        row += [int(rng.integers(5)), float(np.float32(rng.normal())), k]
        row += ["" if rng.random() < 0.4 else str(rng.integers(k // 5 + 2)), f"c{rng.integers(3)}"]
        row += [k if k < text_from else f"k{k}"]
        if rng.random() < 0.05:
            row[int(rng.choice([0, 2, 3]))] = "" if rng.random() < 0.5 else "?"
        if rng.random() < 0.1 and k > start:
            row[8] = rows[-1][8]
        rows.append(row)
    return rows


def write_rows(path, rows):
    if path.suffix == ".csv":
        with open(path, "w", newline="") as file:
            csv.writer(file).writerows([COLUMNS, *rows])
    elif path.suffix == ".jsonl":
        path.write_text("".join(json.dumps(dict(zip(COLUMNS, row, strict=True))) + "\n" for row in rows))
    else:
        table = {name: [str(row[k]) or None for row in rows] for k, name in enumerate(COLUMNS)}
        pq.write_table(pa.table(table), path)
    return path


def contents(folder):
    """The files of a log folder by name, without the lock; of log.json the content, the order of its keys aside."""
    files = {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file() and path.name != ".lock"}
    return files | {METADATA: json.loads(files[METADATA])}


@pytest.fixture(autouse=True)
def _small_blocks(monkeypatch):
    """Every boundary is crossed: of checksums, of input blocks, of the sort and of the scan of event ids."""
    monkeypatch.setattr(checksums, "BLOCK_BYTES", 512)
    monkeypatch.setattr(text_reader, "BLOCK_BYTES", 2000)
    monkeypatch.setattr(external_sort, "BUCKET_BYTES", 4000)
    monkeypatch.setattr(id_encoder, "PART_IDS", 64)
    monkeypatch.setattr(append_module, "CHUNK_ROWS", 100)


@pytest.mark.parametrize(
    ("suffix", "text_from"),
    [(".csv", 0), (".csv", 300), (".csv", 450), (".csv", 10**9), (".jsonl", 300), (".parquet", 450)],
)
def test_appending_equals_preparing_all_at_once(tmp_path, suffix, text_from):
    """Byte for byte, in any format, with ids that are integers, texts, or become texts in an addition."""
    rng = np.random.default_rng(7)
    files = []
    for k, (count, start) in enumerate([(250, 0), (200, 250), (150, 450)]):
        rows = random_rows(count, start, rng, text_from=text_from)
        if k:
            rows[0][8] = 3 if text_from else "k3"  # an event id of the first file
        files.append(write_rows(tmp_path / f"{k}{suffix}", rows))
    prepare(files, tmp_path / "whole", SCHEMA, max_bad=1)
    prepare(files[0], tmp_path / "log", SCHEMA, max_bad=1)
    for file in files[1:]:
        append(tmp_path / "log", file, SCHEMA, max_bad=1).log.verify()
    whole, log = contents(tmp_path / "whole"), contents(tmp_path / "log")
    assert log.keys() == whole.keys()
    for name in whole:
        assert log[name] == whole[name], name
    assert read_log(tmp_path / "log").metadata["rejected_why"]["duplicate event id"] > 20


def small(tmp_path, rows="u,i,1\nv,j,5\n", **options):
    (tmp_path / "first.csv").write_text("user_id,item_id,timestamp\n" + rows)
    return prepare(tmp_path / "first.csv", tmp_path / "log", **options).path


def more(tmp_path, rows, **options):
    (tmp_path / "more.csv").write_text("user_id,item_id,timestamp\n" + rows)
    return append(tmp_path / "log", tmp_path / "more.csv", **options)


def events(log):
    users, items = log.user_ids.take(log.user), log.item_ids.take(log.item)
    return list(zip(users, items, log.time.tolist(), strict=True))


def test_late_rows_are_rejected_or_merged(tmp_path):
    """Late is older than the log's last event; equal times follow what is there. Old ids keep their numbers."""
    small(tmp_path, "u,i,1\nv,j,5\nw,i,9\n")
    late = "x,k,5\ny,i,2\nu,j,9\nz,i,12\nu,i,1\n"
    with pytest.raises(DataError, match=r"older than the log's end.*log is unchanged; --late merge"):
        more(tmp_path, late)
    assert len(read_log(tmp_path / "log")) == 3
    assert (tmp_path / "log.rejects.csv").exists()
    added = more(tmp_path, late, late="merge")
    assert not (tmp_path / "log.rejects.csv").exists()
    added.log.verify()
    assert (added.events, added.late, added.users, added.items) == (5, 3, 3, 1)
    merged = [("u", "i", 1), ("u", "i", 1), ("y", "i", 2), ("v", "j", 5), ("x", "k", 5), ("w", "i", 9), ("u", "j", 9)]
    assert events(added.log) == [*merged, ("z", "i", 12)]
    assert added.log.user_ids.decoded == ["u", "v", "w", "y", "x", "z"]
    added = more(tmp_path, "u,i,11\nu,i,12\n", max_bad=0.5)
    assert (added.events, added.rejected_why) == (1, {"older than the log's end": 1})
    assert added.log.metadata["rejected"] == 1
    assert "more.csv,2,timestamp,11,older than the log's end" in (tmp_path / "log" / "rejects.csv").read_text()


def test_merging_equals_preparing_all_at_once_except_for_the_numbers_of_ids(tmp_path):
    rng = np.random.default_rng(8)
    files = [write_rows(tmp_path / f"{k}.csv", random_rows(250, 200 * k, rng)) for k in range(3)]
    whole = prepare(files, tmp_path / "whole", SCHEMA, max_bad=1)
    log = prepare(files[0], tmp_path / "log", SCHEMA, max_bad=1)
    for file in files[1:]:
        addition = append(tmp_path / "log", file, SCHEMA, max_bad=1, late="merge")
        assert addition.late > 10
        assert addition.log.user_ids.starts_with(log.user_ids)
        log = addition.log
    log.verify()
    assert events(log) == events(whole)
    assert np.array_equal(log.features, whole.features) and np.array_equal(log.label, whole.label)
    assert np.array_equal(log.event_id, whole.event_id) and log.event_ids.equals(whole.event_ids)


def test_an_item_gets_its_first_category_later(tmp_path):
    header = "user_id,item_id,timestamp,kind\n"
    for name, rows in {"a.csv": "u,i,1,\nu,j,2,x\n", "b.csv": "u,i,3,y\nu,j,4,z\n"}.items():
        (tmp_path / name).write_text(header + rows)
    schema = Schema(item_features=("kind",))
    old = prepare(tmp_path / "a.csv", tmp_path / "log", schema)
    log = append(tmp_path / "log", tmp_path / "b.csv", schema).log
    assert [log.category_ids[0][code] for code in log.item_categories[:, 0]] == ["y", "x"]
    assert old.item_categories.tolist() == [[-1], [0]], "an open log does not change"


def test_rows_that_are_all_in_the_log_change_nothing(tmp_path):
    (tmp_path / "a.csv").write_text("user_id,item_id,timestamp,key\nu,i,1,1\nu,i,2,2\n")
    schema = Schema(event_id="key")
    before = contents(prepare(tmp_path / "a.csv", tmp_path / "log", schema).path)
    added = append(tmp_path / "log", tmp_path / "a.csv", schema)
    assert (added.events, added.rejected_why) == (0, {"duplicate event id": 2})
    assert contents(tmp_path / "log") == before
    assert sorted(os.listdir(tmp_path)) == ["a.csv", "log"]


def test_open_logs_stay_valid(tmp_path):
    small(tmp_path, "".join(f"{k},{k % 7},{k}\n" for k in range(500)))
    old = [read_log(tmp_path / "log")]
    for k in range(3):
        old.append(more(tmp_path, f"new{k},7,{600 + k}\nu,i,{700 + k}\n", late="merge").log)
    for log, count in zip(old, (500, 502, 504, 506), strict=True):
        assert len(log) == count
        assert log.user_ids[499] in (499, "499")
        assert log.time[:500].tolist() == list(range(500))
        assert log.prefix_checksum(500) == old[0].prefix_checksum(500)
        assert (log.prefix_checksum(502) == old[1].prefix_checksum(502)) == (count == 502)


def test_a_hard_linked_copy_does_not_change(tmp_path):
    """Two logs that share files may both grow."""
    small(tmp_path)
    os.mkdir(tmp_path / "copy")
    for path in (tmp_path / "log").iterdir():
        os.link(path, tmp_path / "copy" / path.name)
    one = more(tmp_path, "w,i,6\n").log
    other = append(tmp_path / "copy", tmp_path / "first.csv", late="merge").log
    one.verify()
    other.verify()
    assert [row[0] for row in events(one)] == ["u", "v", "w"]
    assert [row[0] for row in events(other)] == ["u", "u", "v", "v"]


def test_a_file_system_without_hard_links(tmp_path, monkeypatch):
    small(tmp_path)

    def no_links(*_):
        raise OSError

    monkeypatch.setattr(log_writer.os, "link", no_links)
    log = more(tmp_path, "w,i,6\n").log
    log.verify()
    assert len(log) == 3


def test_plans_of_the_old_training_events_stay_valid(tmp_path):
    config = PlanConfig(train_end=2, windows=1)
    plan = PlanCache(read_log(small(tmp_path)), config).folder
    plan.mkdir(parents=True)
    (plan / "x").write_text("x")
    log = more(tmp_path, "w,i,6\n").log
    assert PlanCache(log, config).folder == plan
    assert (plan / "x").read_text() == "x"
    assert PlanCache(log, PlanConfig(train_end=3, windows=1)).folder != plan
    log = more(tmp_path, "w,i,0\n", late="merge").log
    assert PlanCache(log, config).folder != plan


@pytest.mark.parametrize(
    ("base", "schema", "message"),
    [
        (Schema(), Schema(label="label"), "has no labels: leave out --label-col"),
        (Schema(label="label"), Schema(), "has labels: name their column with --label-col"),
        (Schema(event_id="key"), Schema(), "has event ids: name their column with --event-id-col"),
        (Schema(features=("a", "b")), Schema(), r"has 2 features \(a, b\), and --features names 0"),
        (Schema(features=("a", "b")), Schema(features=("b", "a")), "another order: pass --features a,b"),
        (Schema(), Schema(item_features=("a",)), "has 0 item features, and --item-features names 1"),
        (Schema(), Schema(time_unit="years"), "--time-unit"),
    ],
)
def test_columns_that_do_not_fit_the_log(tmp_path, base, schema, message):
    (tmp_path / "a.csv").write_text("user_id,item_id,timestamp,label,key,a,b\nu,i,1,2,3,4,5\n")
    before = contents(prepare(tmp_path / "a.csv", tmp_path / "log", base).path)
    with pytest.raises(UsageError, match=message):
        append(tmp_path / "log", tmp_path / "a.csv", schema)
    assert contents(tmp_path / "log") == before


def test_bad_input_changes_nothing(tmp_path):
    path = small(tmp_path)
    before = contents(path)
    for rows, message in (("", "is empty"), ("u,i,?\n", r"1 of 1 rows are bad.*not a number.*log is unchanged")):
        with pytest.raises(DataError, match=message):
            more(tmp_path, rows)
    with pytest.raises(DataError, match="does not exist"):
        append(path, tmp_path / "absent.csv")
    with pytest.raises(DataError, match="does not exist"):
        append(tmp_path / "absent", tmp_path / "first.csv")
    with pytest.raises(UsageError, match="--late 'never' is not one of reject, merge"):
        append(path, tmp_path / "first.csv", late="never")
    assert contents(path) == before
    with open(path / ".lock") as file:
        import fcntl

        fcntl.flock(file, fcntl.LOCK_EX)
        with pytest.raises(DataError, match="in use by another process"):
            more(tmp_path, "w,i,6\n")


def test_a_unit_that_was_given_holds_for_additions(tmp_path):
    small(tmp_path, "u,i,1000\n", schema=Schema(time_unit="ms"))
    assert more(tmp_path, "u,i,3500\n").log.time.tolist() == [1, 3.5]


@pytest.mark.parametrize(("base", "text"), [(("a", "b"), "[1, 2]"), (("a",), "[1]"), (("a",), "1")])
def test_features_as_a_list_or_as_columns(tmp_path, base, text):
    """A row with another number of values is rejected."""
    (tmp_path / "a.csv").write_text("user_id,item_id,timestamp,a,b\nu,i,1,2,3\n")
    prepare(tmp_path / "a.csv", tmp_path / "log", Schema(features=base))
    (tmp_path / "b.csv").write_text(f'user_id;item_id;timestamp;v\nu;i;2;"{text}"\nu;i;2;[1, 2, 3]\n')
    added = append(tmp_path / "log", tmp_path / "b.csv", Schema(features=("v",)), max_bad=1)
    assert added.log.features.tolist() == [[2, 3][: len(base)], [1, 2][: len(base)]]
    assert added.rejected == 1
    (tmp_path / "b.csv").write_text("user_id;item_id;timestamp;v\nu;i;2;[1, 2, 3]\n")
    with pytest.raises(DataError, match=r"wrong number of values|not a number"):
        append(tmp_path / "log", tmp_path / "b.csv", Schema(features=("v",)), max_bad=1)


def test_a_log_without_checksums_of_blocks(tmp_path):
    """As written before there were any: one SHA-256 of all bytes. It is read once, and then has them."""
    path = small(tmp_path, "".join(f"u{k},{k % 7},{k}\n" for k in range(500)))
    metadata = json.loads((path / METADATA).read_text())
    for name, column in metadata["columns"].items():
        column.pop("blocks", None)
        column["sha256"] = hashlib.sha256((path / f"{name}.npy").read_bytes()[HEADER_BYTES:]).hexdigest()
    (path / METADATA).write_text(json.dumps(metadata))
    old = read_log(path)
    old.verify()
    log = more(tmp_path, "new,7,600\n").log
    log.verify()
    assert log.prefix_checksum(500) == old.prefix_checksum(500)
    whole = prepare([tmp_path / "first.csv", tmp_path / "more.csv"], tmp_path / "whole")
    assert log.metadata["columns"] == whole.metadata["columns"]


def test_a_full_disk_leaves_the_old_log(tmp_path, monkeypatch):
    path = small(tmp_path)
    real, calls = log_writer.ColumnWriter.close, []

    def full(column):
        calls.append(column)
        if len(calls) == 7:  # the added columns are written, and some columns of the log are longer already
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(column)

    monkeypatch.setattr(log_writer.ColumnWriter, "close", full)
    with pytest.raises(DataError, match="disk is full"):
        more(tmp_path, "w,i,6\n")
    log = read_log(path)
    log.verify()
    assert len(log) == 2
    monkeypatch.undo()
    assert len(more(tmp_path, "w,i,7\n").log) == 3
    read_log(path).verify()


KILLED = """
import os, sys
import dynedge.utils.atomic_io as atomic
from dynedge.data import log_writer
from dynedge.data.ingest import append
left = 0
def dying(real):
    def call(*a, **k):
        global left
        left -= 1
        if left < 0: os.kill(os.getpid(), 9)
        return real(*a, **k)
    return call
for name in ("fsync", "rename", "link"):
    setattr(os, name, dying(getattr(os, name)))
log_writer.ColumnWriter._write = dying(log_writer.ColumnWriter._write)
atomic._exchange, atomic.shutil.rmtree = dying(atomic._exchange), dying(atomic.shutil.rmtree)
left = 10**9
append.append(sys.argv[4], sys.argv[2], late=sys.argv[3])  # loads the compiled functions, once for all children
for step in range(10_000):
    left = step
    pid = os.fork()
    if not pid:
        append.append(sys.argv[1], sys.argv[2], late=sys.argv[3])
        os._exit(0)
    print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)
    sys.stdin.readline()
"""


@pytest.mark.parametrize("late", ["reject", "merge"])
def test_killed_at_any_step_the_log_is_the_old_one_or_the_new(tmp_path, late):
    """Each child is killed just before its n-th write, sync, link or rename, for every n until one completes."""
    path = small(tmp_path)
    prepare(tmp_path / "first.csv", tmp_path / "other")
    (tmp_path / "more.csv").write_text("user_id,item_id,timestamp\n" + ("w,i,6\n" if late == "reject" else "w,i,2\n"))
    old = read_log(path)
    command = [sys.executable, "-c", KILLED, path, tmp_path / "more.csv", late, tmp_path / "other"]
    seen, steps = set(), 0
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        while True:
            code = int(process.stdout.readline())
            log = read_log(path)
            log.verify()
            seen.add(len(log))
            assert old.time.tolist() == [1, 5]
            if len(log) == 3:
                break
            assert code == -9
            steps += 1
            process.stdin.write("\n")
            process.stdin.flush()
        process.kill()
    assert seen == {2, 3} and steps > 20
    whole = prepare([tmp_path / "first.csv", tmp_path / "more.csv"], tmp_path / "whole")
    assert events(log) == events(whole)
    append(path, tmp_path / "more.csv", late="merge")
    assert sorted(os.listdir(tmp_path)) == ["first.csv", "log", "more.csv", "other", "whole"], "leftovers are removed"
