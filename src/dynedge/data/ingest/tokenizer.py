"""Delimited text and JSON lines are cut into records and fields: compiled loops over raw bytes.

Both cutters read whole records from a block of bytes and give, for each record and wanted column, the span
[start, stop) of the field in that block, unescaped in place. stop < start means: not there. What is wrong with a
record is one code in `status`; nothing here raises, so that every bad row keeps its line number.
"""

from __future__ import annotations

from dynedge.data.ingest.parsers import (
    AFTER_QUOTE,
    COUNT,
    GOOD,
    NOT_AN_ID,
    NOT_FINITE,
    NOT_JSON,
    UNCLOSED,
    parse_number,
)
from dynedge.utils.arrays import Array
from dynedge.utils.compile import compiled

QUOTED_AT_MOST = 1 << 20  # a quote not closed within 1 MiB is a stray quote: its line is rejected, reading goes on

_TAB, _NEWLINE, _RETURN, _SPACE = 9, 10, 13, 32
_QUOTE, _BACKSLASH, _COMMA, _COLON = 34, 92, 44, 58


@compiled
def _line_end(data: Array, at: int, end: int) -> int:
    while at < end and data[at] != _NEWLINE:
        at += 1
    return at


@compiled
def _collapse_quotes(data: Array, start: int, stop: int) -> int:
    """ "" inside a quoted field means "; in place, it only ever shrinks. Returns the new end."""
    to, at = start, start
    while at < stop:
        data[to] = data[at]
        at += 2 if data[at] == _QUOTE else 1
        to += 1
    return to


@compiled
def cut_delimited(
    data: Array,  # uint8: the block
    end: int,  # bytes of it that are filled
    final: bool,  # no bytes follow this block
    delimiter: Array,  # uint8[1 or 2]
    quoting: bool,
    slot: Array,  # int32[columns]: where a column's span goes, or -1 for a column nobody wants
    first_line: int,
    start: Array,  # int64[rows, slots], filled here, as are the next four
    stop: Array,
    record: Array,  # int64[rows, 2]: the span of the whole record
    line: Array,  # int64[rows]
    status: Array,  # uint8[rows]
    found: Array,  # int32[rows]: number of fields
) -> tuple[int, int, int]:
    """Returns (rows, bytes used up, next line number). An unfinished record at the end is left for the next block."""
    columns, most = len(slot), len(status)
    wide, mark = len(delimiter) == 2, delimiter[0]
    mark2 = delimiter[1] if wide else delimiter[0]
    rows, at, number = 0, 0, first_line
    while at < end and rows < most:
        if data[at] == _NEWLINE or (data[at] == _RETURN and at + 1 < end and data[at + 1] == _NEWLINE):
            at += 1 if data[at] == _NEWLINE else 2  # a blank line is not a row
            number += 1
            continue
        begin, here, lines, fields, bad, complete = at, at, 1, 0, GOOD, False
        for s in range(start.shape[1]):
            start[rows, s], stop[rows, s] = 0, -1
        while True:  # one field a turn
            opened = here
            if quoting and here < end and data[here] == _QUOTE:
                here += 1
                inside, doubled, closed = here, False, False
                while here < end and here - opened <= QUOTED_AT_MOST:
                    byte = data[here]
                    if byte == _QUOTE:
                        if here + 1 < end and data[here + 1] == _QUOTE:
                            doubled = True
                            here += 2
                            continue
                        closed = here + 1 < end or final
                        break
                    here += 1
                if not closed:
                    if not final and here - opened <= QUOTED_AT_MOST:
                        return rows, begin, number
                    bad = UNCLOSED
                    break
                close = here
                here += 1
                if not (
                    here >= end
                    or data[here] == mark
                    or data[here] == _NEWLINE
                    or (data[here] == _RETURN and (here + 1 >= end or data[here + 1] == _NEWLINE))
                ):
                    bad = AFTER_QUOTE
                    break
                for k in range(inside, close):
                    lines += data[k] == _NEWLINE
                if doubled:
                    close = _collapse_quotes(data, inside, close)
                if here < end and data[here] == _RETURN:
                    here += 1
            else:
                while here < end:
                    byte = data[here]
                    if byte == _NEWLINE or (
                        byte == mark and (not wide or (here + 1 < end and data[here + 1] == mark2))
                    ):
                        break
                    here += 1
                if here >= end and not final:
                    return rows, begin, number
                inside, close = opened, here
                if close > inside and data[close - 1] == _RETURN and (here >= end or data[here] == _NEWLINE):
                    close -= 1
                while inside < close and data[inside] == _SPACE:
                    inside += 1
                while inside < close and data[close - 1] == _SPACE:
                    close -= 1
            if fields < columns and slot[fields] >= 0:
                start[rows, slot[fields]], stop[rows, slot[fields]] = inside, close
            fields += 1
            if here >= end or data[here] == _NEWLINE:
                complete = True
                break
            here += 2 if wide else 1
            if here >= end and not final:
                return rows, begin, number
        if not complete:  # a bad quote: the rest of this line goes with it
            here, lines = _line_end(data, begin, end), 1
            if here >= end and not final:
                return rows, begin, number
        elif not final and here >= end:
            return rows, begin, number
        elif fields != columns:
            bad = COUNT
        record[rows, 0], record[rows, 1] = begin, here
        line[rows], status[rows], found[rows] = number, bad, fields
        rows += 1
        number += lines
        at = here + 1
    return rows, min(at, end), number


