"""JSON-lines files: one JSON object per line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from dynedge.errors import DataError


def read_jsonl(path: Path) -> list[dict[str, Any]]:
    """Returns the objects of a JSON-lines file; raises FileNotFoundError, or DataError if the file is damaged."""
    try:
        return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    except ValueError:
        raise DataError(f"{path} is damaged: it is not a JSON-lines file.") from None
