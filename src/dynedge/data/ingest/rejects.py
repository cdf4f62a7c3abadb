"""rejects.csv: the list of rejected rows with file, line, column, value and reason."""

from __future__ import annotations

import csv
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np

from dynedge.data.ingest.row_checks import DUPLICATE_EVENT_ID, LEFT_OUT, REASONS, WRONG_FIELD_COUNT
from dynedge.data.ingest.schema import Block, Schema

MAX_VALUE_CHARS = 200  # of a rejected value in the file


class RejectsFile:
    """Writes one line for each rejected row, with its first error; after those of an existing file."""

    def __init__(self, path: Path, schema: Schema) -> None:
        self.path, self.schema = path, schema
        self.count = 0
        self.reasons: Counter[str] = Counter()
        self.first = ""  # the first rejected row, for messages

    def __enter__(self) -> RejectsFile:
        exists = self.path.exists()
        self._file = open(self.path, "a", newline="", encoding="utf-8")
        self._csv = csv.writer(self._file)
        if not exists:
            self._csv.writerow(["file", "line", "column", "value", "reason"])
        return self

    def __exit__(self, *error: Any) -> None:
        self._file.close()

    @property
    def bad(self) -> int:
        """Number of rejected rows without duplicate event ids: streams resend events."""
        return self.count - self.reasons[REASONS[DUPLICATE_EVENT_ID]]

    def add(self, block: Block) -> None:
        """Writes the rejected rows of a block."""
        names, checks = self.schema.columns, block.checks
        for row in np.flatnonzero(~checks.valid & (checks.status != LEFT_OUT)).tolist():
            code, bad_column, line = int(checks.status[row]), int(checks.bad_column[row]), int(block.line[row])
            reason = REASONS[code]
            self.reasons[reason] += 1
            if code == WRONG_FIELD_COUNT and block.field_count is not None:
                reason = f"{block.field_count[row]} columns instead of {block.expected_fields}"
            column = names[bad_column] if bad_column >= 0 else ""
            value = block.columns[bad_column].text(row) if bad_column >= 0 else block.record_text(row)
            self._csv.writerow([block.file, line, column, value[:MAX_VALUE_CHARS].replace("\0", "\\x00"), reason])
            if not self.count:
                self.first = f"line {line}, {f'column {column}, ' if column else ''}{reason}"
            self.count += 1
        self._file.flush()
