"""Compiled parsers of field values from raw bytes: UTF-8 text, numbers, lists of numbers.

A field is the span [start, stop) of a byte array. A parser of a column takes one span per row, skips rows that are
rejected already, and records errors in `status` (a code of row_checks.py) and `bad_column`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from dynedge.data.ingest.row_checks import MISSING, NOT_A_NUMBER, NOT_FINITE, NOT_UTF8, VALID, WRONG_LIST_LENGTH
from dynedge.utils.array_type import Array
from dynedge.utils.numba_compile import compiled

_SPACE, _COMMA = 32, 44


@compiled
def _is_utf8(data: Array, at: int, stop: int) -> bool:
    """Whether data[at:stop] is valid UTF-8 without zero bytes."""
    while at < stop:
        byte = data[at]
        if byte == 0:
            return False  # a zero byte is UTF-16 or binary data, never part of an id
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
    data: Array, start: Array, stop: Array, status: Array, bad_column: Array, column: int, required: bool
) -> None:
    """Rejects rows whose text is missing (if `required`) or not UTF-8."""
    for row in range(len(status)):
        if status[row] != VALID:
            continue
        if stop[row] <= start[row]:
            if required:
                status[row], bad_column[row] = MISSING, column
        elif not _is_utf8(data, start[row], stop[row]):
            status[row], bad_column[row] = NOT_UTF8, column


_POWERS = np.array([float(f"1e{k}") for k in range(309)])


@compiled
def parse_number(data: Array, start: int, stop: int, shift: int = 0) -> tuple[float, int]:
    """Returns (value / 10^shift, status) of a decimal number. Exact up to 15 digits; beyond, within two ulp."""
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
        return 0.0, _classify_word(data, at, stop)
    if at < stop and (data[at] | 32) == 101:  # e
        at += 1
        minus = at < stop and data[at] == 45
        if at < stop and (data[at] == 45 or data[at] == 43):
            at += 1
        if at >= stop:
            return 0.0, NOT_A_NUMBER
        power = 0
        while at < stop and 48 <= data[at] <= 57:
            power = min(power * 10 + data[at] - 48, 9999)
            at += 1
        exponent += -power if minus else power
    if at != stop:
        return 0.0, NOT_A_NUMBER
    exponent -= shift
    if mantissa == 0:
        exponent = 0
    value = float(mantissa)
    if mantissa >= np.uint64(2**53) and -18 <= exponent < 0:  # does not fit a float64: split off the fraction
        ten = np.uint64(_POWERS[-exponent])
        value = float(mantissa // ten) + float(mantissa % ten) / _POWERS[-exponent]
        return -value if negative else value, VALID
    if exponent < -308:  # two steps, so that the power of ten stays finite
        value /= _POWERS[min(-exponent - 308, 308)]
        exponent = -308
    if exponent > 308:
        return 0.0, NOT_FINITE
    value = value * _POWERS[exponent] if exponent >= 0 else value / _POWERS[-exponent]
    if not np.isfinite(value):
        return 0.0, NOT_FINITE
    return -value if negative else value, VALID


@compiled
def _classify_word(data: Array, at: int, stop: int) -> int:
    """Returns the status of text without digits: nan, inf and infinity are not finite, the rest is not a number."""
    length = stop - at
    if length in (3, 8):
        a, b, c = data[at] | 32, data[at + 1] | 32, data[at + 2] | 32
        if (a == 110 and b == 97 and c == 110 and length == 3) or (a == 105 and b == 110 and c == 102):
            return NOT_FINITE
    return NOT_A_NUMBER


@compiled
def parse_numbers(
    data: Array, start: Array, stop: Array, status: Array, bad_column: Array, column: int, out: Array
) -> None:
    """Parses the numbers of one column into `out`; true and false, common in labels, are 1 and 0."""
    for row in range(len(status)):
        if status[row] != VALID:
            continue
        value, error = parse_number(data, start[row], stop[row])
        if error == NOT_A_NUMBER:
            length, letter = stop[row] - start[row], data[start[row]] | 32
            if length == 4 and letter == 116 and data[start[row] + 3] | 32 == 101:  # true
                value, error = 1.0, VALID
            elif length == 5 and letter == 102 and data[start[row] + 4] | 32 == 101:  # false
                value, error = 0.0, VALID
        if error != VALID:
            status[row], bad_column[row] = error, column
        out[row] = value


@compiled
def _is_list_separator(byte: int) -> bool:
    return byte in (_SPACE, _COMMA, 91, 93, 59, 40, 41, 124)  # space , [ ] ; ( ) |


@compiled
def parse_list(data: Array, start: int, stop: int, out: Array) -> tuple[int, int]:
    """Returns (count, status) of a packed list such as 0.1,0.2 or [0.1 0.2]; writes the first len(out) numbers."""
    count, at = 0, start
    while at < stop:
        while at < stop and _is_list_separator(data[at]):
            at += 1
        if at >= stop:
            break
        begin = at
        while at < stop and not _is_list_separator(data[at]):
            at += 1
        value, error = parse_number(data, begin, at)
        if error != VALID:
            return count, error
        if count < len(out):
            out[count] = value
        count += 1
    return count, VALID


@compiled
def parse_lists(
    data: Array, start: Array, stop: Array, status: Array, bad_column: Array, column: int, out: Array
) -> None:
    """Parses packed lists into the rows of `out`; every list must have as many numbers as `out` has columns."""
    for row in range(len(status)):
        if status[row] != VALID:
            continue
        if stop[row] <= start[row]:
            status[row], bad_column[row] = MISSING, column
            continue
        count, error = parse_list(data, start[row], stop[row], out[row])
        if error == VALID and count != out.shape[1]:
            error = WRONG_LIST_LENGTH
        if error != VALID:
            status[row], bad_column[row] = error, column


def as_field(text: bytes) -> tuple[Array, np.int32, np.int32]:
    """Returns a text as a field of a block: bytes, start and stop, of the types that parsers are compiled for."""
    return np.frombuffer(bytearray(text), np.uint8), np.int32(0), np.int32(len(text))


def number_or_none(text: bytes) -> float | None:
    """Returns the number in a text, or None if it is not one."""
    value, error = parse_number(*as_field(text), 0)
    return value if error == VALID else None
