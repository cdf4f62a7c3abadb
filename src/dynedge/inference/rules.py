"""Business rules of recommendations: which items are eligible, score boosts, category caps, minimum score, diversity.

The command line, the Python API and the service share them. In order:
1. An item is eligible if it is in all allow lists, in no deny list and, with `filter_seen`, new to the user. A list
   names items (column `item_id`) or values of a column that describes items (data/item_metadata.py).
2. Boosts are added to scores. Items below the minimum score are dropped.
3. Items are taken from the best down; one whose category has reached its cap is skipped.
4. With diversity d > 0, the best POOL items are reordered by maximal marginal relevance: each next item maximizes
   (1 - d) · score, scaled to 0…1 in the pool, minus d · the largest cosine similarity to an item taken before.
Legend: I items, m candidates, k items of a list.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dynedge.data.id_index import GrowableIdIndex
from dynedge.data.item_metadata import ItemMetadata
from dynedge.errors import UsageError
from dynedge.utils.array_type import Array

ITEM = "item_id"  # as a column of a rule: the items themselves
MAX_BOOST = 1000.0
MIN_POOL, MAX_POOL, POOL = 100, 1000, 10  # candidates of the reordering: POOL · k, within these; at least k
WIDEN = 8  # factor by which more candidates are fetched where caps have used up the first
NO_ITEM = -1  # pads a user's items where fewer than k are eligible

Values = Mapping[str, Any] | Iterable[Any]  # what callers may give: values by column, or items
Columns = tuple[tuple[str, tuple[str, ...]], ...]  # values by column
Fetch = Callable[[int], tuple[Tensor, Tensor]]  # number -> scores, best first, and their items


@dataclass(frozen=True)
class Rules:
    """The rules of one request; equal rules are equal keys. `Rules.of` makes them from a caller's values."""

    filter_seen: bool = False
    allow: Columns = ()  # lists of values by column
    deny: Columns = ()
    boost: tuple[tuple[str, str, float], ...] = ()  # column, value, amount
    max_per: tuple[tuple[str, int], ...] = ()  # column, most items of each of its values
    min_score: float | None = None
    diversity: float = 0.0

    @classmethod
    def of(
        cls,
        *,
        filter_seen: bool = False,
        allow: Values | None = None,
        deny: Values | None = None,
        boost: Mapping[str, Mapping[Any, float]] | None = None,
        max_per: Mapping[str, int] | None = None,
        min_score: float | None = None,
        diversity: float = 0.0,
    ) -> Rules:
        """Returns checked rules. A list alone, in `allow` or `deny`, is one of items; an empty one allows none.

        >>> Rules.of(deny=[7], allow={"genre": "folk"}, max_per={"artist": 2}).deny
        (('item_id', ('7',)),)
        """
        if min_score is not None and not math.isfinite(_number("min_score", min_score)):
            raise UsageError(f"min_score {min_score} should be a finite number.")
        if not 0 <= _number("diversity", diversity) <= 1:
            raise UsageError(f"diversity {diversity} should be between 0 (off) and 1.")
        lists = _lists("allow", allow), _lists("deny", deny)
        return cls(filter_seen, *lists, _boosts(boost or {}), _caps(max_per or {}), min_score, float(diversity))

    def bind(self, items: GrowableIdIndex, metadata: ItemMetadata, unit_vectors: Callable[[], Tensor]) -> BoundRules:
        """Resolves ids and values to items. UsageError for unknown columns and values; unknown items are ignored."""
        if self in (Rules(), Rules(filter_seen=True)):
            return BoundRules(self.filter_seen)
        count = len(items)

        def rows(column: str, values: tuple[str, ...]) -> Array:
            if column == ITEM:
                return np.array([row for value in values if (row := items.find(value)) >= 0], np.int64)
            codes, names = metadata.codes(column, count)
            return np.flatnonzero(np.isin(codes, [_code(column, value, names) for value in values]))

        excluded = np.zeros(count, bool)
        for column, values in self.allow:
            allowed = np.zeros(count, bool)
            allowed[rows(column, values)] = True
            excluded |= ~allowed
        for column, values in self.deny:
            excluded[rows(column, values)] = True
        boost = np.zeros(count, np.float32)
        for column, value, amount in self.boost:
            boost[rows(column, (value,))] += np.float32(amount)
        return BoundRules(
            self.filter_seen,
            torch.from_numpy(excluded) if self.allow or self.deny else None,
            torch.from_numpy(boost) if self.boost else None,
            -math.inf if self.min_score is None else self.min_score,
            tuple((metadata.codes(column, count)[0], most) for column, most in self.max_per),
            self.diversity,
            unit_vectors() if self.diversity else None,
        )


