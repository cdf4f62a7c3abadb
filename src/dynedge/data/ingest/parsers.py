"""The values of fields, parsed from raw bytes: numbers, lists, times, text; and what can be wrong with them."""

from __future__ import annotations

from typing import Any

import numpy as np

from dynedge.utils.arrays import Array
from dynedge.utils.compile import compiled

GOOD, COUNT, UNCLOSED, AFTER_QUOTE, NOT_JSON, MISSING, UNPARSABLE, NOT_FINITE = range(8)
NEGATIVE_TIME, ABSURD_TIME, ENCODING, WIDTH, DUPLICATE, NOT_AN_ID = range(8, 14)

REASONS = {
    COUNT: "wrong number of columns",
    UNCLOSED: "a quote is opened and never closed",
    AFTER_QUOTE: "text after a closing quote",
    NOT_JSON: "not a JSON object",
    MISSING: "missing value",
    UNPARSABLE: "not a number",
    NOT_FINITE: "not a finite number",
    NEGATIVE_TIME: "negative time",
    ABSURD_TIME: "time after the year 2200",
    ENCODING: "not valid UTF-8",
    WIDTH: "wrong number of values in the list",
    DUPLICATE: "event id seen before",
    NOT_AN_ID: "neither text nor a whole number",
}

_SPACE, _COMMA, _COLON = 32, 44, 58


@compiled
def _is_utf8(data: Array, at: int, stop: int) -> bool:
    while at < stop:
        byte = data[at]
        if byte == 0:
            return False  # a zero byte is UTF-16 or rubbish, never part of an id
        if byte < 0x80:
            at += 1
            continue
        if 0xC2 <= byte < 0xE0:
            more, low, high = 1, 0x80, 0xC0
        elif 0xE0 <= byte < 0xF0:
            more, low, high = 2, 0xA0 if byte == 0xE0 else 0x80, 0xA0 if byte == 0xED else 0xC0
        elif 0xF0 <= byte < 0xF5:
            more, low, high = 3, 0x90 if byte == 0xF0 else 0x80, 0x90 if byte == 0xF4 else 0xC0
        else:
            return False
        if at + more >= stop or not low <= data[at + 1] < high:
            return False
        for k in range(2, more + 1):
            if not 0x80 <= data[at + k] < 0xC0:
                return False
        at += more + 1
    return True


@compiled
def check_texts(
    data: Array, start: Array, stop: Array, status: Array, where: Array, column: int, needed: bool
) -> None:
    """Mark rows whose text is missing (when `needed`) or not UTF-8."""
    for row in range(len(status)):
        if status[row] != GOOD:
            continue
        if stop[row] <= start[row]:
            if needed:
                status[row], where[row] = MISSING, column
        elif not _is_utf8(data, start[row], stop[row]):
            status[row], where[row] = ENCODING, column


_POWERS = np.array([float(f"1e{k}") for k in range(309)])


