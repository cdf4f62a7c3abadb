"""From files to a log: every format, every kind of rejected row, and messy files against a plain reference reader."""

import csv
import gc
import gzip
import json
import os
import random
import resource
import threading

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dynedge.data.ingest import external_sort, pipeline, row_writer, text_reader
from dynedge.data.ingest.pipeline import prepare
from dynedge.data.ingest.schema import Schema
from dynedge.data.log import read_log
from dynedge.errors import DataError, UsageError

ROWS = [("u1", "i1", "10"), ("u2", "i1", "5"), ("u1", "i2", "5"), ("u3", "i1", "20")]
IN_ORDER = [("u2", "i1", 5.0), ("u1", "i2", 5.0), ("u1", "i1", 10.0), ("u3", "i1", 20.0)]


def events(log):
    users, items = log.user_ids.take(log.user), log.item_ids.take(log.item)
    return list(zip(users, items, log.time.tolist(), strict=True))


def rejects(folder):
    with open(folder / "rejects.csv", newline="", encoding="utf-8") as file:
        return [(int(row["line"]), row["column"], row["value"], row["reason"]) for row in csv.DictReader(file)]


def read(tmp_path, text, schema=None, name="events.csv", **more):
    path = tmp_path / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return prepare(path, tmp_path / "log", schema, **{"max_bad": 1.0, "force": True, **more})


def table(delimiter=",", end="\n"):
    lines = [delimiter.join(row) for row in [("user_id", "item_id", "timestamp"), *ROWS]]
    return end.join(lines) + end


# ---- formats


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.csv", table()),
        ("a.csv", table(end="\r\n")),
        ("a.csv", table().rstrip("\n")),
        ("a.csv", "\ufeff" + table()),
        ("a.csv", table().replace("\n", "\n\n")),
        ("a.csv", table().replace("u1", '"u1"')),
        ("a.csv", table(";")),
        ("a.tsv", table("\t")),
        ("a.txt", table("|")),
        ("a.csv.gz", gzip.compress(table().encode(), mtime=0)),
        ("a.csv.gz", gzip.compress(table()[:30].encode(), mtime=0) + gzip.compress(table()[30:].encode(), mtime=0)),
        ("no_ending", gzip.compress(table().encode(), mtime=0)),
        ("a.csv.zst", pa.compress(table().encode(), "zstd", asbytes=True)),
    ],
)
def test_delimited_text_of_every_variant(tmp_path, name, text):
    assert events(read(tmp_path, text, name=name)) == IN_ORDER


@pytest.mark.parametrize("name", ["a.jsonl", "a.json", "a.ndjson", "a", "a.jsonl.gz"])
def test_json_lines(tmp_path, name):
    rows = [{"user_id": u, "more": {"x": [1, "}"]}, "item_id": i, "timestamp": float(t)} for u, i, t in ROWS]
    text = "\n\n".join(json.dumps(row) for row in rows).encode()
    assert events(read(tmp_path, gzip.compress(text) if name.endswith("gz") else text, name=name)) == IN_ORDER


@pytest.mark.parametrize("ascii_only", [True, False])
def test_json_strings_with_every_escape(tmp_path, ascii_only):
    ids = ['a"b', "a\\b", "a/b", "tab\there", "line\nbreak", "é", "€", "😀", "\u2028", "\x01", "a\\u0041"]
    text = "\n".join(json.dumps({"user_id": u, "item_id": 1, "timestamp": 1}, ensure_ascii=ascii_only) for u in ids)
    assert [u for u, _, _ in events(read(tmp_path, text, name="a.jsonl"))] == ids


def test_parquet_columns_of_every_type(tmp_path):
    ids, times = ["x", "ÿ", "x"], [1_500_000_000.25, 1_500_000_001.5, 1_500_000_002.0]
    stamp = [int(t * 1000) for t in times]
    columns = {
        "text": pa.array(ids),
        "large": pa.array(ids, pa.large_string()),
        "dictionary": pa.array(ids).dictionary_encode(),
        "small": pa.array([3, 4, 3], pa.int8()),
        "unsigned": pa.array([2**64 - 1, 1, 2**64 - 1], pa.uint64()),
        "float": pa.array([3.0, 4.0, 3.0]),
        "ms": pa.array(stamp, pa.timestamp("ms")),
        "zoned": pa.array([t * 1000 for t in stamp], pa.timestamp("us", "Europe/Berlin")),
        "seconds": pa.array(times),
        "millis": pa.array(stamp, pa.int64()),
        "iso": pa.array(["2017-07-14T02:40:00.25Z", "2017-07-14T02:40:01.5Z", "2017-07-14T02:40:02Z"]),
        "vector": pa.array([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]], pa.list_(pa.float32())),
        "fixed": pa.array([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]], pa.list_(pa.float64(), 2)),
        "flag": pa.array([True, False, True]),
    }
    pq.write_table(pa.table(columns), tmp_path / "a.parquet")
    expected = {"text": ids, "large": ids, "dictionary": ids, "small": [3, 4, 3], "float": [3, 4, 3]}
    expected["unsigned"] = ["18446744073709551615", "1", "18446744073709551615"]
    schemas = [Schema(user=user, item="iso", time="seconds") for user in expected]
    schemas += [Schema(user="text", item="large", time=time) for time in ("ms", "zoned", "seconds", "millis", "iso")]
    schemas += [Schema(user="text", item="large", time="ms", features=(name,)) for name in ("vector", "fixed")]
    schemas += [Schema(user="text", item="large", time="ms", features=("seconds", "float"), label="flag")]
    for schema in schemas:
        log = prepare(tmp_path / "a.parquet", tmp_path / "log", schema, force=True)
        assert log.user_ids.take(log.user) == expected[schema.user], schema
        assert log.time.tolist() == times, schema
        if schema.features:
            assert log.features.tolist() == (
                [[1, 2], [3, 4], [5, 6]] if not schema.label else [[1.5e9, 3], [1.5e9, 4], [1.5e9, 3]]
            )
    assert log.label.tolist() == [1, 0, 1]


