"""Moments as people write them, and as seconds."""

from __future__ import annotations

import math
from datetime import UTC, datetime

from dynedge.errors import UsageError

Moment = float | int | str | datetime
PER_SECOND = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
YEAR = 86400 * 365


def seconds(moment: Moment, unit: str = "s", name: str = "time") -> float:
    """A number in `unit` (seconds where times are ISO 8601), ISO 8601 text or a datetime; UTC unless it says so."""
    try:
        if isinstance(moment, str) and not _is_number(moment):
            moment = datetime.fromisoformat(moment.strip())
        if isinstance(moment, datetime):
            return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
        found = float(moment) / PER_SECOND.get(unit, 1)
    except (ValueError, TypeError):
        found = math.nan
    if not math.isfinite(found):
        raise UsageError(
            f"{name} {str(moment)!r} should be a number in {unit if unit in PER_SECOND else 's'}, "
            "or a moment as 2024-01-31T12:00:00Z."
        )
    return found


def written(moment: float) -> str:
    """Seconds as a date, or as they are where the clock does not start at 1970."""
    if not math.isfinite(moment):
        return "the beginning"
    if moment < YEAR:
        return f"{moment:,.3f} s"
    return datetime.fromtimestamp(moment, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
