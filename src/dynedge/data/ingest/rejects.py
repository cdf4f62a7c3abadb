"""rejects.csv: the list of rejected rows with file, line, column, value and reason."""

from __future__ import annotations

import csv
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np

from dynedge.data.ingest.row_checks import REASONS, WRONG_FIELD_COUNT
from dynedge.data.ingest.schema import Block, Schema

MAX_VALUE_CHARS = 200  # of a rejected value in the file


class RejectsFile:
    """Writes one line for each rejected row, with its first error."""

    def __init__(self, path: Path, schema: Schema) -> None:
        self.path, self.schema = path, schema
        self.count = 0
        self.reasons: Counter[str] = Counter()
        self.first = ""  # the first rejected row, for messages

    def __enter__(self) -> RejectsFile:
        self._file = open(self.path, "w", newline="", encoding="utf-8")
        self._csv = csv.writer(self._file)
        self._csv.writerow(["file", "line", "column", "value", "reason"])
        return self

    def __exit__(self, *error: Any) -> None:
        self._file.close()

    def add(self, block: Block) -> None:
        """Writes the rejected rows of a block."""
        names, checks = self.schema.columns, block.checks
        for row in np.flatnonzero(~checks.valid).tolist():
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
