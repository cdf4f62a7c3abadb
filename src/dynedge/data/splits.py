"""Chronological splits: training, validation and test events as contiguous ranges of positions."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

from dynedge.errors import UsageError


@dataclass(frozen=True)
class Split:
    """Fractions (train, valid, test) of a log, by position.

    With E events and fractions (a, b, c): training is [0, ⌊aE⌋), validation [⌊aE⌋, ⌊(a+b)E⌋), test the rest.
    The fractions are exact decimals, not binary floats: 0.7 + 0.1 is exactly 0.8.
    """

    train: Fraction
    valid: Fraction
    test: Fraction

    @classmethod
    def parse(cls, text: str) -> Split:
        """Parses text such as "0.8,0.1,0.1"."""
        try:
            parts = [Fraction(part.strip()) for part in text.split(",")]
        except (ValueError, ZeroDivisionError):
            parts = []
        if len(parts) != 3 or min(parts) < 0 or sum(parts) != 1:
            raise UsageError(f"--split {text!r} should be three fractions that add up to 1, for example 0.8,0.1,0.1.")
        return cls(*parts)

    def bounds(self, events: int) -> tuple[int, int]:
        """Returns (end of training, end of validation) for a log of `events` events."""
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
        return ",".join(f"{float(part):g}" for part in (self.train, self.valid, self.test))


DEFAULT_SPLIT = Split.parse("0.8,0.1,0.1")
