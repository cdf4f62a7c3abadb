"""Chronological splits: training, validation and test events as contiguous ranges of positions."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from dynedge.errors import UsageError
from dynedge.utils.array_type import Array

BY_TIME = "time:"  # prefix of a split by quantiles of the timestamps


@dataclass(frozen=True)
class Split:
    """Fractions (train, valid, test) of a log, by position or by time.

    With E events and fractions (a, b, c): training is [0, ⌊aE⌋), validation [⌊aE⌋, ⌊(a+b)E⌋), test the rest.
    The fractions are exact decimals, not binary floats: 0.7 + 0.1 is exactly 0.8.

    By time, as the Temporal Graph Benchmark splits: training ends with the last event not later than the a-quantile
    of the timestamps, validation with that of a + b, so events of equal time are in one part. `at` turns such a split
    into one by position.
    """

    train: Fraction
    valid: Fraction
    test: Fraction
    by_time: bool = False

    @classmethod
    def parse(cls, text: str) -> Split:
        """Parses text such as "0.8,0.1,0.1" or, by time, "time:0.7,0.15,0.15"."""
        try:
            parts = [Fraction(part.strip()) for part in text.removeprefix(BY_TIME).split(",")]
        except (ValueError, ZeroDivisionError):
            parts = []
        if len(parts) != 3 or min(parts) < 0 or sum(parts) != 1:
            raise UsageError(f"--split {text!r} should be three fractions that add up to 1, for example 0.8,0.1,0.1.")
        return cls(parts[0], parts[1], parts[2], text.startswith(BY_TIME))

    def at(self, times: Array) -> Split:
        """Returns the split by position of events at these times, in ascending order; itself if it is by position."""
        if not self.by_time:
            return self
        if not len(times):
            return Split(self.train, self.valid, self.test)
        events, valid, test = len(times), float(self.valid), float(self.test)
        quantiles = np.quantile(times, [max(1 - valid - test, 0), 1 - test])  # as py-tgb computes them
        train_end, valid_end = (int(end) for end in np.searchsorted(times, quantiles, side="right"))
        train, valid_too = Fraction(train_end, events), Fraction(valid_end, events)
        return Split(train, valid_too - train, 1 - valid_too)

    def bounds(self, events: int) -> tuple[int, int]:
        """Returns (end of training, end of validation) for a log of `events` events."""
        assert not self.by_time, "`at` gives the split by position"
        return int(self.train * events), int((self.train + self.valid) * events)

    def ranges(self, events: int) -> dict[str, range]:
        """Returns the ranges of positions under "train", "valid" and "test"."""
        train_end, valid_end = self.bounds(events)
        return {
            "train": range(0, train_end),
            "valid": range(train_end, valid_end),
            "test": range(valid_end, events),
        }

    def __str__(self) -> str:
        texts = ",".join(map(_exact, (self.train, self.valid, self.test)))
        return f"{BY_TIME}{texts}" if self.by_time else texts


def _exact(part: Fraction) -> str:
    """Returns a decimal number, or a fraction such as 1/3 that has no short one."""
    decimal = f"{float(part):g}"
    return decimal if Fraction(decimal) == part else str(part)


DEFAULT_SPLIT = Split.parse("0.8,0.1,0.1")
