"""JSON-lines files: one JSON object per line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from dynedge.errors import DataError
from dynedge.utils.file_checks import check_regular


def read_jsonl(path: Path) -> list[dict[str, Any]]:
    """Returns the objects of a JSON-lines file; raises FileNotFoundError, or DataError if the file is damaged."""
    check_regular(path)
    try:
        records = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    except (ValueError, RecursionError):
        records = [None]
    if not all(isinstance(record, dict) for record in records):
        raise DataError(f"{path} is damaged: it is not a JSON-lines file.")
    return records
