"""Numbers and times from bytes, against Python's own float and datetime."""

import math
from datetime import UTC, datetime, timedelta, timezone

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dynedge.data.ingest import parsers as v


def number(text: bytes) -> tuple[float, int]:
    return v.parse_number(np.frombuffer(text, np.uint8), 0, len(text))


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_any_float_that_python_writes_is_read_within_one_unit_in_the_last_place(x):
    value, bad = number(repr(x).encode())
    assert bad == v.GOOD
    assert abs(value - x) <= 2 * math.ulp(x)


@given(st.integers(-(10**15) + 1, 10**15 - 1), st.integers(0, 15))
def test_up_to_fifteen_digits_are_exact(digits, places):
    text = f"{digits:d}e-{places}"
    assert number(text.encode()) == (float(text), v.GOOD)


@pytest.mark.parametrize("text", [b"nan", b"NaN", b"inf", b"-Infinity", b"1e999", b"-1e310"])
def test_numbers_that_are_not_finite(text):
    assert number(text)[1] == v.NOT_FINITE


@pytest.mark.parametrize("text", [b"x", b"1x", b"1.2.3", b"--1", b"1e", b"e5", b".", b"-", b"1 2", b"0x10", b"1_000"])
def test_what_is_no_number(text):
    assert number(text)[1] == v.UNPARSABLE


def test_nothing_is_missing_and_spaces_around_are_fine():
    assert number(b"")[1] == number(b"  ")[1] == v.MISSING
    assert number(b" 1.5 ") == (1.5, v.GOOD)


def times(texts: list[bytes], unit: int) -> tuple[np.ndarray, np.ndarray]:
    stop = np.cumsum([len(text) for text in texts])
    start = stop - [len(text) for text in texts]
    status, where, out = np.zeros(len(texts), np.uint8), np.zeros(len(texts), np.int32), np.zeros(len(texts))
    v.parse_times(np.frombuffer(b"".join(texts), np.uint8), start, stop, status, where, 2, unit, out)
    return out, status


@given(
    st.datetimes(datetime(1970, 1, 2), datetime(2199, 12, 30)),
    st.integers(-23 * 60, 23 * 60),
    st.sampled_from(["T", " "]),
)
def test_iso_times_with_offsets_as_datetime_reads_them(moment, offset, separator):
    moment = moment.replace(tzinfo=timezone(timedelta(minutes=offset)))
    out, status = times([moment.isoformat(separator).encode()], v.ISO)
    assert status[0] == v.GOOD
    assert abs(out[0] - moment.timestamp()) < 1e-6


def test_iso_without_an_offset_is_utc_whatever_the_machine_thinks():
    out, status = times([b"2017-11-25", b"2017-11-25T08:30", b"2017-11-25 08:30:59.25Z", b"2016-02-29"], v.ISO)
    expected = [(2017, 11, 25), (2017, 11, 25, 8, 30), (2017, 11, 25, 8, 30, 59, 250000), (2016, 2, 29)]
    assert not status.any()
    assert out.tolist() == [datetime(*parts, tzinfo=UTC).timestamp() for parts in expected]


@pytest.mark.parametrize(
    "text", [b"2017-02-29", b"2017-13-01", b"2017-1-1", b"20171125", b"2017-11-25T", b"2017-11-25T25:00", b"x", b"12"]
)
def test_what_is_no_iso_time(text):
    assert times([text], v.ISO)[1][0] == v.UNPARSABLE


def test_times_out_of_range_say_why():
    _, status = times([b"-1", b"99999999999", b"nan", b"", b"7258118400"], 0)
    assert status.tolist() == [v.NEGATIVE_TIME, v.ABSURD_TIME, v.NOT_FINITE, v.MISSING, v.GOOD]
    assert times([b"1969-12-31T23:59:59Z"], v.ISO)[1][0] == v.NEGATIVE_TIME


@pytest.mark.parametrize(("unit", "text"), [(0, b"1.25"), (3, b"1250"), (6, b"1250000"), (9, b"1250000000")])
def test_units(unit, text):
    assert times([text], unit)[0][0] == 1.25


@given(st.binary(max_size=12))
def test_utf8_as_python_sees_it(text):
    data = np.frombuffer(text + b"\x80\x80\x80", np.uint8)  # what follows must not be taken for part of it
    status, where = np.zeros(1, np.uint8), np.zeros(1, np.int32)
    v.check_texts(data, np.array([0]), np.array([len(text)]), status, where, 0, False)
    try:
        good = "\0" not in text.decode()
    except UnicodeDecodeError:
        good = False
    assert (status[0] == v.GOOD) == good