def test_a_column_of_numbers_is_not_a_column_of_lists(tmp_path):
    """The second file has one number for each of two features: its rows have no second one."""
    same = {"user_id": ["u", "v"], "item_id": ["i", "i"], "timestamp": [1, 2]}
    pq.write_table(pa.table(same | {"v": [[1.0, 2.0], [3.0, 4.0]]}), tmp_path / "a.parquet")
    pq.write_table(pa.table(same | {"v": [5.0, None]}), tmp_path / "b.parquet")
    files = [tmp_path / "a.parquet", tmp_path / "b.parquet"]
    log = prepare(files, tmp_path / "log", Schema(features=("v",)), max_bad=1)
    assert log.features.tolist() == [[1, 2], [3, 4]]
    assert [row[3] for row in rejects(log.path)] == ["wrong number of values in the list", "missing value"]


def test_a_missing_first_list_leaves_the_length_to_the_next(tmp_path):
    same = {"user_id": ["a", "b", "c"], "item_id": ["x"] * 3, "timestamp": [1, 2, 3]}
    for lists in (pa.list_(pa.float64()), pa.list_(pa.float32(), 2)):
        values = pa.array([None, [1, 2], [3, 4]], lists)
        log = prepare(
            pa.table(same | {"v": values}), tmp_path / "log", Schema(features=("v",)), max_bad=1, force=True
        )
        assert log.features.tolist() == [[1, 2], [3, 4]]
        assert rejects(log.path) == [(1, "v", "", "missing value")]
    text = 'user_id,item_id,timestamp,v\na,x,1,\nb,x,2,"1,2"\n'
    log = read(tmp_path, text, Schema(features=("v",)), max_bad=1)
    assert log.features.tolist() == [[1, 2]]


@pytest.mark.parametrize("values", [[["a"]], [[[1.0]]], [[{"a": 1}]]], ids=["texts", "lists", "structs"])
def test_lists_of_other_than_numbers_are_refused(tmp_path, values):
    table = pa.table({"user_id": ["a"], "item_id": ["x"], "timestamp": [1], "v": values})
    pq.write_table(table, tmp_path / "a.parquet")
    for source in (table, tmp_path / "a.parquet"):
        with pytest.raises(DataError, match=r"column 'v' is of type list<.*cast it to text or numbers"):
            prepare(source, tmp_path / "log", Schema(features=("v",)))


def test_bad_parquet_rows_are_rejected(tmp_path):
    columns = {
        "user_id": pa.array(["a", None, "c", "d", "e", "f"]),
        "item_id": pa.array([1.0, 2.0, 2.5, None, 5.0, 6.0]),
        "timestamp": pa.array([1, 2, 3, 4, -5, None]),
        "v": pa.array([[1.0, 2.0], [1.0, 2.0], [1.0, 2.0], [1.0, 2.0], [1.0, 2.0], [float("nan"), 1.0]]),
    }
    pq.write_table(pa.table(columns), tmp_path / "a.parquet")
    log = prepare(tmp_path / "a.parquet", tmp_path / "log", Schema(features=("v",)), max_bad=1)
    assert len(log) == 1
    assert [(line, column, reason) for line, column, _, reason in rejects(log.path)] == [
        (2, "user_id", "missing value"),
        (3, "item_id", "neither text nor an integer"),
        (4, "item_id", "missing value"),
        (5, "timestamp", "negative time"),
        (6, "timestamp", "missing value"),
    ]