@compiled
def _hex4(data: Array, at: int, end: int) -> int:
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
    r"""JSON escapes in place (\uXXXX is never shorter than its UTF-8). Returns the new end, or -1 if one is wrong."""
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
            if point >= 0xD800 and point < 0xDC00:  # the first half of a pair
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
    """`at` is just past the opening quote. The position of the closing one, or -1."""
    while at < end:
        if data[at] == _QUOTE:
            return at
        if data[at] < 32:
            return -1
        at += 2 if data[at] == _BACKSLASH else 1
    return -1


@compiled
def _value_end(data: Array, at: int, end: int) -> int:
    """The end of a JSON value that is not a string: nested brackets are passed over as a whole. -1: malformed."""
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
def _same(data: Array, start: int, stop: int, text: Array, text_start: int, text_stop: int) -> bool:
    if stop - start != text_stop - text_start:
        return False
    for k in range(stop - start):  # noqa: SIM110  (compiled: all() is not)
        if data[start + k] != text[text_start + k]:
            return False
    return True


@compiled
def _is_literal(data: Array, start: int, stop: int) -> bool:
    """null, true, false, or a number (NaN and Infinity are let through here and rejected as values)."""
    for word in (b"null", b"true", b"false"):
        if stop - start == len(word):
            same = True
            for k in range(len(word)):
                same = same and data[start + k] == word[k]
            if same:
                return True
    bad = parse_number(data, start, stop)[1]
    return bad == GOOD or bad == NOT_FINITE  # noqa: PLR1714


@compiled
def _cut_object(
    data: Array, at: int, end: int, keys: Array, key_at: Array, may_nest: Array, start: Array, stop: Array
) -> int:
    """One JSON object in [at, end): the spans of the wanted keys. A later repeat of a key wins. Returns a status."""
    at = _skip_space(data, at, end)
    if at >= end or data[at] != 123:
        return NOT_JSON
    at = _skip_space(data, at + 1, end)
    if at < end and data[at] == 125:
        return GOOD if _skip_space(data, at + 1, end) == end else NOT_JSON
    while at < end:
        if data[at] != _QUOTE:
            return NOT_JSON
        key, close = at + 1, _string_end(data, at + 1, end)
        if close < 0:
            return NOT_JSON
        wanted = -1
        for k in range(len(key_at) - 1):
            if _same(data, key, close, keys, key_at[k], key_at[k + 1]):
                wanted = k
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
            if wanted >= 0:
                start[wanted], stop[wanted] = value, close
        else:
            value, after = at, _value_end(data, at, end)
            if after <= value:
                return NOT_JSON
            at, close = after, after
            while close > value and (data[close - 1] == _SPACE or data[close - 1] == _TAB):
                close -= 1
            if data[value] == 91 or data[value] == 123:  # [ {
                if wanted >= 0 and not may_nest[wanted]:
                    return NOT_AN_ID
            elif not _is_literal(data, value, close):
                return NOT_JSON
            if wanted >= 0:
                start[wanted], stop[wanted] = value, close
                if data[value] == 110:  # null
                    start[wanted], stop[wanted] = 0, -1
        at = _skip_space(data, at, end)
        if at >= end:
            return NOT_JSON
        if data[at] == 125:
            return GOOD if _skip_space(data, at + 1, end) == end else NOT_JSON
        if data[at] != _COMMA:
            return NOT_JSON
        at = _skip_space(data, at + 1, end)
    return NOT_JSON


@compiled
def cut_json(
    data: Array,
    end: int,
    final: bool,
    keys: Array,  # uint8: the wanted keys, one after the other
    key_at: Array,  # int64[slots + 1]: where each begins
    may_nest: Array,  # bool[slots]: a packed list may stand there
    first_line: int,
    start: Array,
    stop: Array,
    record: Array,
    line: Array,
    status: Array,
) -> tuple[int, int, int]:
    """As cut_delimited, for one JSON object a line."""
    rows, at, number, most = 0, 0, first_line, len(status)
    while at < end and rows < most:
        here = _line_end(data, at, end)
        if here >= end and not final:
            return rows, at, number
        if _skip_space(data, at, here) < here:
            for s in range(start.shape[1]):
                start[rows, s], stop[rows, s] = 0, -1
            record[rows, 0], record[rows, 1] = at, here
            line[rows] = number
            status[rows] = _cut_object(data, at, here, keys, key_at, may_nest, start[rows], stop[rows])
            rows += 1
        number += 1
        at = here + 1
    return rows, min(at, end), number
