"""Numbers, times and UTF-8 parsed from bytes, against Python's float, datetime and decode."""

import math
from datetime import UTC, datetime, timedelta, timezone

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dynedge.data.ingest import row_checks, value_parsers
from dynedge.data.ingest.time_parser import ISO, parse_times


def number(text: bytes) -> tuple[float, int]:
    return value_parsers.parse_number(np.frombuffer(text, np.uint8), 0, len(text))


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_any_float_is_parsed_within_two_units_in_the_last_place(x):
    value, status = number(repr(x).encode())
    assert status == row_checks.VALID
    assert abs(value - x) <= 2 * math.ulp(x)


@given(
    st.text("0123456789", min_size=20, max_size=40), st.integers(0, 40), st.sampled_from(["", "-", "0." + 25 * "0"])
)
def test_decimals_with_more_digits_than_fit_an_integer(digits, point, start):
    text = f"{start}{digits}" if "." in start else f"{start}{digits[:point]}.{digits[point:]}"
    value, status = number(text.encode())
    assert status == row_checks.VALID
    assert abs(value - float(text)) <= 2 * math.ulp(float(text))


@given(st.integers(-(10**15) + 1, 10**15 - 1), st.integers(0, 15))
def test_up_to_fifteen_digits_are_exact(digits, places):
    text = f"{digits:d}e-{places}"
    assert number(text.encode()) == (float(text), row_checks.VALID)


@pytest.mark.parametrize("text", [b"nan", b"NaN", b"inf", b"-Infinity", b"1e999", b"-1e310"])
def test_numbers_that_are_not_finite_have_their_own_status(text):
    assert number(text)[1] == row_checks.NOT_FINITE


@pytest.mark.parametrize("text", [b"x", b"1x", b"1.2.3", b"--1", b"1e", b"e5", b".", b"-", b"1 2", b"0x10", b"1_000"])
def test_text_that_is_not_a_number(text):
    assert number(text)[1] == row_checks.NOT_A_NUMBER


def test_empty_text_is_missing_and_surrounding_spaces_are_ignored():
    assert number(b"")[1] == number(b"  ")[1] == row_checks.MISSING
    assert number(b" 1.5 ") == (1.5, row_checks.VALID)


def times(texts: list[bytes], unit: int) -> tuple[np.ndarray, np.ndarray]:
    stop = np.cumsum([len(text) for text in texts])
    start = stop - [len(text) for text in texts]
    status, bad_column, out = np.zeros(len(texts), np.uint8), np.zeros(len(texts), np.int32), np.zeros(len(texts))
    parse_times(np.frombuffer(b"".join(texts), np.uint8), start, stop, status, bad_column, 2, unit, out)
    return out, status


@given(
    st.datetimes(datetime(1970, 1, 2), datetime(2199, 12, 30)),
    st.integers(-23 * 60, 23 * 60),
    st.sampled_from(["T", " "]),
)
def test_iso_times_with_offsets_equal_datetime(value, offset, separator):
    value = value.replace(tzinfo=timezone(timedelta(minutes=offset)))
    out, status = times([value.isoformat(separator).encode()], ISO)
    assert status[0] == row_checks.VALID
    assert abs(out[0] - value.timestamp()) < 1e-6


def test_iso_times_without_an_offset_are_utc_in_any_local_time_zone():
    texts = [b"2017-11-25", b"2017-11-25T08:30", b"2017-11-25 08:30:59.25Z", b"2016-02-29", b"2000-02-29"]
    out, status = times([*texts, b"2017-11-25T08:30:59.2500000000000000000000000"], ISO)
    expected = [
        (2017, 11, 25),
        (2017, 11, 25, 8, 30),
        (2017, 11, 25, 8, 30, 59, 250000),
        (2016, 2, 29),
        (2000, 2, 29),
    ]
    expected.append(expected[2])
    assert not status.any()
    assert out.tolist() == [datetime(*parts, tzinfo=UTC).timestamp() for parts in expected]


@pytest.mark.parametrize(
    "text",
    [
        b"2017-02-29",
        b"2100-02-29",
        b"2017-13-01",
        b"2017-1-1",
        b"20171125",
        b"2017-11-25T",
        b"2017-11-25T25:00",
        b"x",
        b"12",
    ],
)
def test_text_that_is_not_an_iso_time(text):
    assert times([text], ISO)[1][0] == row_checks.NOT_ISO


def test_times_out_of_range_have_their_own_status():
    _, status = times([b"-1", b"99999999999", b"nan", b"", b"7258118400"], 0)
    assert status.tolist() == [
        row_checks.NEGATIVE_TIME,
        row_checks.TIME_TOO_LATE,
        row_checks.NOT_FINITE,
        row_checks.MISSING,
        row_checks.VALID,
    ]
    assert times([b"1969-12-31T23:59:59Z"], ISO)[1][0] == row_checks.NEGATIVE_TIME


@pytest.mark.parametrize(("unit", "text"), [(0, b"1.25"), (3, b"1250"), (6, b"1250000"), (9, b"1250000000")])
def test_time_units(unit, text):
    assert times([text], unit)[0][0] == 1.25


BORDERS = [  # of what UTF-8 allows: overlong forms, surrogates, the last character
    *(b"\xc1\xbf", b"\xc2\x80", b"\xe0\x9f\xbf", b"\xe0\xa0\x80", b"\xed\x9f\xbf", b"\xed\xa0\x80", b"\xee\x80\x80"),
    *(b"\xf0\x8f\xbf\xbf", b"\xf0\x90\x80\x80", b"\xf4\x8f\xbf\xbf", b"\xf4\x90\x80\x80", b"\xf5\x80\x80\x80"),
]


@given(st.one_of(st.binary(max_size=12), st.sampled_from(BORDERS)))
def test_utf8_is_checked_as_by_decode(text):
    data = np.frombuffer(text + b"\x80\x80\x80", np.uint8)  # the bytes after the field must not be read as part of it
    status, bad_column = np.zeros(1, np.uint8), np.zeros(1, np.int32)
    value_parsers.check_texts(data, np.array([0]), np.array([len(text)]), status, bad_column, 0, False)
    try:
        valid = "\0" not in text.decode()
    except UnicodeDecodeError:
        valid = False
    assert (status[0] == row_checks.VALID) == valid
