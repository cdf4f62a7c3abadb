"""Tokenizer of delimited text: records and fields from a block of raw bytes, in a compiled loop.

For each record and each used column it returns the span [start, stop) of the field in the block, unescaped in place;
stop < start marks a missing field. An error of a record is a code in `status`; nothing here raises, so that every
rejected row keeps its line number.

With pyarrow.csv in its place `prepare` takes 1.1 times the CPU time and 1.2 times the memory, because the id encoder
then reads copies of all texts. It also reads `"u"x` as ux, so that blocks with quotes would need another reader; with
Python's csv module `prepare` takes 11 times the CPU time (benchmarks/ingest.py --tokenizers).
"""

from __future__ import annotations

from dynedge.data.ingest.row_checks import TEXT_AFTER_QUOTE, UNCLOSED_QUOTE, VALID, WRONG_FIELD_COUNT
from dynedge.utils.array_type import Array
from dynedge.utils.numba_compile import compiled

MAX_QUOTED_BYTES = 1 << 20  # a quote not closed within 1 MiB is stray: its line is rejected, reading continues

_NEWLINE, _RETURN, _SPACE, _QUOTE = 10, 13, 32, 34


@compiled
def line_end(data: Array, at: int, end: int) -> int:
    """Returns the position of the next newline, or `end`."""
    while at < end and data[at] != _NEWLINE:
        at += 1
    return at


@compiled
def _collapse_quotes(data: Array, start: int, stop: int) -> int:
    """Replaces each doubled quote of a quoted field by one, in place, and returns the new end."""
    to, at = start, start
    while at < stop:
        data[to] = data[at]
        at += 2 if data[at] == _QUOTE else 1
        to += 1
    return to


@compiled
def tokenize_delimited(
    data: Array,  # uint8: the block
    end: int,  # number of bytes in it
    final: bool,  # whether this is the last block of the file
    delimiter: Array,  # uint8[1 or 2]
    quoting: bool,
    slot: Array,  # int32[columns]: output slot of a column, or -1 for a column that is not used
    first_line: int,
    start: Array,  # int32[rows, slots]: output, as are all that follow
    stop: Array,  # int32[rows, slots]
    record: Array,  # int64[rows, 2]: span of the whole record
    line: Array,  # int64[rows]
    status: Array,  # uint8[rows]
    field_count: Array,  # int32[rows]
) -> tuple[int, int, int]:
    """Returns (rows, bytes consumed, next line number). An incomplete record is left for the next block."""
    columns, capacity = len(slot), len(status)
    wide, mark = len(delimiter) == 2, delimiter[0]
    mark2 = delimiter[1] if wide else delimiter[0]
    rows, at, line_number = 0, 0, first_line
    while at < end and rows < capacity:
        if data[at] == _NEWLINE or (data[at] == _RETURN and at + 1 < end and data[at + 1] == _NEWLINE):
            at += 1 if data[at] == _NEWLINE else 2  # a blank line is not a row
            line_number += 1
            continue
        begin, here, lines, fields, error, complete = at, at, 1, 0, VALID, False
        for s in range(start.shape[1]):
            start[rows, s], stop[rows, s] = 0, -1
        while True:  # one field per iteration
            opened = here
            if quoting and here < end and data[here] == _QUOTE:
                here += 1
                inside, doubled, closed = here, False, False
                while here < end and here - opened <= MAX_QUOTED_BYTES:
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
                    if not final and here - opened <= MAX_QUOTED_BYTES:
                        return rows, begin, line_number
                    error = UNCLOSED_QUOTE
                    break
                close = here
                here += 1
                if not (
                    here >= end
                    or (
                        data[here] == mark
                        and (not wide or (data[here + 1] == mark2 if here + 1 < end else not final))
                    )
                    or data[here] == _NEWLINE
                    or (data[here] == _RETURN and (here + 1 >= end or data[here + 1] == _NEWLINE))
                ):
                    error = TEXT_AFTER_QUOTE
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
                    return rows, begin, line_number
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
                return rows, begin, line_number
        if not complete:  # a quoting error: the rest of this line is rejected with it
            here, lines = line_end(data, begin, end), 1
            if here >= end and not final:
                return rows, begin, line_number
        elif not final and here >= end:
            return rows, begin, line_number
        elif fields != columns:
            error = WRONG_FIELD_COUNT
        record[rows, 0], record[rows, 1] = begin, here
        line[rows], status[rows], field_count[rows] = line_number, error, fields
        rows += 1
        line_number += lines
        at = here + 1
    return rows, min(at, end), line_number
