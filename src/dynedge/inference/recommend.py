"""Recommendations in the users' own ids, as plain arrays or as frames."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dynedge.data.id_index import ExternalId
from dynedge.errors import UsageError
from dynedge.inference.session import NOBODY, Live
from dynedge.utils.arrays import Array

COLUMNS = "user", "item", "score", "rank"


@dataclass(frozen=True, eq=False)
class Recommendations:
    """One row a recommendation: users in the order asked, each one's best item first.

    A user may have fewer rows than asked for, where no more items have any score.
    """

    user: Array  # own ids
    item: Array  # own ids
    score: Array  # float32
    rank: Array  # int32, from 1
    asked: tuple[ExternalId, ...]  # each user once
    unknown: tuple[ExternalId, ...]  # those of them who were not known: theirs is the popular list

    def __len__(self) -> int:
        return len(self.user)

    def of(self, user: ExternalId) -> list[tuple[ExternalId, float]]:
        """One user's items and their scores."""
        rows = np.flatnonzero(self.user.astype(np.str_) == str(user))
        return list(zip(self.item[rows].tolist(), self.score[rows].tolist(), strict=True))

    def to_pandas(self) -> Any:
        return _library("pandas").DataFrame(self._columns())

    def to_polars(self) -> Any:
        return _library("polars").DataFrame(self._columns())

    def _columns(self) -> dict[str, Array]:
        return {name: getattr(self, name) for name in COLUMNS}


def recommend(
    live: Live, users: Sequence[ExternalId], k: int, time: float | None = None, *, filter_seen: bool = False
) -> Recommendations:
    """For users by their own ids, each once; whoever is unknown gets the popular list."""
    ids = live.users
    rows = {user: ids.find(user) for user in users}
    asked = list(dict.fromkeys(user if row < 0 else ids[row] for user, row in rows.items()))  # "42" is 42
    known = np.array([row for row in dict.fromkeys(rows.values()) if row >= 0], np.int64)
    items, scores = live.recommend(known, k, time, filter_seen=filter_seen)
    own = dict(zip(ids.take(known), zip(items, scores, strict=True), strict=True))
    lists = [own.get(user) or live.popular(k) for user in asked]
    lists = [(best[best != NOBODY], score[best != NOBODY]) for best, score in lists]
    counts = [len(best) for best, _ in lists]
    return Recommendations(
        user=_plain(user for user, count in zip(asked, counts, strict=True) for _ in range(count)),
        item=_plain(item for best, _ in lists for item in live.items.take(best)),
        score=np.concatenate([np.empty(0, np.float32), *(score for _, score in lists)]),
        rank=np.concatenate([np.empty(0, np.int32), *(np.arange(1, count + 1, dtype=np.int32) for count in counts)]),
        asked=tuple(asked),
        unknown=tuple(user for user in asked if user not in own),
    )


def _plain(own: Iterable[ExternalId]) -> Array:
    """int64 where all are whole numbers, else strings."""
    values = list(own)
    if all(isinstance(value, int | np.integer) for value in values):
        return np.array(values, np.int64)
    return np.array([str(value) for value in values], np.str_)


def _library(name: str) -> Any:
    from importlib import import_module

    try:
        return import_module(name)
    except ImportError:
        raise UsageError(f"to_{name} needs {name}; install it with: pip install {name}") from None
