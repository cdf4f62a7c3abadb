"""Timestamps: parsing numbers, ISO 8601 text and datetimes into seconds since 1970, and formatting seconds."""

from __future__ import annotations

import math
import re
from datetime import UTC, date, datetime

import numpy as np

from dynedge.errors import UsageError

Timestamp = float | int | str | date | datetime | np.datetime64
PER_SECOND = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
YEAR = 86400 * 365
LATEST_TIME = 7_258_118_400.0  # 2200-01-01: what is later is in another unit, or damaged
NUMBER = re.compile(r"\s*[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?\s*", re.ASCII | re.IGNORECASE)
MAX_SHOWN = 40  # characters of a wrong value in a message


def parse_timestamp(value: Timestamp, unit: str = "s", name: str = "time") -> float:
    """Returns seconds from a number in `unit`, ISO 8601 text, a date or datetime; without an offset it is UTC.

    Where a log's times are ISO 8601 (`unit` "iso"), a number is in seconds. `name` is the value's name in messages.
    """
    try:
        if isinstance(value, str) and not NUMBER.fullmatch(value):
            value = datetime.fromisoformat(value.strip())
        if isinstance(value, np.datetime64):
            value = value.astype("datetime64[us]").item()
        if isinstance(value, date) and not isinstance(value, datetime):
            value = datetime(value.year, value.month, value.day)
        if isinstance(value, datetime):
            seconds = (value if value.tzinfo else value.replace(tzinfo=UTC)).timestamp()
        else:
            seconds = float(value) / PER_SECOND.get(unit, 1)
    except (ValueError, TypeError, OverflowError):
        seconds = math.nan
    if not math.isfinite(seconds):
        raise UsageError(
            f"{name} {_shortened(value)!r} should be a number in {unit if unit in PER_SECOND else 's'}, "
            "or an ISO 8601 time such as 2024-01-31T12:00:00Z."
        )
    if seconds > LATEST_TIME:
        raise UsageError(f"{name} {_shortened(value)!r} is after the year 2200; is its unit {unit}?")
    return seconds


def format_timestamp(seconds: float) -> str:
    """Returns a date and time in UTC, or plain seconds for a log whose clock does not start in 1970."""
    if not math.isfinite(seconds):
        return "the beginning"
    if seconds < YEAR:
        return f"{seconds:,.3f} s"
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def _shortened(value: Timestamp) -> str:
    try:
        text = str(value)
    except ValueError:  # an integer of thousands of digits
        return "with too many digits"
    return text if len(text) <= MAX_SHOWN else f"{text[:MAX_SHOWN]}…"
