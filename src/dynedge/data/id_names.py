"""Own ids of one side with their rows: those of the run, then those that came later, in the order they came."""

from __future__ import annotations

import re
from bisect import bisect_left
from functools import cached_property

from dynedge.data.log import Ids

Own = int | str
INTEGER = re.compile(r"0|-?[1-9][0-9]{0,18}")  # the plain decimal form of an integer


class Names:
    """A run whose ids are numbers knows "42" as 42; an id that comes later may be any text."""

    def __init__(self, ids: Ids) -> None:
        self._ids = ids
        self.later: list[Own] = []

    def __len__(self) -> int:
        return len(self._ids) + len(self.later)

    def __getitem__(self, row: int) -> Own:
        known = self._known
        return known[row] if row < len(known) else self.later[row - len(known)]

    @cached_property
    def _known(self) -> list[Own]:
        """Of the run, looked up in its file once: answers are made of them."""
        return self._ids.take(range(len(self._ids)))

    @cached_property
    def _rows(self) -> dict[Own, int]:
        return {own: row for row, own in enumerate([*self._known, *self.later])}

    def _own(self, told: Own) -> Own:
        if self._ids.are_strings:
            return str(told)
        whole = isinstance(told, int) or (INTEGER.fullmatch(told) and abs(int(told)) < 2**63)
        return int(told) if whole else told

    def find(self, told: Own) -> int:
        """The row, or -1."""
        return self._rows.get(self._own(told), -1)

    def add(self, told: Own) -> int:
        """The row, a new one where nobody had this id."""
        own = self._own(told)
        row = self._rows.get(own, -1)
        if row < 0:
            row = len(self)
            self.later.append(own)
            self._rows[own] = row  # last, so that whoever finds it while others look finds it whole
        return row

    def search(self, prefix: str, limit: int) -> list[Own]:
        """Ids that begin so, whatever the case; those of the run in their order as texts, then the later ones."""
        start, found = prefix.casefold(), list[Own]()
        texts, rows = self._sorted
        at = bisect_left(texts, start)
        while at < len(texts) and len(found) < limit and texts[at].startswith(start):
            found.append(self._known[rows[at]])
            at += 1
        for own in self.later:
            if len(found) == limit:
                break
            if str(own).casefold().startswith(start):
                found.append(own)
        return found

    @cached_property
    def _sorted(self) -> tuple[list[str], list[int]]:
        texts = [str(own).casefold() for own in self._known]
        rows = sorted(range(len(texts)), key=texts.__getitem__)
        return [texts[row] for row in rows], rows