@compiled
def parse_number(data: Array, start: int, stop: int, shift: int = 0) -> tuple[float, int]:
    """(value / 10^shift, status) of a decimal number. Exact up to 15 digits; beyond, to the last place but one."""
    while start < stop and data[start] == _SPACE:
        start += 1
    while start < stop and data[stop - 1] == _SPACE:
        stop -= 1
    if stop <= start:
        return 0.0, MISSING
    at, negative = start, data[start] == 45
    if data[at] == 45 or data[at] == 43:
        at += 1
    mantissa, seen, dot = np.uint64(0), False, False
    digits: Any = 0
    exponent: Any = 0
    while at < stop:
        byte = data[at]
        if 48 <= byte <= 57:
            seen = True
            if digits < 19:
                mantissa = mantissa * np.uint64(10) + np.uint64(byte - 48)
                digits += mantissa > 0
                exponent -= dot
            else:
                exponent += not dot
        elif byte == 46 and not dot:
            dot = True
        else:
            break
        at += 1
    if not seen:
        return 0.0, _odd_number(data, at, stop)
    if at < stop and (data[at] | 32) == 101:  # e
        at += 1
        minus = at < stop and data[at] == 45
        if at < stop and (data[at] == 45 or data[at] == 43):
            at += 1
        if at >= stop:
            return 0.0, UNPARSABLE
        power = 0
        while at < stop and 48 <= data[at] <= 57:
            power = min(power * 10 + data[at] - 48, 9999)
            at += 1
        exponent += -power if minus else power
    if at != stop:
        return 0.0, UNPARSABLE
    exponent -= shift
    if mantissa == 0:
        exponent = 0
    value = float(mantissa)
    if mantissa >= np.uint64(2**53) and -18 <= exponent < 0:  # more digits than a float holds: whole and rest apart
        ten = np.uint64(_POWERS[-exponent])
        value = float(mantissa // ten) + float(mantissa % ten) / _POWERS[-exponent]
        return -value if negative else value, GOOD
    if exponent < -308:  # two steps, so that the power of ten stays a number
        value /= _POWERS[min(-exponent - 308, 308)]
        exponent = -308
    if exponent > 308:
        return 0.0, NOT_FINITE
    value = value * _POWERS[exponent] if exponent >= 0 else value / _POWERS[-exponent]
    if not np.isfinite(value):
        return 0.0, NOT_FINITE
    return -value if negative else value, GOOD


@compiled
def _odd_number(data: Array, at: int, stop: int) -> int:
    """What a number without digits is: nan, inf and infinity are numbers that are not finite, the rest is none."""
    length = stop - at
    if length in (3, 8):
        a, b, c = data[at] | 32, data[at + 1] | 32, data[at + 2] | 32
        if (a == 110 and b == 97 and c == 110 and length == 3) or (a == 105 and b == 110 and c == 102):
            return NOT_FINITE
    return UNPARSABLE


@compiled
def parse_numbers(
    data: Array, start: Array, stop: Array, status: Array, where: Array, column: int, out: Array
) -> None:
    """Numbers of one column; true and false count as 1 and 0, as labels are often written."""
    for row in range(len(status)):
        if status[row] != GOOD:
            continue
        value, bad = parse_number(data, start[row], stop[row])
        if bad == UNPARSABLE:
            length, letter = stop[row] - start[row], data[start[row]] | 32
            if length == 4 and letter == 116 and data[start[row] + 3] | 32 == 101:  # true
                value, bad = 1.0, GOOD
            elif length == 5 and letter == 102 and data[start[row] + 4] | 32 == 101:  # false
                value, bad = 0.0, GOOD
        if bad != GOOD:
            status[row], where[row] = bad, column
        out[row] = value


@compiled
def _is_list_gap(byte: int) -> bool:
    return byte in (_SPACE, _COMMA, 91, 93, 59, 40, 41, 124)  # space , [ ] ; ( ) |


@compiled
def parse_list(data: Array, start: int, stop: int, out: Array) -> tuple[int, int]:
    """(count, status) of the numbers in a packed list such as 0.1,0.2 or [0.1 0.2]; fills `out` as far as it goes."""
    count, at = 0, start
    while at < stop:
        while at < stop and _is_list_gap(data[at]):
            at += 1
        if at >= stop:
            break
        begin = at
        while at < stop and not _is_list_gap(data[at]):
            at += 1
        value, bad = parse_number(data, begin, at)
        if bad != GOOD:
            return count, bad
        if count < len(out):
            out[count] = value
        count += 1
    return count, GOOD


@compiled
def parse_lists(data: Array, start: Array, stop: Array, status: Array, where: Array, column: int, out: Array) -> None:
    """The packed feature column: every row must hold as many numbers as `out` is wide."""
    for row in range(len(status)):
        if status[row] != GOOD:
            continue
        if stop[row] <= start[row]:
            status[row], where[row] = MISSING, column
            continue
        count, bad = parse_list(data, start[row], stop[row], out[row])
        if bad == GOOD and count != out.shape[1]:
            bad = WIDTH
        if bad != GOOD:
            status[row], where[row] = bad, column


# ---- time


@compiled
def _digits(data: Array, at: int, stop: int, count: int) -> int:
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
    """Days since 1970-01-01 of a date in the Gregorian calendar; counts years from March, so leap days come last."""
    y = year - (month <= 2)
    era = y // 400
    of_era = y - era * 400
    of_year = (153 * (month + (-3 if month > 2 else 9)) + 2) // 5 + day - 1
    return era * 146097 + of_era * 365 + of_era // 4 - of_era // 100 + of_year - 719468


@compiled
def _iso(data: Array, at: int, stop: int) -> tuple[float, bool]:
    """ISO 8601: 2017-11-25, 2017-11-25T08:30, …:59.25, with Z or an offset; without one it is UTC."""
    year, month, day = _digits(data, at, stop, 4), _digits(data, at + 5, stop, 2), _digits(data, at + 8, stop, 2)
    if year < 0 or day < 0 or not 1 <= month <= 12 or data[at + 4] != 45 or data[at + 7] != 45:
        return 0.0, False
    longest = 30 if month in (4, 6, 9, 11) else 31
    if month == 2:
        longest = 29 if year % 4 == 0 and (year % 100 != 0 or year % 400 == 0) else 28
    if not 1 <= day <= longest:
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
        if not 0 <= second <= 60:  # 60: a leap second counts as the next minute's first
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


ISO = -1
LATEST_S = 7_258_118_400.0  # 2200-01-01


@compiled
def parse_times(
    data: Array, start: Array, stop: Array, status: Array, where: Array, column: int, unit: int, out: Array
) -> None:
    """Times in seconds. `unit` is k for numbers in units of 10^-k seconds, ISO for ISO 8601."""
    for row in range(len(status)):
        if status[row] != GOOD:
            continue
        if unit == ISO:
            bad = MISSING if stop[row] <= start[row] else GOOD
            value = 0.0
            if bad == GOOD:
                value, fine = _iso(data, start[row], stop[row])
                bad = GOOD if fine else UNPARSABLE
        else:
            value, bad = parse_number(data, start[row], stop[row], unit)
        if bad == GOOD:
            bad = check_time(value)
        if bad != GOOD:
            status[row], where[row] = bad, column
        out[row] = value


@compiled
def check_time(seconds: float) -> int:
    if not np.isfinite(seconds):
        return NOT_FINITE
    if seconds < 0.0:
        return NEGATIVE_TIME
    return ABSURD_TIME if seconds > LATEST_S else GOOD


def looks_iso(text: bytes) -> bool:
    data = np.frombuffer(text, np.uint8)
    return bool(_iso(data, 0, len(data))[1])


def number_or_none(text: bytes) -> float | None:
    data = np.frombuffer(text, np.uint8)
    value, bad = parse_number(data, 0, len(data))
    return value if bad == GOOD else None
