"""JSON lines: blocks that pyarrow reads, blocks that are read line by line, and a plain reference reader of both."""

import json
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dynedge.data.ingest import json_lines, text_reader
from dynedge.data.ingest.pipeline import prepare
from dynedge.data.ingest.schema import Schema
from dynedge.data.log import read_log
from tests.data.ingest.test_pipeline import events, read, rejects

GOOD = '{"user_id": "u", "item_id": "i", "timestamp": 1}'


def read_json(tmp_path, lines, schema=None, **more):
    text = lines if isinstance(lines, bytes) else "\n".join(lines)
    return read(tmp_path, text, schema, name="a.jsonl", **more)


# ---- what a line may be


@pytest.mark.parametrize(
    "line",
    [
        f"{GOOD} {GOOD}",  # two objects
        '{"user_id": "u", "item_id": "i",\n"timestamp": 1}',  # an object in two lines: both are bad
        '{"user_id": "u", "item_id": "i", "timestamp": 1, "more": [1 2]}',
        '{"user_id": "u", "item_id": "i", "timestamp": 1, "more": "\\ud800"}',
        '{"user_id": "\\ud83d", "item_id": "i", "timestamp": 1}',
        '{"user_id": "\\x41", "item_id": "i", "timestamp": 1}',
        '{"user_id": "a\tb", "item_id": "i", "timestamp": 1}',
        '{"user_id": 01, "item_id": "i", "timestamp": 1}',
        '{"user_id": "u", "item_id": "i", "timestamp": +1}',
        '{"user_id": "u", "item_id": "i", "timestamp": 1}\x00',
        '"text"',
        "null",
        "[" * 100_000,
    ],
)
def test_lines_that_are_not_one_object_are_rejected(tmp_path, line):
    log = read_json(tmp_path, [GOOD, line, GOOD])
    bad = range(2, 3 + line.count("\n"))
    assert (len(log), [(row[0], row[3]) for row in rejects(log.path)]) == (2, [(k, "not a JSON object") for k in bad])
    shown = line.split("\n")[0][:200].replace("\0", "\\x00")
    assert rejects(log.path)[0][2] == shown, "as in the file"


def test_objects_that_need_care_are_read(tmp_path):
    lines = [
        '{"user_id": "first", "user_id": "last", "item_id": "i", "timestamp": 1}',
        '{"\\u0075ser_id": "escaped", "item_id": "i", "timestamp": 1}',
        '\t {"user_id" : "spaces" , "item_id":"i" ,"timestamp":1 } \r',
        '{"user_id": 1.50, "item_id": "i", "timestamp": "1"}',
        '{"user_id": true, "item_id": 18446744073709551616, "timestamp": 1e0}',
        '{"user_id": "nested", "item_id": "i", "timestamp": 1, "more": {"user_id": ["}", "{\\"", 2]}}',
        '{"user_id": NaN, "item_id": "i", "timestamp": 1}',
        "",
        " \t\r",
        '{"user_id": "last", "item_id": "i", "timestamp": 1}',
    ]
    log = read_json(tmp_path, lines)
    users = ["last", "escaped", "spaces", "1.50", "true", "nested", "NaN", "last"]
    assert [user for user, _, _ in events(log)] == users
    assert events(log)[4][1] == "18446744073709551616"
    assert rejects(log.path) == []


def test_rejected_values_are_shown_as_in_the_file(tmp_path):
    lines = [
        '{"user_id": 1, "item_id": 2, "timestamp": 3.0, "y": 1, "v": [1,2]}',
        '{"user_id": 1, "item_id": 2, "timestamp": -4.50, "y": 1, "v": [1,2]}',
        '{"user_id": 1, "item_id": 2, "timestamp": 1e12, "y": 1, "v": [1,2]}',
        '{"user_id": 1, "item_id": 2, "timestamp": 3.0, "y": 1e39, "v": [1,2]}',
        '{"user_id": 1, "item_id": 2, "timestamp": 3.0, "y": NaN, "v": [1,2]}',
        '{"user_id": 1, "item_id": 2, "timestamp": 3.0, "y": 1, "v": [1,2, 3e0]}',
        '{"user_id": 1, "item_id": 2, "timestamp": 3.0, "y": null, "v": [1,2]}',
        '{"item_id": 2, "timestamp": 3.0, "y": 1, "v": [1,2]}',
    ]
    expected = [
        (2, "timestamp", "-4.50", "negative time"),
        (3, "timestamp", "1e12", "time after the year 2200"),
        (4, "y", "1e39", "not a finite number"),
        (5, "y", "NaN", "not a finite number"),
        (6, "v", "[1,2, 3e0]", "wrong number of values in the list"),
        (7, "y", "", "missing value"),
        (8, "user_id", "", "missing value"),
    ]
    schema = Schema(label="y", features=("v",), time_unit="s")
    log = read_json(tmp_path, lines, schema)
    assert rejects(log.path) == expected
    log = read_json(tmp_path, [*lines, "{"], schema)  # now read line by line
    assert rejects(log.path) == [*expected, (9, "", "{", "not a JSON object")]