def test_a_number_too_large_for_float32_is_rejected_in_every_kind_of_column(tmp_path):
    rows = ['u,i,1,0,0,"1 2"', 'u,i,2,1e39,0,"1 2"', 'u,i,3,0,-1e39,"1 2"', 'u,i,4,0,0,"1 1e39"']
    columns = {"y": [0, 1e39, 0, 0], "f": [0, 0, -1e39, 0], "v": [[1.0, 2], [1, 2], [1, 2], [1, 1e39]]}
    same = {"user_id": ["u"] * 4, "item_id": ["i"] * 4, "timestamp": [1, 2, 3, 4]}
    pq.write_table(pa.table(same | columns), tmp_path / "a.parquet")
    (tmp_path / "a.csv").write_text("\n".join(["user_id,item_id,timestamp,y,f,v", *rows]))
    for name, first in (("a.csv", 2), ("a.parquet", 1)):
        for schema, bad in ((Schema(label="y"), 1), (Schema(features=("f", "y")), 1), (Schema(features=("v",)), 3)):
            log = prepare(tmp_path / name, tmp_path / "log", schema, max_bad=1, force=True)
            assert (first + bad, "not a finite number") in [(row[0], row[3]) for row in rejects(log.path)]
            assert np.isfinite(log.features).all()


def test_a_delimiter_of_two_characters(tmp_path):
    text = table("::").replace("u1", "u:1")
    log = read(tmp_path, text, Schema(delimiter="::"))
    assert events(log) == [(user.replace("u1", "u:1"), item, time) for user, item, time in IN_ORDER]


@pytest.mark.parametrize("block", [*range(26, 45), 1 << 20])
def test_a_closing_quote_is_followed_by_the_whole_delimiter(tmp_path, monkeypatch, block):
    monkeypatch.setattr(text_reader, "BLOCK_BYTES", block)
    text = 'user_id::item_id::timestamp\n"u":x::i::1\n"a::b"::"i"::2\n"u"::"i"::3\n"c":'
    log = read(tmp_path, text, Schema(delimiter="::"))
    assert events(log) == [("a::b", "i", 2), ("u", "i", 3)]
    bad = [(2, "", '"u":x::i::1', "text after a closing quote"), (5, "", '"c":', "text after a closing quote")]
    assert rejects(log.path) == bad


def test_several_files_and_globs_are_read_in_order(tmp_path):
    for k, row in enumerate(ROWS):
        (tmp_path / f"part-{k}.csv").write_text("item_id,timestamp,user_id\n" + ",".join([row[1], row[2], row[0]]))
    (tmp_path / "part-9.csv").write_text("")
    assert events(prepare(str(tmp_path / "part-*.csv"), tmp_path / "log")) == IN_ORDER
    swapped = [tmp_path / "part-2.csv", tmp_path / "part-1.csv"]
    assert events(prepare(swapped, tmp_path / "swapped")) == [IN_ORDER[1], IN_ORDER[0]], "ties in input order"


def test_sorted_files_that_overlap_in_time_are_merged(tmp_path):
    for k, times in enumerate(((1, 5), (3, 7))):
        rows = "".join(f"u,i,{time}\n" for time in times)
        (tmp_path / f"part-{k}.csv").write_text("user_id,item_id,timestamp\n" + rows)
    log = prepare(str(tmp_path / "part-*.csv"), tmp_path / "log")
    assert log.time.tolist() == [1, 3, 5, 7]
    assert (log.metadata["first_time"], log.metadata["last_time"]) == (1, 7)


def test_a_file_without_a_header_and_with_other_column_names(tmp_path):
    schema = Schema(user="who", item="what", time="when", names=("when", "x", "who", "what"))
    log = read(tmp_path, "3,?,a,b\n1,?,c,d\n", schema)
    assert events(log) == [("c", "d", 1.0), ("a", "b", 3.0)]


# ---- columns


@pytest.mark.parametrize(
    ("values", "unit", "seconds"),
    [
        (["0", "36.5"], "s", [0.0, 36.5]),
        (["1500000000", "1500000000.25"], "s", [1.5e9, 1.5e9 + 0.25]),
        (["1500000000000", "1500000000250"], "ms", [1.5e9, 1.5e9 + 0.25]),
        (["1500000000000000", "1500000000250000"], "us", [1.5e9, 1.5e9 + 0.25]),
        (["1500000000000000000", "1500000000250000000"], "ns", [1.5e9, 1.5e9 + 0.25]),
        (["2017-07-14T02:40:00Z", "2017-07-14 04:40:00.25+02:00"], "iso", [1.5e9, 1.5e9 + 0.25]),
    ],
)
def test_the_time_unit_is_inferred_and_fractions_of_seconds_are_preserved(tmp_path, values, unit, seconds):
    log = read(tmp_path, "user_id,item_id,timestamp\n" + "".join(f"u,i,{value}\n" for value in values))
    assert log.metadata["time"] == {"unit": unit, "inferred": True}
    assert log.time.tolist() == seconds


def test_the_time_unit_can_be_given(tmp_path):
    log = read(tmp_path, "user_id,item_id,timestamp\nu,i,2500\n", Schema(time_unit="ms"))
    assert log.time.tolist() == [2.5]
    with pytest.raises(UsageError, match="--time-unit 'fortnights' is not one of"):
        read(tmp_path, "", Schema(time_unit="fortnights"))