@dataclass(frozen=True, eq=False)
class BoundRules:
    """Rules in the rows of a session."""

    filter_seen: bool = False
    excluded: Tensor | None = None  # bool[I]
    boost: Tensor | None = None  # float32[I]
    min_score: float = -math.inf
    caps: tuple[tuple[Array, int], ...] = ()  # int32[I], the category of every item (-1: none), and its cap
    diversity: float = 0.0
    vectors: Tensor | None = None  # float32[I, d], of length one

    def adjust(self, scores: Tensor) -> Tensor:
        """Returns scores float32[…, I] with boosts, and minus infinity for excluded items."""
        if self.boost is not None:
            scores = scores + self.boost.to(scores.device)
        return scores if self.excluded is None else scores.masked_fill(self.excluded.to(scores.device), -torch.inf)

    @property
    def largest_boost(self) -> float:
        return 0.0 if self.boost is None else float(self.boost.abs().max())

    def best(self, scores: Tensor, k: int) -> tuple[Array, Array]:
        """Returns (items int64[n, k], scores float32[n, k]) of n users, given the adjusted scores [n, I]."""
        if self.caps or self.diversity:
            lists = [self.best_of_one(row.topk, k, len(row)) for row in scores]
            return np.stack([items for items, _ in lists]), np.stack([values for _, values in lists])
        values, items = scores.topk(k)
        items = items.masked_fill((values == -torch.inf) | (values < self.min_score), NO_ITEM)
        return np.asarray(items.cpu()), np.asarray(values.cpu())

    def best_of_one(self, fetch: Fetch, k: int, items: int) -> tuple[Array, Array]:
        """Returns (items int64[k], scores float32[k]) of one user, padded with NO_ITEM; `items`: how many there are.

        `fetch` is called again for more candidates until k are found or all are read, so that caps are exact.
        """
        pool = max(k, min(max(POOL * k, MIN_POOL), MAX_POOL)) if self.diversity else 0
        size = max(pool, k)
        while True:
            scores, rows = (np.asarray(part.cpu()) for part in fetch(min(size, items)))
            enough = (scores > -np.inf) & (scores >= self.min_score)
            chosen = self._select(rows[enough], scores[enough], k, pool)
            if len(chosen) == k or enough.sum() < size or size >= items:
                break
            size *= WIDEN
        best, values = np.full(k, NO_ITEM, np.int64), np.full(k, -np.inf, np.float32)
        best[: len(chosen)], values[: len(chosen)] = rows[enough][chosen], scores[enough][chosen]
        return best, values

    def _select(self, rows: Array, scores: Array, k: int, pool: int) -> list[int]:
        """Positions of the items to show: of the first `pool` by marginal relevance, of the rest by score."""
        if not (self.caps or self.diversity):
            return list(range(min(k, len(rows))))
        used = [dict[int, int]() for _ in self.caps]
        chosen = list[int]()

        def take(position: int) -> bool:
            categories = [int(codes[rows[position]]) for codes, _ in self.caps]
            for count, category, (_, most) in zip(used, categories, self.caps, strict=True):
                if category >= 0 and count.get(category, 0) >= most:
                    return False
            for count, category in zip(used, categories, strict=True):
                count[category] = count.get(category, 0) + 1
            chosen.append(position)
            return True

        self._take_diverse(rows[:pool], scores[:pool], k, take)
        for position in range(min(pool, len(rows)), len(rows)):
            if len(chosen) == k:
                break
            take(position)
        return chosen

    def _take_diverse(self, rows: Array, scores: Array, k: int, take: Callable[[int], bool]) -> None:
        """Takes up to k of the pool by maximal marginal relevance."""
        if not len(rows):
            return
        assert self.vectors is not None
        vectors = self.vectors[torch.from_numpy(rows)].cpu().numpy()
        relevance = (1 - self.diversity) * _scaled(scores)
        nearest, taken = np.zeros(len(rows), np.float32), 0
        for _ in range(len(rows)):
            at = int(np.argmax(relevance - self.diversity * nearest))
            relevance[at] = -np.inf
            if take(at):
                similarity = vectors @ vectors[at]
                nearest, taken = np.maximum(nearest, similarity) if taken else similarity, taken + 1
                if taken == k:
                    return


def _scaled(scores: Array) -> Array:
    """Scores from 0 for the lowest to 1 for the highest; zeros if all are equal."""
    low, high = scores.min(), scores.max()
    return (scores - low) / (high - low) if high > low else np.zeros_like(scores)


def _code(column: str, value: str, names: Mapping[str, int]) -> int:
    if value not in names:
        known = ", ".join(list(names)[:8]) + (", …" if len(names) > 8 else "")
        raise UsageError(f"no item has the {column} {value!r}; its values are: {known}.")
    return names[value]


def _number(name: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float | np.number):
        raise UsageError(f"{name} {value!r} should be a number.")
    return float(value)


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _lists(name: str, given: Values | None) -> Columns:
    by_column = {} if given is None else given if isinstance(given, Mapping) else {ITEM: given}
    lists = []
    for column, values in by_column.items():
        listed = [values] if isinstance(values, str | int | float) else list(values)
        if any(isinstance(value, list | tuple | Mapping) for value in listed):
            raise UsageError(f"{name} {column} should be a list of values.")
        lists.append((str(column), tuple(dict.fromkeys(map(_text, listed)))))
    return tuple(lists)


def _by_column(name: str, given: Any) -> Mapping[str, Any]:
    if not isinstance(given, Mapping):
        raise UsageError(f"{name} {given!r:.40} should be a dictionary by column.")
    return given


def _boosts(given: Mapping[str, Mapping[Any, float]]) -> tuple[tuple[str, str, float], ...]:
    boosts = []
    for column, amounts in _by_column("boost", given).items():
        if not isinstance(amounts, Mapping):
            raise UsageError(f"boost {column} should give a number by value, such as {{'folk': 0.5}}.")
        for value, amount in amounts.items():
            if not abs(_number(f"boost {column} {value}", amount)) <= MAX_BOOST:
                raise UsageError(
                    f"boost {column} {value}: {amount} should be between {-MAX_BOOST:g} and {MAX_BOOST:g}."
                )
            boosts.append((str(column), _text(value), float(amount)))
    return tuple(boosts)


def _caps(given: Mapping[str, int]) -> tuple[tuple[str, int], ...]:
    caps = []
    for column, most in _by_column("max_per", given).items():
        if column == ITEM or isinstance(most, bool) or not isinstance(most, int | np.integer) or most < 1:
            raise UsageError(f"max_per {column}: {most!r} should be a number of items, at least 1, of a category.")
        caps.append((str(column), int(most)))
    return tuple(caps)
