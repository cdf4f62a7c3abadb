"""Compiled parser of times from raw bytes: numbers in a unit, and ISO 8601."""

from __future__ import annotations

import numpy as np

from dynedge.data.ingest.row_checks import MISSING, NEGATIVE_TIME, NOT_FINITE, NOT_ISO, TIME_TOO_LATE, VALID
from dynedge.data.ingest.value_parsers import as_field, parse_number
from dynedge.data.timestamps import LATEST_TIME
from dynedge.utils.array_type import Array
from dynedge.utils.numba_compile import compiled

ISO = -1
TIME_UNITS = {"s": 0, "ms": 3, "us": 6, "ns": 9, "iso": ISO}  # units of 10^-k seconds

_SPACE, _COMMA, _COLON = 32, 44, 58


@compiled
def _digits(data: Array, at: int, stop: int, count: int) -> int:
    """Returns the integer in `count` digits at `at`, or -1."""
    if at + count > stop:
        return -1
    value = 0
    for k in range(at, at + count):
        if not 48 <= data[k] <= 57:
            return -1
        value = value * 10 + data[k] - 48
    return value


@compiled
def _days(year: int, month: int, day: int) -> int:
    """Returns the days since 1970-01-01 of a Gregorian date; years start in March, so that leap days come last."""
    y = year - (month <= 2)
    era = y // 400
    of_era = y - era * 400
    of_year = (153 * (month + (-3 if month > 2 else 9)) + 2) // 5 + day - 1
    return era * 146097 + of_era * 365 + of_era // 4 - of_era // 100 + of_year - 719468


@compiled
def _parse_iso(data: Array, at: int, stop: int) -> tuple[float, bool]:
    """Returns (seconds, success) of an ISO 8601 time such as 2017-11-25T08:30:59.25Z; UTC without an offset."""
    year, month, day = _digits(data, at, stop, 4), _digits(data, at + 5, stop, 2), _digits(data, at + 8, stop, 2)
    if year < 0 or day < 0 or not 1 <= month <= 12 or data[at + 4] != 45 or data[at + 7] != 45:
        return 0.0, False
    last_day = 30 if month in (4, 6, 9, 11) else 31
    if month == 2:
        last_day = 29 if year % 4 == 0 and (year % 100 != 0 or year % 400 == 0) else 28
    if not 1 <= day <= last_day:
        return 0.0, False
    seconds, at = _days(year, month, day) * 86400, at + 10
    if at == stop:
        return float(seconds), True
    if data[at] not in (84, 116, _SPACE):  # T t
        return 0.0, False
    hour, minute = _digits(data, at + 1, stop, 2), _digits(data, at + 4, stop, 2)
    if not 0 <= hour <= 23 or not 0 <= minute <= 59 or data[at + 3] != _COLON:
        return 0.0, False
    seconds, at = seconds + hour * 3600 + minute * 60, at + 6
    fraction, scale = 0, 1.0
    if at < stop and data[at] == _COLON:
        second = _digits(data, at + 1, stop, 2)
        if not 0 <= second <= 60:  # 60: a leap second is the first second of the next minute
            return 0.0, False
        seconds, at = seconds + second, at + 3
        if at < stop and (data[at] == 46 or data[at] == _COMMA):
            at += 1
            begin = at
            while at < stop and 48 <= data[at] <= 57:
                if at - begin < 9:
                    fraction, scale = fraction * 10 + data[at] - 48, scale * 10.0
                at += 1
            if at == begin:
                return 0.0, False
    if at < stop and data[at] == _SPACE:
        at += 1
    if at < stop and (data[at] | 32) == 122:  # Z
        at += 1
    elif at < stop and (data[at] == 43 or data[at] == 45):
        sign = 1 if data[at] == 43 else -1
        hour, at = _digits(data, at + 1, stop, 2), at + 3
        if not 0 <= hour <= 23:
            return 0.0, False
        minute = 0
        if at < stop:
            at += data[at] == _COLON
            minute, at = _digits(data, at, stop, 2), at + 2
            if not 0 <= minute <= 59:
                return 0.0, False
        seconds -= sign * (hour * 3600 + minute * 60)
    return seconds + fraction / scale, at == stop


@compiled
def parse_times(
    data: Array, start: Array, stop: Array, status: Array, bad_column: Array, column: int, unit: int, out: Array
) -> None:
    """Parses the times of one column into seconds. `unit` is k for numbers in units of 10^-k seconds, or ISO."""
    for row in range(len(status)):
        if status[row] != VALID:
            continue
        if unit == ISO:
            error = MISSING if stop[row] <= start[row] else VALID
            value = 0.0
            if error == VALID:
                value, success = _parse_iso(data, start[row], stop[row])
                error = VALID if success else NOT_ISO
        else:
            value, error = parse_number(data, start[row], stop[row], unit)
        if error == VALID:
            error = check_time(value)
        if error != VALID:
            status[row], bad_column[row] = error, column
        out[row] = value


@compiled
def check_time(seconds: float) -> int:
    """Returns the status of a time: VALID if it is finite and within range."""
    if not np.isfinite(seconds):
        return NOT_FINITE
    if seconds < 0.0:
        return NEGATIVE_TIME
    return TIME_TOO_LATE if seconds > LATEST_TIME else VALID


def is_iso_time(text: bytes) -> bool:
    """Whether text is an ISO 8601 time."""
    return bool(_parse_iso(*as_field(text))[1])