def test_features_label_categories_and_event_ids(tmp_path):
    text = (
        "user_id,item_id,timestamp,f,g,y,kind,id\n"
        "u,i,3,1.5,-2,1,red,e1\n"
        "u,j,1,0.25,1e3,0,blue,e2\n"
        "u,i,2,7,8,1,green,e3\n"
        "u,k,4,7,8,1,,e4\n"
    )
    schema = Schema(label="y", event_id="id", features=("f", "g"), item_features=("kind",))
    log = read(tmp_path, text, schema)
    assert log.features.tolist() == [[0.25, 1000.0], [7, 8], [1.5, -2], [7, 8]]
    assert log.label.tolist() == [0, 1, 1, 1]
    assert log.event_ids.take(log.event_id) == ["e2", "e3", "e1", "e4"]
    assert item_kinds(log) == {"j": "blue", "i": "green", "k": None}, "the first in time, not in the file"
    assert log.metadata["features"] == ["f", "g"]


def item_kinds(log):
    codes = log.item_categories[:, 0]
    kinds = [log.category_ids[0][code] if code >= 0 else None for code in codes]
    return dict(zip(log.item_ids.take(range(len(codes))), kinds, strict=True))


@pytest.mark.parametrize("times", [range(6), (0, 1, 4, 2, 3, 5)], ids=["sorted", "unsorted"])
def test_the_first_category_is_kept_in_a_log_of_several_pieces(tmp_path, monkeypatch, times):
    monkeypatch.setattr(row_writer, "CHUNK_ROWS", 2)
    monkeypatch.setattr(external_sort, "CHUNK_ROWS", 2)
    monkeypatch.setattr(external_sort, "BUCKET_BYTES", 64)
    rows = zip("ijikkl", times, ["", "blue", "red", "", "green", ""], strict=True)
    text = "user_id,item_id,timestamp,kind\n" + "".join(f"u,{i},{t},{kind}\n" for i, t, kind in rows)
    log = read(tmp_path, text, Schema(item_features=("kind",)))
    assert item_kinds(log) == {"i": "red", "j": "blue", "k": "green", "l": None}
    more = "u,i,6,brown\nu,j,6,brown\nu,m,7,\nu,m,7,pink\nu,m,8,brown\n"
    log = read(tmp_path, text + more, Schema(item_features=("kind",)))
    assert item_kinds(log) == {"i": "red", "j": "blue", "k": "green", "l": None, "m": "pink"}


@pytest.mark.parametrize("packed", ["1,2.5,-3", "[1, 2.5, -3]", "1 2.5 -3", "[1.0;2.5;-3e0]"])
def test_a_packed_feature_column(tmp_path, packed):
    lists = [packed, "[1, 2]", "1 2 3 4", packed.replace("-3", "x")]
    text = "user_id,item_id,timestamp,v\n" + "".join(f'u,i,{k},"{one}"\n' for k, one in enumerate(lists))
    log = read(tmp_path, text, Schema(features=("v",)))
    assert log.features.tolist() == [[1, 2.5, -3]]
    assert log.metadata["features"] == ["v_0", "v_1", "v_2"]
    assert [row[3] for row in rejects(log.path)] == 2 * ["wrong number of values in the list"] + ["not a number"]


def test_labels_may_be_true_and_false(tmp_path):
    values = ["true", "FALSE", "1", "0", "True", "false", "0.5", "truth", "fault"]
    text = "user_id,item_id,timestamp,y\n" + "".join(f"u,i,{k},{value}\n" for k, value in enumerate(values))
    log = read(tmp_path, text, Schema(label="y"))
    assert log.label.tolist() == [1, 0, 1, 0, 1, 0, 0.5]
    assert [row[2] for row in rejects(log.path)] == ["truth", "fault"]


def test_categories_of_parquet_may_be_missing(tmp_path):
    columns = {"user_id": ["u"] * 3, "item_id": ["i", "j", "k"], "timestamp": [1, 2, 3], "kind": [7, None, 9]}
    for kind in (pa.int64(), pa.float64()):
        table = pa.table({**columns, "kind": pa.array(columns["kind"], kind)})
        pq.write_table(table, tmp_path / "a.parquet")
        log = prepare(tmp_path / "a.parquet", tmp_path / "log", Schema(item_features=("kind",)), force=True)
        assert item_kinds(log) == {"i": 7, "j": None, "k": 9}


def test_a_packed_feature_column_in_json(tmp_path):
    rows = [{"user_id": 1, "item_id": 2, "timestamp": 3, "v": v} for v in ([1, 2], [3.5, -1], [1], "x", None)]
    log = read(tmp_path, "\n".join(map(json.dumps, rows)), Schema(features=("v",)), name="a.jsonl")
    assert log.features.tolist() == [[1, 2], [3.5, -1]]
    assert len(rejects(log.path)) == 3


