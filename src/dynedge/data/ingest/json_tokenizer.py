"""Tokenizer of JSON lines: the values of selected keys from a block of raw bytes, in a compiled loop."""

from __future__ import annotations

from dynedge.data.ingest.csv_tokenizer import line_end
from dynedge.data.ingest.row_checks import NOT_AN_ID, NOT_FINITE, NOT_JSON, VALID
from dynedge.data.ingest.value_parsers import parse_number
from dynedge.utils.array_type import Array
from dynedge.utils.numba_compile import compiled

_TAB, _RETURN, _SPACE, _QUOTE, _BACKSLASH, _COMMA, _COLON = 9, 13, 32, 34, 92, 44, 58


@compiled
def _hex4(data: Array, at: int, end: int) -> int:
    """Returns the value of four hexadecimal digits, or -1."""
    if at + 4 > end:
        return -1
    value = 0
    for k in range(at, at + 4):
        byte = data[k]
        if 48 <= byte <= 57:
            value = value * 16 + byte - 48
        elif 97 <= (byte | 32) <= 102:
            value = value * 16 + (byte | 32) - 87
        else:
            return -1
    return value


@compiled
def _put_utf8(data: Array, to: int, point: int) -> int:
    """Writes a code point as UTF-8 at `to` and returns the position after it."""
    if point < 0x80:
        data[to] = point
        return to + 1
    if point < 0x800:
        data[to], data[to + 1] = 0xC0 | point >> 6, 0x80 | point & 63
        return to + 2
    if point < 0x10000:
        data[to], data[to + 1], data[to + 2] = 0xE0 | point >> 12, 0x80 | point >> 6 & 63, 0x80 | point & 63
        return to + 3
    data[to], data[to + 1] = 0xF0 | point >> 18, 0x80 | point >> 12 & 63
    data[to + 2], data[to + 3] = 0x80 | point >> 6 & 63, 0x80 | point & 63
    return to + 4


@compiled
def _unescape(data: Array, start: int, stop: int) -> int:
    r"""Decodes JSON escapes in place (\uXXXX is never shorter than its UTF-8); returns the new end, or -1."""
    to, at = start, start
    while at < stop:
        byte = data[at]
        at += 1
        if byte != _BACKSLASH:
            data[to] = byte
            to += 1
            continue
        kind = data[at]
        at += 1
        if kind == 117:  # u
            point = _hex4(data, at, stop)
            at += 4
            if point < 0 or 0xDC00 <= point < 0xE000:
                return -1
            if point >= 0xD800 and point < 0xDC00:  # the first half of a surrogate pair
                low = _hex4(data, at + 2, stop) if at + 6 <= stop and data[at] == 92 and data[at + 1] == 117 else -1
                if not 0xDC00 <= low < 0xE000:
                    return -1
                at += 6
                point = 0x10000 + ((point - 0xD800) << 10) + (low - 0xDC00)
            to = _put_utf8(data, to, point)
            continue
        plain = 0
        if kind in (34, 92, 47):  # " \ /
            plain = kind
        elif kind == 110:  # n
            plain = 10
        elif kind == 116:  # t
            plain = 9
        elif kind == 114:  # r
            plain = 13
        elif kind == 98:  # b
            plain = 8
        elif kind == 102:  # f
            plain = 12
        else:
            return -1
        data[to] = plain
        to += 1
    return to


@compiled
def _skip_space(data: Array, at: int, end: int) -> int:
    while at < end and (data[at] == _SPACE or data[at] == _TAB or data[at] == _RETURN):
        at += 1
    return at


@compiled
def _string_end(data: Array, at: int, end: int) -> int:
    """Returns the position of the closing quote of a string that starts at `at`, or -1."""
    while at < end:
        if data[at] == _QUOTE:
            return at
        if data[at] < 32:
            return -1
        at += 2 if data[at] == _BACKSLASH else 1
    return -1


@compiled
def _value_end(data: Array, at: int, end: int) -> int:
    """Returns the end of a JSON value that is not a string, nested values included, or -1 if it is malformed."""
    depth = 0
    while at < end:
        byte = data[at]
        if byte == _QUOTE:
            at = _string_end(data, at + 1, end)
            if at < 0:
                return -1
        elif byte in (91, 123):  # [ {
            depth += 1
        elif byte in (93, 125):  # ] }
            if depth == 0:
                return at
            depth -= 1
        elif byte == _COMMA and depth == 0:
            return at
        at += 1
    return -1