# ---- blocks


def test_one_bad_line_costs_its_neighbourhood_only(tmp_path, monkeypatch):
    """A large block with one bad line is read by pyarrow but for a small part, and its line numbers are right."""
    slow = []
    line_by_line = json_lines.JsonLines._read_line_by_line
    monkeypatch.setattr(
        json_lines.JsonLines,
        "_read_line_by_line",
        lambda self, data, line: slow.append(len(data)) or line_by_line(self, data, line),
    )
    lines = [json.dumps({"user_id": k, "item_id": f"i{k % 7}", "timestamp": k}) for k in range(30_000)]
    lines[7_000] = lines[7_000][:-1]
    lines[20_000] = lines[20_000].replace(": 20000", ": -20000")
    log = read_json(tmp_path, lines)
    assert rejects(log.path) == [
        (7_001, "", lines[7_000], "not a JSON object"),
        (20_001, "timestamp", "-20000", "negative time"),
    ]
    assert [user for user, _, _ in events(log)] == [k for k in range(30_000) if k not in (7_000, 20_000)]
    assert 0 < sum(slow) <= json_lines.SLOW_BYTES


def test_types_may_change_in_the_middle_of_a_file(tmp_path):
    early = [{"user_id": k, "item_id": k, "timestamp": k} for k in range(5000)]
    late = [{"user_id": f"u{k}", "item_id": k / 2, "timestamp": str(k)} for k in range(5000, 10_000)]
    log = read_json(tmp_path, [json.dumps(row) for row in early + late])
    assert events(log) == [(str(r["user_id"]), str(r["item_id"]), float(r["timestamp"])) for r in early + late]


@pytest.mark.parametrize("unit", ["ms", "us", "ns"])
def test_times_have_the_bits_of_the_same_digits_in_csv(tmp_path, unit):
    scale = {"ms": 10**3, "us": 10**6, "ns": 10**9}[unit]
    numbers = [int(digits) for digits in np.random.default_rng(0).integers(0, 7_000_000_000 * scale, 2000)]
    (tmp_path / "a.csv").write_text("user_id,item_id,timestamp\n" + "".join(f"u,i,{k}\n" for k in numbers))
    csv_log = prepare(tmp_path / "a.csv", tmp_path / "csv", Schema(time_unit=unit))
    lines = [json.dumps({"user_id": "u", "item_id": "i", "timestamp": k}) for k in numbers]
    assert np.array_equal(read_json(tmp_path, lines, Schema(time_unit=unit)).time, csv_log.time)


def test_a_log_from_large_floats_has_no_rounded_nanoseconds(tmp_path):
    lines = [
        json.dumps({"user_id": 1, "item_id": 2, "timestamp": t})
        for t in (1.5, 1500000000250000001, 1500000000250000009)
    ]
    log = read_json(tmp_path, lines, Schema(time_unit="ns"))
    assert log.time.tolist()[1:] == [1500000000.250000001, 1500000000.250000009]


def test_a_nested_id_is_rejected_with_its_column(tmp_path):
    lines = [json.dumps({"user_id": u, "item_id": i, "timestamp": 1}) for u, i in (("u", ["i"]), ({}, 1), ("u", 1))]
    assert rejects(read_json(tmp_path, lines).path) == [
        (1, "item_id", '["i"]', "neither text nor an integer"),
        (2, "user_id", "{}", "neither text nor an integer"),
    ]


def test_numbers_are_not_iso_times(tmp_path):
    times = ("2017-07-14", "2017-07-15", 1500000000)
    lines = [json.dumps({"user_id": "u", "item_id": "i", "timestamp": t}) for t in times]
    for block in (70, 1 << 20):  # the number in a block of its own, or in one with the text
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(text_reader, "BLOCK_BYTES", block)
            log = read_json(tmp_path, lines)
        assert rejects(log.path) == [(3, "timestamp", "1500000000", "not an ISO 8601 time")]


def test_a_first_block_without_a_valid_row_leaves_the_list_length_open(tmp_path, monkeypatch):
    monkeypatch.setattr(text_reader, "BLOCK_BYTES", 80)
    rows = [{"user_id": None, "item_id": 1, "timestamp": 1, "v": [1, 2]}] * 3
    rows += [{"user_id": 1, "item_id": 1, "timestamp": 1, "v": [1, 2]}]
    log = read_json(tmp_path, [json.dumps(row) for row in rows], Schema(features=("v",)))
    assert log.features.tolist() == [[1, 2]]


# ---- against a plain reference reader