@pytest.mark.parametrize(
    ("ids", "kind"),
    [
        (["1", "-5", "9223372036854775807", "0"], int),
        (["1", "01", "1.0", "-0", "+1"], str),
        (["9223372036854775808", "-9223372036854775809"], str),
        (["a b", "ünï", "😀", "NULL", "nan"], str),
        (['say ""hi""', "comma, inside", "line\nbreak"], str),
    ],
)
def test_external_ids_of_any_type_are_preserved(tmp_path, ids, kind):
    text = "user_id,item_id,timestamp\n" + "".join(f'"{value}",i,{k}\n' for k, value in enumerate(ids))
    log = read(tmp_path, text)
    assert log.user_ids.take(log.user) == [kind(value.replace('""', '"')) for value in ids]


def test_dense_ids_are_by_first_appearance_in_time(tmp_path):
    log = read(tmp_path, table())
    assert log.user_ids.take(range(3)) == ["u2", "u1", "u3"]
    assert log.user.tolist() == [0, 1, 1, 2]
    longer = read(tmp_path, table() + "u9,i9,30\n")
    assert longer.user_ids.take(range(3)) == ["u2", "u1", "u3"], "a longer file does not renumber its beginning"


# ---- bad rows


def test_every_kind_of_rejected_row_is_listed_with_its_line(tmp_path):
    text = b"".join(
        [
            b"user_id,item_id,timestamp,f\n",
            b"u,i,1,0\n",
            b",i,1,0\n",
            b"u,,1,0\n",
            b"u,i,,0\n",
            b"\n",
            b"u,i,soon,0\n",
            b"u,i,-4,0\n",
            b"u,i,1e15,0\n",
            b"u,i,1,nan\n",
            b"u,i,1,-inf\n",
            b"u,i,1,x\n",
            b"u,i,1,1e39\n",
            b"u,i,1\n",
            b"u,i,1,0,9\n",
            b"\xff\xfe,i,1,0\n",
            b'"two\nlines",i,2,0\n',
            b'"u"x,i,1,0\n',
            b'"u,i,1,0\n',
            b"last,i,3,0",
        ]
    )
    log = read(tmp_path, text, Schema(features=("f",)))
    assert [user for user, _, _ in events(log)] == ["u", "two\nlines", "last"]
    assert rejects(log.path) == [
        (3, "user_id", "", "missing value"),
        (4, "item_id", "", "missing value"),
        (5, "timestamp", "", "missing value"),
        (7, "timestamp", "soon", "not a number"),
        (8, "timestamp", "-4", "negative time"),
        (9, "timestamp", "1e15", "time after the year 2200"),
        (10, "f", "nan", "not a finite number"),
        (11, "f", "-inf", "not a finite number"),
        (12, "f", "x", "not a number"),
        (13, "f", "1e39", "not a finite number"),
        (14, "", "u,i,1", "3 columns instead of 4"),
        (15, "", "u,i,1,0,9", "5 columns instead of 4"),
        (16, "user_id", "\\xff\\xfe", "not valid UTF-8, or with a NUL character"),
        (19, "", '"u"x,i,1,0', "text after a closing quote"),
        (20, "", '"u,i,1,0', "unclosed quote"),
    ]
    assert log.metadata["rows_read"] == len(log) + log.metadata["rejected"] == 18


@pytest.mark.parametrize(
    "line", ["{", "[]", "3", '{"user_id": u}', '{"user_id": "a}', '{"a": 1,}', '{"a": 1} x', "\\"]
)
def test_bad_json_lines_are_rejected(tmp_path, line):
    good = json.dumps({"user_id": "u", "item_id": "i", "timestamp": 1})
    log = read(tmp_path, f"{good}\n{line}\n{good}\n", name="a.jsonl")
    assert (len(log), [row[0] for row in rejects(log.path)]) == (2, [2])


def test_json_ids_must_be_text_or_integers(tmp_path):
    rows = [{"user_id": u, "item_id": "i", "timestamp": 1} for u in ("u", 7, None, [1], {"a": 1}, "")]
    log = read(tmp_path, "\n".join(map(json.dumps, rows)), name="a.jsonl")
    assert [row[0] for row in rejects(log.path)] == [3, 4, 5, 6]
    assert log.user_ids.take(log.user) == ["u", "7"]


def test_a_rejected_row_adds_no_user_or_item(tmp_path):
    log = read(tmp_path, "user_id,item_id,timestamp\na,x,1\nghost,y,never\nb,,1\n")
    assert (log.num_users, log.num_items) == (1, 1)


def test_duplicate_event_ids_are_rejected_but_do_not_count_as_bad(tmp_path):
    text = "user_id,item_id,timestamp,id\nu,i,1,7\nu,j,2,8\nu,k,3,7\nu,k,4,x\nu,k,5,x\n"
    log = read(tmp_path, text, Schema(event_id="id"), max_bad=0.0)
    assert log.event_ids.take(log.event_id) == ["7", "8", "x"]
    assert rejects(log.path) == [(4, "id", "7", "duplicate event id"), (6, "id", "x", "duplicate event id")]