@compiled
def _equal_bytes(data: Array, start: int, stop: int, text: Array, text_start: int, text_stop: int) -> bool:
    if stop - start != text_stop - text_start:
        return False
    for k in range(stop - start):  # noqa: SIM110  (numba does not support all())
        if data[start + k] != text[text_start + k]:
            return False
    return True


@compiled
def _is_literal(data: Array, start: int, stop: int) -> bool:
    """Whether a span is null, true, false or a number; NaN and Infinity pass here and are rejected as values."""
    for word in (b"null", b"true", b"false"):
        if stop - start == len(word):
            same = True
            for k in range(len(word)):
                same = same and data[start + k] == word[k]
            if same:
                return True
    error = parse_number(data, start, stop)[1]
    return error == VALID or error == NOT_FINITE  # noqa: PLR1714


@compiled
def _tokenize_object(
    data: Array, at: int, end: int, keys: Array, key_at: Array, may_nest: Array, start: Array, stop: Array
) -> int:
    """Finds the values of the keys in the object data[at:end]; returns a status. The last of equal keys wins."""
    at = _skip_space(data, at, end)
    if at >= end or data[at] != 123:
        return NOT_JSON
    at = _skip_space(data, at + 1, end)
    if at < end and data[at] == 125:
        return VALID if _skip_space(data, at + 1, end) == end else NOT_JSON
    while at < end:
        if data[at] != _QUOTE:
            return NOT_JSON
        key, close = at + 1, _string_end(data, at + 1, end)
        if close < 0:
            return NOT_JSON
        slot = -1
        for k in range(len(key_at) - 1):
            if _equal_bytes(data, key, close, keys, key_at[k], key_at[k + 1]):
                slot = k
        at = _skip_space(data, close + 1, end)
        if at >= end or data[at] != _COLON:
            return NOT_JSON
        at = _skip_space(data, at + 1, end)
        if at >= end:
            return NOT_JSON
        if data[at] == _QUOTE:
            value, close = at + 1, _string_end(data, at + 1, end)
            if close < 0:
                return NOT_JSON
            at = close + 1
            for k in range(value, close):
                if data[k] == _BACKSLASH:
                    close = _unescape(data, value, close)
                    break
            if close < 0:
                return NOT_JSON
            if slot >= 0:
                start[slot], stop[slot] = value, close
        else:
            value, after = at, _value_end(data, at, end)
            if after <= value:
                return NOT_JSON
            at, close = after, after
            while close > value and (data[close - 1] == _SPACE or data[close - 1] == _TAB):
                close -= 1
            if data[value] == 91 or data[value] == 123:  # [ {
                if slot >= 0 and not may_nest[slot]:
                    return NOT_AN_ID
            elif not _is_literal(data, value, close):
                return NOT_JSON
            if slot >= 0:
                start[slot], stop[slot] = value, close
                if data[value] == 110:  # null
                    start[slot], stop[slot] = 0, -1
        at = _skip_space(data, at, end)
        if at >= end:
            return NOT_JSON
        if data[at] == 125:
            return VALID if _skip_space(data, at + 1, end) == end else NOT_JSON
        if data[at] != _COMMA:
            return NOT_JSON
        at = _skip_space(data, at + 1, end)
    return NOT_JSON


@compiled
def tokenize_json(
    data: Array,
    end: int,
    final: bool,
    keys: Array,  # uint8: the concatenated keys to read
    key_at: Array,  # int64[slots + 1]: offset of each key
    may_nest: Array,  # bool[slots]: whether the value may be a list
    first_line: int,
    start: Array,
    stop: Array,
    record: Array,
    line: Array,
    status: Array,
) -> tuple[int, int, int]:
    """Tokenizes one JSON object per line; results as from `tokenize_delimited`."""
    rows, at, line_number, capacity = 0, 0, first_line, len(status)
    while at < end and rows < capacity:
        here = line_end(data, at, end)
        if here >= end and not final:
            return rows, at, line_number
        if _skip_space(data, at, here) < here:
            for s in range(start.shape[1]):
                start[rows, s], stop[rows, s] = 0, -1
            record[rows, 0], record[rows, 1] = at, here
            line[rows] = line_number
            status[rows] = _tokenize_object(data, at, here, keys, key_at, may_nest, start[rows], stop[rows])
            rows += 1
        line_number += 1
        at = here + 1
    return rows, min(at, end), line_number