def reference_reader(text: bytes):
    """Returns (accepted rows, rejected lines with reasons); the columns are user_id, item_id, timestamp and y."""
    accepted, rejected = [], []
    for number, line in enumerate(text.split(b"\n"), start=1):
        if not line.strip(b" \t\r"):
            continue
        try:
            row = json.loads(line.decode(errors="surrogateescape"), parse_int=Number, parse_float=Number)
            values = [value_text(row.get(name)) for name in ("user_id", "item_id", "timestamp", "y")]
            assert isinstance(row, dict)
        except (ValueError, AttributeError):
            rejected.append((number, "not a JSON object"))
            continue
        reason = reason_to_reject(values)
        if reason:
            rejected.append((number, reason))
        else:
            accepted.append((values[0], values[1], float(values[2]), np.float32(number_of(values[3]))))
    return sorted(accepted, key=lambda row: row[2]), rejected


class Number(str):
    """A number as written."""


def value_text(value):
    if value is None or isinstance(value, Number):
        return value
    if isinstance(value, str):
        value.encode(errors="surrogateescape")  # raises for half a surrogate pair
        return value
    return json.dumps(value) if isinstance(value, bool | float) else ["nested"]


def number_of(text):
    return {"true": 1.0, "false": 0.0}.get(text) if text in ("true", "false") else float(text)


def reason_to_reject(values):
    if ["nested"] in values:
        return "neither text nor an integer"
    for text in values[:2]:
        if not text:
            return "missing value"
        if any("\udc80" <= letter <= "\udcff" or letter == "\0" for letter in text):
            return "not valid UTF-8, or with a NUL character"
    for text, is_time in ((values[2], True), (values[3], False)):
        if not text or not text.strip(" "):
            return "missing value"
        try:
            number = float(text) if is_time else number_of(text)
        except ValueError:
            return "not a number"
        if not math.isfinite(number) or (not is_time and abs(number) > 3.5e38):  # a label is a float32
            return "not a finite number"
        if is_time and not 0 <= number <= 7258118400:
            return "negative time" if number < 0 else "time after the year 2200"
    return None


ids = st.one_of(
    st.integers(-9, 9), st.text('aé\u20ac😀"\\\n\0 ', max_size=3), st.sampled_from([None, 1.5, True, [1], {"a": "}"}])
)
numbers = st.one_of(
    st.integers(-3, 10**10),
    st.floats(0, 100).map(lambda x: round(x, 3)),
    st.sampled_from([1e39, "7", "x", "", None, 1e12]),
)
labels = st.one_of(numbers, st.booleans(), st.just(float("nan")))
rows = st.fixed_dictionaries(
    {"user_id": ids, "item_id": ids, "timestamp": numbers},
    optional={"y": labels, "more": st.sampled_from(["}", [1, {}]])},
)
plain_rows = st.fixed_dictionaries(
    {
        "user_id": st.integers(0, 9),
        "item_id": st.text("ab", min_size=1),
        "timestamp": st.integers(0, 99),
        "y": st.booleans(),
    }
)


@st.composite
def json_text(draw):
    """Lines of which most are valid, some with bytes changed, and some all of one type."""
    objects = draw(st.lists(plain_rows if draw(st.booleans()) else rows, min_size=1, max_size=12))
    lines = [json.dumps(row, ensure_ascii=draw(st.booleans())).encode() for row in objects]
    for _ in range(draw(st.integers(0, 2))):
        k = draw(st.integers(0, len(lines) - 1))
        at = draw(st.integers(0, len(lines[k])))
        change = draw(st.sampled_from([b"", b"\xff", b'"', b"{", b"}", b",", b" ", b"\\", b"\n", b"\x01"]))
        lines[k] = lines[k][:at] + change + lines[k][at + draw(st.integers(0, 1)) :]
    return draw(st.sampled_from([b"\n", b"\r\n", b"\n\n"])).join(lines) + draw(st.sampled_from([b"", b"\n"]))


@given(text=json_text(), block=st.sampled_from([16, 200, 1 << 20]))
@settings(max_examples=150)
def test_messy_lines_are_read_as_by_the_reference_reader(tmp_path_factory, text, block):
    tmp_path = tmp_path_factory.mktemp("messy")
    text = b'{"user_id": "u", "item_id": "i", "timestamp": 0, "y": 0}\n' + text
    accepted, rejected = reference_reader(text)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(text_reader, "BLOCK_BYTES", block)
        read_json(tmp_path, text, Schema(label="y", time_unit="s"))
    log = read_log(tmp_path / "log")
    found = [(str(user), str(item), time) for user, item, time in events(log)]
    assert found == [row[:3] for row in accepted]
    assert log.label.tolist() == [row[3] for row in accepted]
    assert [(row[0], row[3]) for row in rejects(log.path)] == rejected