@pytest.mark.parametrize("name", ["a.parquet", "a.jsonl"])
def test_duplicate_event_ids_are_rejected_beside_missing_ones(tmp_path, name):
    columns = {"user_id": ["u"] * 4, "item_id": ["i"] * 4, "timestamp": [1, 2, 3, 4], "id": [7, None, 7, 8]}
    if name == "a.parquet":
        pq.write_table(pa.table(columns), tmp_path / name)
    else:
        rows = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
        (tmp_path / name).write_text("\n".join(map(json.dumps, rows)))
    log = prepare(tmp_path / name, tmp_path / "log", Schema(event_id="id"), max_bad=1)
    assert log.event_ids.take(log.event_id) == [7, 8]
    assert rejects(log.path) == [(2, "id", "", "missing value"), (3, "id", "7", "duplicate event id")]


def test_too_many_bad_rows_write_no_log_and_are_listed(tmp_path):
    good, bad = "u,i,1\n" * 998, "u,i,?\n"
    with pytest.raises(
        DataError, match=r"2 of 1000 rows are bad \(0\.20%, more than --max-bad 0\.001\); first: line 1000"
    ):
        read(tmp_path, "user_id,item_id,timestamp\n" + good + 2 * bad, max_bad=0.001)
    assert not (tmp_path / "log").exists()
    assert len((tmp_path / "log.rejects.csv").read_text().splitlines()) == 3
    log = read(tmp_path, "user_id,item_id,timestamp\n" + good + "u,i,1\n" + bad, max_bad=0.001)
    assert log.metadata["rejected"] == 1
    assert not (tmp_path / "log.rejects.csv").exists(), "the list of the earlier attempt is removed"


def test_a_failed_prepare_leaves_the_old_log(tmp_path):
    read(tmp_path, table())
    with pytest.raises(DataError):
        read(tmp_path, "user_id,item_id,timestamp\nu,i,?\n", max_bad=0)
    assert events(read_log(tmp_path / "log")) == IN_ORDER


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "is empty"),
        ("user_id,item_id,timestamp\n", "is empty"),
        ("\n\n\n", "has no column 'user_id'"),
        ("user,item,time\n1,2,3\n", "no column 'user_id'; its columns are: user, item, time"),
        ("user_id,user_id,item_id,timestamp\n1,2,3,4\n", "2 columns named 'user_id'"),
        ("user_id,item_id,timestamp\n,,\n,,\n", "2 of 2 rows are bad"),
        (b"\xff\xfeu\x00s\x00", "is UTF-16"),
        (gzip.compress(table().encode() * 50, mtime=0)[:-20], "damaged or truncated"),
        (b"PAR1 but not really", "not a readable Parquet file"),
    ],
)
def test_unreadable_files_raise_one_sentence(tmp_path, text, words):
    with pytest.raises(DataError, match=words):
        read(tmp_path, text, max_bad=0.5)
    assert not (tmp_path / "log").exists()


def test_paths_that_are_not_files_raise_one_sentence(tmp_path):
    (tmp_path / "folder").mkdir()
    for path, words in [("folder", "is a folder"), ("absent.csv", "does not exist"), ("no*.csv", "no file matches")]:
        with pytest.raises(DataError, match=words):
            prepare(str(tmp_path / path), tmp_path / "log")
    with pytest.raises(DataError, match="create it first"):
        read(tmp_path, table(), name="a.csv")  # creates the file
        prepare(tmp_path / "a.csv", tmp_path / "no" / "such" / "log")


def test_a_column_cannot_have_two_roles(tmp_path):
    with pytest.raises(UsageError, match="'user_id' is given twice"):
        read(tmp_path, table(), Schema(label="user_id"))


def test_an_overlong_line_is_an_error(tmp_path, monkeypatch):
    monkeypatch.setattr(text_reader, "MAX_LINE_BYTES", 1000)
    monkeypatch.setattr(text_reader, "BLOCK_BYTES", 500)
    with pytest.raises(DataError, match="line 2 is longer"):
        read(tmp_path, "user_id,item_id,timestamp\n" + "x" * 5000)


def test_a_stray_quote_rejects_its_line_only(tmp_path):
    """A quote that is not closed within 1 MiB: its line is rejected, and reading continues after it."""
    rows = "".join(f"u{k},i,{k}\n" for k in range(200_000))
    log = read(tmp_path, 'user_id,item_id,timestamp\n"stray,i,1\n' + rows)
    assert (len(log), [row[0] for row in rejects(log.path)]) == (200_000, [2])


# ---- messy files against a plain reference reader


def reference_reader(text: bytes):
    """Returns (accepted rows, rejected lines) of a comma-separated file without quotes."""
    accepted, rejected = [], []
    for number, line in enumerate(text.split(b"\n"), start=1):
        row = line.removesuffix(b"\r")
        if number == 1 or not row:
            continue
        fields = [field.strip(b" ") for field in row.split(b",")]
        try:
            assert len(fields) == 3
            user, item = (field.decode() for field in fields[:2])
            assert user and item and "\0" not in user + item
            assert not set(fields[2].lower()) & set(b"_n")  # Python reads 1_0 and nan
            time = float(fields[2])
            assert 0 <= time <= 7258118400
            accepted.append((user, item, time))
        except (AssertionError, ValueError):
            rejected.append(number)
    return sorted(accepted, key=lambda row: row[2]), rejected


