"""External ids and their rows: the ids of one side (users or items) in the order of their dense ids, and lookups.

External ids are 64-bit integers if all of them are, else strings. Every lookup follows one rule: an id is found by
its text, and on integer ids only the plain decimal form is that text. "42" finds 42; "042", "+42" and 42.0 do not.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterable
from functools import cached_property
from typing import Any, overload

import numpy as np

from dynedge.utils.array_type import Array

ExternalId = int | str
PLAIN_INTEGER = re.compile(r"0|-?[1-9][0-9]{0,18}")


def plain_id(value: Any) -> Any:
    """Returns an id as `prepare` reads it: NumPy's and Arrow's values as Python's, whole floats as integers.

    >>> plain_id(np.int64(7)), plain_id(7.0), plain_id("7.0")
    (7, 7, '7.0')
    """
    if isinstance(value, np.generic):
        value = value.item()
    elif hasattr(value, "as_py"):  # of Arrow
        value = value.as_py()
    return int(value) if isinstance(value, float) and value.is_integer() else value


def is_id(value: Any) -> bool:
    """Whether a value may be an id, by one rule everywhere: an integer, or text that `prepare` can read."""
    if isinstance(value, str):
        return bool(value) and "\0" not in value and (value.isascii() or _is_unicode(value))
    return isinstance(value, int | np.integer) and not isinstance(value, bool)


def _is_unicode(text: str) -> bool:
    """Whether text has no lone surrogates, which no encoding can write."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


class IdIndex:
    """Immutable external ids, stored in arrays so that they can be memory-mapped.

    >>> ids = IdIndex.from_ids(["ann", "bob", "eve"])
    >>> ids[0], ids[1:], ids.find("eve")
    ('ann', ['bob', 'eve'], 2)
    """

    def __init__(self, values: Array, offsets: Array | None = None) -> None:
        """Integers: `values` is int64[n]. Strings: `values` is their UTF-8 bytes, `offsets` int64[n + 1]."""
        self.values, self.offsets = values, offsets

    @classmethod
    def from_ids(cls, ids: Iterable[ExternalId]) -> IdIndex:
        """Builds an index from a list of ids: integers if all of them are, else strings."""
        ids = list(ids)
        if all(isinstance(value, int | np.integer) for value in ids):
            return cls(np.array(ids, np.int64))
        encoded = [str(value).encode() for value in ids]
        offsets = np.zeros(len(ids) + 1, np.int64)
        np.cumsum([len(text) for text in encoded], out=offsets[1:])
        return cls(np.frombuffer(b"".join(encoded), np.uint8), offsets)

    @property
    def are_strings(self) -> bool:
        return self.offsets is not None

    def __len__(self) -> int:
        return len(self.values) if self.offsets is None else len(self.offsets) - 1

    @overload
    def __getitem__(self, row: int) -> ExternalId: ...
    @overload
    def __getitem__(self, row: slice) -> list[ExternalId]: ...
    def __getitem__(self, row: int | slice) -> ExternalId | list[ExternalId]:
        """Returns the id of a row, or the ids of a slice of rows."""
        if isinstance(row, slice):
            return self.take(range(len(self))[row])
        if not -len(self) <= row < len(self):
            raise IndexError(f"row {row} is out of range for {len(self)} ids")
        row %= len(self)
        if self.offsets is None:
            return int(self.values[row])
        return bytes(self.values[self.offsets[row] : self.offsets[row + 1]]).decode()

    def equals(self, other: IdIndex) -> bool:
        """Whether both hold the same ids in the same order."""
        if self.offsets is None or other.offsets is None:
            return self.offsets is other.offsets and np.array_equal(self.values, other.values)
        return np.array_equal(self.offsets, other.offsets) and np.array_equal(self.values, other.values)

    def starts_with(self, other: IdIndex) -> bool:
        """Whether the first ids are those of `other`, by their text: "42" in a column of strings is 42."""
        count = len(other)
        if count > len(self):
            return False
        if self.offsets is None or other.offsets is None:
            if self.offsets is other.offsets:
                return np.array_equal(self.values[:count], other.values)
            return all(str(self[row]) == str(other[row]) for row in range(count))
        same = np.array_equal(self.offsets[: count + 1], other.offsets)
        return same and np.array_equal(self.values[: len(other.values)], other.values)

    def count_union(self, other: IdIndex) -> int:
        """Returns the number of different ids in either index, by their text."""
        if self.offsets is None and other.offsets is None:
            return len(np.union1d(self.values, other.values))
        return len({*map(str, self.decoded), *map(str, other.decoded)})

    def take(self, rows: Iterable[int]) -> list[ExternalId]:
        return [self[int(row)] for row in rows]

    def find(self, external_id: Any) -> int:
        """Returns the row of an id, or -1."""
        return self._row_of.get(self.canonical(external_id), -1)

    def canonical(self, external_id: Any) -> ExternalId:
        """Returns an id as this index stores it: an integer where ids are integers and it is one, else its text."""
        if not self.are_strings and type(external_id) is int and -(2**63) <= external_id < 2**63:
            return external_id
        text = str(external_id)
        if not self.are_strings and PLAIN_INTEGER.fullmatch(text) and -(2**63) <= int(text) < 2**63:
            return int(text)
        return text

    @cached_property
    def decoded(self) -> list[ExternalId]:
        """All ids as Python values, decoded once."""
        return self.take(range(len(self)))

    @cached_property
    def _row_of(self) -> dict[ExternalId, int]:
        return {external_id: row for row, external_id in enumerate(self.decoded)}


