"""Row checks: why a row is rejected, and the status of every row of a block."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dynedge.utils.array_type import Array

VALID, WRONG_FIELD_COUNT, UNCLOSED_QUOTE, TEXT_AFTER_QUOTE, NOT_JSON, MISSING, NOT_A_NUMBER, NOT_FINITE = range(8)
NEGATIVE_TIME, TIME_TOO_LATE, NOT_UTF8, WRONG_LIST_LENGTH, DUPLICATE_EVENT_ID, NOT_AN_ID, LATE, LEFT_OUT, NOT_ISO = (
    range(8, 17)
)

REASONS = {
    WRONG_FIELD_COUNT: "wrong number of columns",
    UNCLOSED_QUOTE: "unclosed quote",
    TEXT_AFTER_QUOTE: "text after a closing quote",
    NOT_JSON: "not a JSON object",
    MISSING: "missing value",
    NOT_A_NUMBER: "not a number",
    NOT_FINITE: "not a finite number",
    NEGATIVE_TIME: "negative time",
    TIME_TOO_LATE: "time after the year 2200",
    NOT_UTF8: "not valid UTF-8, or with a NUL character",
    WRONG_LIST_LENGTH: "wrong number of values in the list",
    DUPLICATE_EVENT_ID: "duplicate event id",
    NOT_AN_ID: "neither text nor an integer",
    NOT_ISO: "not an ISO 8601 time",
    LATE: "older than the log's end",
}


@dataclass
class RowChecks:
    """The first error of each row of a block, and the column it is in."""

    status: Array  # uint8[rows]: VALID or an error code
    bad_column: Array  # int32[rows]; -1: the row as a whole

    @classmethod
    def from_status(cls, status: Array) -> RowChecks:
        return cls(status, np.full(len(status), -1, np.int32))

    @property
    def valid(self) -> Array:
        """bool[rows]: the rows without an error so far."""
        return np.asarray(self.status == VALID)

    def reject(self, rows: Array, code: int, column: int) -> None:
        """Sets the error of those of `rows` (a mask) that are still valid."""
        fresh = rows & (self.status == VALID)
        self.status[fresh], self.bad_column[fresh] = code, column
