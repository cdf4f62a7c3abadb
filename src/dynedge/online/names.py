"""Own ids of one side with their rows: those of the run, then those that came later, in the order they came."""

from __future__ import annotations

import re
from bisect import bisect_left
from functools import cached_property

from dynedge.events.log import Ids

Own = int | str
INTEGER = re.compile(r"0|-?[1-9][0-9]{0,18}")  # the plain decimal form of an integer


class Names:
    """A run whose ids are numbers knows "42" as 42; an id that comes later may be any text."""

    def __init__(self, ids: Ids) -> None:
        self._ids = ids
        self.later: list[Own] = []
        self._later_rows: dict[Own, int] = {}

    def __len__(self) -> int:
        return len(self._ids) + len(self.later)

    def __getitem__(self, row: int) -> Own:
        known = len(self._ids)
        return self._ids[row] if row < known else self.later[row - known]

    def _own(self, told: Own) -> Own:
        if self._ids.are_strings:
            return str(told)
        whole = isinstance(told, int) or (INTEGER.fullmatch(told) and abs(int(told)) < 2**63)
        return int(told) if whole else told

    def find(self, told: Own) -> int:
        """The row, or -1."""
        own = self._own(told)
        row = self._ids.find(own) if self._ids.are_strings or isinstance(own, int) else -1
        return row if row >= 0 else self._later_rows.get(own, -1)

    def add(self, told: Own) -> int:
        """The row, a new one where nobody had this id."""
        row = self.find(told)
        if row < 0:
            own, row = self._own(told), len(self)
            self.later.append(own)
            self._later_rows[own] = row
        return row

    def search(self, prefix: str, limit: int) -> list[Own]:
        """Ids that begin so, whatever the case; those of the run in their order as texts, then the later ones."""
        start, found = prefix.casefold(), list[Own]()
        texts, rows = self._sorted
        at = bisect_left(texts, start)
        while at < len(texts) and len(found) < limit and texts[at].startswith(start):
            found.append(self._ids[rows[at]])
            at += 1
        for own in self.later:
            if len(found) == limit:
                break
            if str(own).casefold().startswith(start):
                found.append(own)
        return found

    @cached_property
    def _sorted(self) -> tuple[list[str], list[int]]:
        texts = [str(self._ids[row]).casefold() for row in range(len(self._ids))]
        rows = sorted(range(len(texts)), key=texts.__getitem__)
        return [texts[row] for row in rows], rows