field = st.one_of(
    st.sampled_from(
        [b"", b"7", b"007", b"-3", b"9" * 19, b"9" * 30, b"1.5", b"1e3", b"nan", b" x ", b"\xff", b"\xc3\xa9"]
    ),
    st.integers(0, 30).map(lambda k: str(k).encode()),
    st.text(alphabet="ab0é .", max_size=4).map(str.encode),
)
line = st.one_of(
    st.tuples(field, field, st.integers(0, 20).map(lambda k: str(k).encode())),
    st.lists(field, max_size=5),
).map(b",".join)


@given(
    lines=st.lists(line, max_size=30),
    end=st.sampled_from([b"\n", b"\r\n"]),
    last=st.booleans(),
    block=st.integers(1, 64),
)
@settings(max_examples=150)
def test_messy_files_are_read_as_by_the_reference_reader(tmp_path_factory, lines, end, last, block):
    tmp_path = tmp_path_factory.mktemp("messy")
    text = end.join([b"user_id,item_id,timestamp", *lines]) + (end if last else b"")
    accepted, rejected = reference_reader(text)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(text_reader, "BLOCK_BYTES", block)  # blocks may end inside lines and characters
        patch.setattr(external_sort, "BUCKET_BYTES", 64)
        try:
            log = read(tmp_path, text, Schema(time_unit="s"))
        except DataError as error:
            assert not accepted
            assert "is empty" in str(error) or f"{len(rejected)} of {len(rejected)} rows" in str(error)
            return
    assert [(str(user), str(item), time) for user, item, time in events(log)] == accepted
    assert [row[0] for row in rejects(log.path)] == rejected
    assert log.metadata["rows_read"] == len(accepted) + len(rejected)
    log.verify()


@given(text=st.binary(max_size=200).map(lambda raw: bytes(b'"",\n\r 019ab\xc3\xa9'[byte % 13] for byte in raw)))
@settings(max_examples=150)
def test_quoted_text_is_read_alike_with_any_block_size(tmp_path_factory, text):
    tmp_path = tmp_path_factory.mktemp("quotes")
    text = b"user_id,item_id,timestamp\n" + text
    outcomes = []
    for block in (8, 1 << 20):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(text_reader, "BLOCK_BYTES", block)
            try:
                log = read(tmp_path, text)
                assert log.metadata["rows_read"] == len(log) + len(rejects(log.path))
                outcomes.append((events(log), rejects(log.path)))
            except DataError as error:
                outcomes.append(str(error))
    assert outcomes[0] == outcomes[1]


@given(rows=st.lists(st.tuples(st.text(max_size=5), st.text(max_size=5), st.integers(0, 9)), min_size=1, max_size=20))
def test_output_of_pythons_csv_module_is_read_back(tmp_path_factory, rows):
    tmp_path = tmp_path_factory.mktemp("csv")
    rows = [(u, i, t) for u, i, t in rows if u and i and not {"\0", "\r"} & set(u + i)]
    with open(tmp_path / "a.csv", "w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, quoting=csv.QUOTE_ALL, lineterminator="\n")
        writer.writerows([("user_id", "item_id", "timestamp"), *rows])
    if not rows:
        return
    log = prepare(tmp_path / "a.csv", tmp_path / "log")
    assert [(str(u), str(i), t) for u, i, t in events(log)] == sorted(rows, key=lambda row: row[2])


# ---- at size


def test_sorting_with_many_buckets_is_stable(tmp_path, monkeypatch):
    monkeypatch.setattr(external_sort, "BUCKET_BYTES", 1 << 16)
    monkeypatch.setattr(external_sort, "CHUNK_ROWS", 5000)
    rng = random.Random(5)
    rows = [
        (f"u{rng.randrange(500)}", rng.randrange(300), rng.choice([7, rng.randrange(1000)])) for _ in range(60_000)
    ]
    log = read(tmp_path, "user_id,item_id,timestamp\n" + "".join(f"{u},{i},{t}\n" for u, i, t in rows))
    assert events(log) == sorted(rows, key=lambda row: row[2])
    first = list(dict.fromkeys(log.user.tolist()))
    assert first == list(range(log.num_users))


def test_a_stream_that_is_not_read_to_its_end_ends_its_thread(tmp_path, monkeypatch):
    monkeypatch.setattr(text_reader, "BLOCK_BYTES", 100)
    (tmp_path / "a.csv").write_text(table() * 100)
    before = set(threading.enumerate())
    gc.disable()  # not by the garbage collector, which may run in any thread
    try:
        assert text_reader.text_columns(tmp_path / "a.csv", Schema(), b"") == ["user_id", "item_id", "timestamp"]
        for thread in set(threading.enumerate()) - before:
            thread.join(10)
            assert not thread.is_alive()
    finally:
        gc.enable()


def test_reading_stops_early_when_no_row_is_valid(tmp_path, monkeypatch):
    monkeypatch.setattr(pipeline, "GIVE_UP_ROWS", 100)
    monkeypatch.setattr(text_reader, "BLOCK_BYTES", 1000)
    with pytest.raises(DataError, match=r"(\d+) of \1 rows are bad") as error:
        read(tmp_path, "user_id,item_id,timestamp\n" + "u,i,?\n" * 10_000, max_bad=1.0)
    assert "10000" not in str(error.value)


def test_a_full_disk_raises_one_sentence(tmp_path):
    """A limit on the file size makes a write fail in the middle of a column."""
    text = "user_id,item_id,timestamp\n" + "".join(f"{k},{k},{k}\n" for k in range(100_000))
    (tmp_path / "a.csv").write_text(text)
    child = os.fork()
    if child == 0:
        import signal

        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, 200_000))
        try:
            prepare(tmp_path / "a.csv", tmp_path / "log")
        except DataError as error:
            os._exit(42 if "disk is full" in str(error) else 1)
        os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 42
    assert sorted(os.listdir(tmp_path)) == ["a.csv"]