class GrowableIdIndex:
    """The ids of a run followed by ids added later, in the order of their arrival.

    An added id may be any text, also where the run's ids are integers. Lookups may run in other threads than `add`.
    """

    def __init__(self, base: IdIndex) -> None:
        self.base = base
        self.added: list[ExternalId] = []
        self._added_row_of: dict[ExternalId, int] = {}

    def __len__(self) -> int:
        return len(self.base) + len(self.added)

    def __getitem__(self, row: int) -> ExternalId:
        decoded = self.base.decoded
        return decoded[row] if row < len(decoded) else self.added[row - len(decoded)]

    def take(self, rows: Iterable[int]) -> list[ExternalId]:
        return [self[int(row)] for row in rows]

    def find(self, external_id: Any) -> int:
        """Returns the row of an id, or -1."""
        row = self.base.find(external_id)
        return row if row >= 0 else self._added_row_of.get(self.canonical(external_id), -1)

    def canonical(self, external_id: Any) -> ExternalId:
        return self.base.canonical(external_id)

    def add(self, external_id: Any) -> int:
        """Returns the row of an id, a new one if the id is new."""
        row = self.find(external_id)
        if row < 0:
            row = len(self)
            self.added.append(self.canonical(external_id))
            self._added_row_of[self.added[-1]] = row  # last: another thread that finds the row can read its id
        return row

    def all(self) -> IdIndex:
        """Returns all ids in the order of their rows."""
        return IdIndex.from_ids([*self.base.decoded, *self.added]) if self.added else self.base

    def search(self, prefix: str, limit: int) -> list[ExternalId]:
        """Returns ids that start with a prefix, ignoring case: the run's in text order, then the added ones."""
        start, matches = prefix.casefold(), list[ExternalId]()
        texts, rows = self._sorted_texts
        at = bisect_left(texts, start)
        while at < len(texts) and len(matches) < limit and texts[at].startswith(start):
            matches.append(self.base.decoded[rows[at]])
            at += 1
        for external_id in self.added:
            if len(matches) == limit:
                break
            if str(external_id).casefold().startswith(start):
                matches.append(external_id)
        return matches

    @cached_property
    def _sorted_texts(self) -> tuple[list[str], list[int]]:
        texts = [str(external_id).casefold() for external_id in self.base.decoded]
        rows = sorted(range(len(texts)), key=texts.__getitem__)
        return [texts[row] for row in rows], rows
