"""Timestamps: numbers in every unit, ISO 8601 and datetimes are parsed, and seconds are formatted."""

from datetime import UTC, datetime, timedelta, timezone

import pytest

from dynedge.data.timestamps import format_timestamp, parse_timestamp
from dynedge.errors import UsageError

NOON = 1706702400.0  # 2024-01-31T12:00:00Z


@pytest.mark.parametrize(
    ("value", "unit"),
    [
        (NOON, "s"),
        (int(NOON) * 1000, "ms"),
        (str(int(NOON) * 10**6), "us"),
        (NOON, "iso"),
        ("2024-01-31T12:00:00Z", "s"),
        (" 2024-01-31 13:00:00+01:00 ", "ms"),
        ("2024-01-31T12:00:00", "s"),
        (datetime(2024, 1, 31, 12), "s"),
        (datetime(2024, 1, 31, 12, tzinfo=UTC), "ns"),
        (datetime(2024, 1, 31, 14, tzinfo=timezone(timedelta(hours=2))), "s"),
    ],
)
def test_every_form_of_a_timestamp_is_parsed(value, unit):
    assert parse_timestamp(value, unit) == NOON


@pytest.mark.parametrize("value", ["", "soon", "nan", float("inf"), "2024-13-01", None, "1_000", "١٢", "1e", "."])
def test_other_values_are_usage_errors(value):
    with pytest.raises(UsageError, match=r"--time .* should be a number in ms, or an ISO 8601 time such as"):
        parse_timestamp(value, "ms", "--time")


@pytest.mark.parametrize("value", [1e300, "1e300", "9999-12-31", NOON * 10**6])
def test_times_after_2200_are_in_another_unit(value):
    with pytest.raises(UsageError, match=r"time .* is after the year 2200; is its unit s\?"):
        parse_timestamp(value)


def test_seconds_are_formatted_as_dates_unless_the_clock_starts_at_zero():
    assert format_timestamp(NOON) == "2024-01-31 12:00:00 UTC"
    assert format_timestamp(1234.5) == "1,234.500 s"
    assert format_timestamp(float("-inf")) == "the beginning"