def test_preparing_twice_gives_the_same_bits(tmp_path):
    one, two = read(tmp_path, table()), prepare(tmp_path / "events.csv", tmp_path / "again")
    assert one.fingerprint == two.fingerprint
    assert np.array_equal(one.time, two.time)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.csv", b"user_id,item_id,timestamp\ra,b,1\rc,d,2\r", "lines that end with CR alone; convert it: tr"),
        ("a.csv", np.random.default_rng(0).bytes(5000), "is not a text file: it contains binary data"),
        ("a.csv", b"\x89PNG\r\n\x1a\n" + np.random.default_rng(1).bytes(5000), "is not a text file"),
        ("a.csv", b"x" * 300_000, "the first line is not a list of columns"),
        ("a.json", b'[{"user_id": 1, "item_id": 2, "timestamp": 3}]', "is one JSON array; write one object per line"),
        ("a.jsonl", b'[\n {"user_id": 1, "item_id": 2, "timestamp": 3}\n]', "is one JSON array"),
        ("events", b'[{"user_id": 1, "item_id": 2, "timestamp": 3}]', "is one JSON array"),
    ],
)
def test_files_of_another_kind_are_refused_with_a_remedy(tmp_path, name, content, message):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError, match=message):
        prepare(tmp_path / name, tmp_path / "log")
    assert not (tmp_path / "log").exists()


def test_a_pipe_is_refused(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(DataError, match="is a pipe or a device"):
        prepare(tmp_path / "pipe", tmp_path / "log")


@pytest.mark.parametrize("name", ["a.csv", "a.parquet"])
def test_a_column_with_two_roles_is_refused(tmp_path, name):
    table = pa.table({"user_id": ["a"], "item_id": ["b"], "timestamp": [1]})
    if name == "a.parquet":
        pq.write_table(table, tmp_path / name)
    else:
        (tmp_path / name).write_text("user_id,item_id,timestamp\na,b,1\n")
    with pytest.raises(UsageError, match="column 'item_id' is given twice"):
        prepare(tmp_path / name, tmp_path / "log", Schema(item_features=("item_id",)))


def test_a_position_names_a_column_of_delimited_text_only(tmp_path):
    (tmp_path / "a.csv").write_text("user_id,item_id,timestamp\na,b,1\n")
    (tmp_path / "a.jsonl").write_text('{"user_id": "a", "item_id": "b", "timestamp": 1}\n')
    pq.write_table(pa.table({"user_id": ["a"], "item_id": ["b"], "timestamp": [1]}), tmp_path / "a.parquet")
    assert events(prepare(tmp_path / "a.csv", tmp_path / "log", Schema(item="#1"))) == [("a", "b", 1)]
    with pytest.raises(UsageError, match="column 'user_id' is given twice"):
        prepare(tmp_path / "a.csv", tmp_path / "log", Schema(item="#0"), force=True)
    for name in ("a.jsonl", "a.parquet"):
        with pytest.raises(DataError, match="has no column '#1'; its columns are: user_id, item_id, timestamp"):
            prepare(tmp_path / name, tmp_path / "log", Schema(item="#1"), force=True)


@pytest.mark.parametrize("delimiter", ["", "abc", "é", "→", '"', "\n", "\r", ",\n"])
def test_delimiters_that_cannot_work_are_refused(tmp_path, delimiter):
    (tmp_path / "a.csv").write_text("user_id,item_id,timestamp\na,b,1\n")
    with pytest.raises(UsageError, match="--delimiter"):
        prepare(tmp_path / "a.csv", tmp_path / "log", Schema(delimiter=delimiter))


def test_the_share_of_bad_rows_does_not_count_duplicate_ids(tmp_path):
    rows = "".join(f"u,i,{k},{k}\n" for k in range(50)) + "u,i,1,1\n" * 49 + "u,i,?,99\n"
    with pytest.raises(DataError, match=r"1 of 100 rows are bad \(1\.00%"):
        read(tmp_path, "user_id,item_id,timestamp,id\n" + rows, Schema(event_id="id"), max_bad=0)
