"""Recommendations: one result type for a batch of users, read as arrays, data frames, records or Arrow tables.

Legend: n users, k items per user, m recommendations in all (m <= n·k).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from typing import Any, NamedTuple

import numpy as np

from dynedge.data.frames import ToFrames
from dynedge.data.id_index import ExternalId, GrowableIdIndex, plain_id
from dynedge.data.item_metadata import ItemMetadata
from dynedge.errors import UsageError
from dynedge.inference.rules import NO_ITEM, Rules
from dynedge.inference.session import NO_RULES, Session
from dynedge.utils.array_type import Array

COLUMNS = "user_id", "item_id", "score", "rank"


SHOWN_USERS = 3  # in the text of a result


@dataclass(frozen=True, eq=False)
class UserRecommendations:
    """The best items of one user, best first; for an unknown user the most popular items."""

    user_id: ExternalId
    user_row: int  # -1: unknown user
    item_rows: Array  # int64[m]
    scores: Array  # float32[m]; for an unknown user each item's share of all events
    item_index: GrowableIdIndex
    metadata: ItemMetadata

    @property
    def known(self) -> bool:
        return self.user_row >= 0

    def to_record(self) -> dict[str, Any]:
        """Returns plain values for JSON."""
        items = scored_items(self.item_index, self.metadata, self.item_rows, self.scores)
        return {"user_id": self.user_id, "known": self.known, "items": items}


def scored_items(index: GrowableIdIndex, metadata: ItemMetadata, rows: Array, scores: Array) -> list[dict[str, Any]]:
    """Returns items with their scores, and the columns that describe them if there are any, for JSON."""
    pairs = zip(index.take(rows), scores.tolist(), strict=True)
    items: list[dict[str, Any]] = [{"item_id": item_id, "score": score} for item_id, score in pairs]
    if metadata.names:
        for item, values in zip(items, metadata.records(rows), strict=True):
            item["metadata"] = values
    return items


class FlatRows(NamedTuple):
    """One entry per recommendation: users in the order of the request, each user's best item first."""

    position: Array  # int64[m]: position of the user in the request
    item_row: Array  # int64[m]
    score: Array  # float32[m]
    rank: Array  # int32[m], from 1


@dataclass(frozen=True, eq=False, repr=False)
class Recommendations(ToFrames):
    """Recommendations for a batch of users.

    A user has fewer than k items where fewer items have a score.
    """

    users: tuple[ExternalId, ...]  # in the order of the request
    user_rows: Array  # int64[n]; -1: unknown user
    item_rows: Array  # int64[n, k]; padded with NO_ITEM
    scores: Array  # float32[n, k]
    item_index: GrowableIdIndex
    metadata: ItemMetadata  # of the items

    def __repr__(self) -> str:
        shown = [f"{one.user_id}: {one.item_index.take(one.item_rows)}" for one in islice(self, SHOWN_USERS)]
        more = [f"{len(self.users) - SHOWN_USERS:,} more users"] if len(self.users) > SHOWN_USERS else []
        return f"Recommendations({'; '.join(shown + more)})"

    def __len__(self) -> int:
        """Number of recommendations, over all users."""
        return len(self.flat.position)

    def __iter__(self) -> Iterator[UserRecommendations]:
        counts = (self.item_rows != NO_ITEM).sum(1).tolist()  # padding comes last
        for at, (user, row, count) in enumerate(zip(self.users, self.user_rows.tolist(), counts, strict=True)):
            items, scores = self.item_rows[at, :count], self.scores[at, :count]
            yield UserRecommendations(user, row, items, scores, self.item_index, self.metadata)

    @property
    def unknown(self) -> tuple[ExternalId, ...]:
        """The users that the run does not know; they get the most popular items."""
        return tuple(user for user, row in zip(self.users, self.user_rows, strict=True) if row < 0)

    def of(self, user: ExternalId) -> list[tuple[ExternalId, float]]:
        """Returns one user's items with their scores."""
        mine = [one for one in self if str(one.user_id) == str(user)]
        return [(item["item_id"], item["score"]) for one in mine for item in one.to_record()["items"]]

    @cached_property
    def flat(self) -> FlatRows:
        position, column = np.nonzero(self.item_rows != NO_ITEM)
        kept = position, column
        return FlatRows(position, self.item_rows[kept], self.scores[kept], (column + 1).astype(np.int32))

    @cached_property
    def user_id(self) -> Array:
        return _array(self.users[position] for position in self.flat.position.tolist())

    @cached_property
    def item_id(self) -> Array:
        return _array(self.item_index.take(self.flat.item_row))

    @property
    def score(self) -> Array:
        return self.flat.score

    @property
    def rank(self) -> Array:
        return self.flat.rank

    def to_arrow(self) -> Any:
        """Returns a pyarrow.Table with the columns user_id, item_id, score, rank and those that describe items."""
        import pyarrow as pa

        return pa.table({name: getattr(self, name) for name in COLUMNS} | self.metadata.take(self.flat.item_row))

    def to_records(self) -> list[dict[str, Any]]:
        """Returns one dictionary per user, of plain values for JSON."""
        return [one.to_record() for one in self]


def recommend(
    session: Session, users: Sequence[ExternalId], k: int, time: float | None = None, rules: Rules = NO_RULES
) -> Recommendations:
    """Returns the k best items of each user; unknown users get the most popular items.

    A user requested several times is scored once.
    """
    rows = [session.users.find(user) for user in users]
    position = {row: at for at, row in enumerate(dict.fromkeys(row for row in rows if row >= 0))}
    scored = recommend_rows(session, np.array(list(position), np.int64), k, time, rules)
    if len(position) == len(rows):
        return scored
    user_rows = np.array(rows, np.int64)
    known = user_rows >= 0
    item_rows = np.full((len(rows), scored.item_rows.shape[1]), NO_ITEM, np.int64)
    scores = np.zeros(item_rows.shape, np.float32)
    positions = [position[row] for row in rows if row >= 0]
    item_rows[known], scores[known] = scored.item_rows[positions], scored.scores[positions]
    if not known.all():
        popular, shares = session.popular(k, rules)
        item_rows[~known, : len(popular)], scores[~known, : len(popular)] = popular, shares
    ids = tuple(user if row < 0 else session.users[row] for user, row in zip(users, rows, strict=True))
    return Recommendations(ids, user_rows, item_rows, scores, session.items, session.item_metadata)


def recommend_rows(
    session: Session,
    rows: Array,
    k: int,
    time: float | None = None,
    rules: Rules = NO_RULES,
    *,
    after: Callable[[int], object] = lambda users: None,
) -> Recommendations:
    """Returns the k best items of known users, given by their rows; `after(n)` reports progress in users."""
    item_rows, scores = session.top_items(rows, k, time, rules, after=after)
    ids = tuple(session.users.take(rows))
    return Recommendations(ids, rows, item_rows, scores, session.items, session.item_metadata)


def distinct_users(session: Session, users: Iterable[ExternalId]) -> list[ExternalId]:
    """Returns each requested user once, known users by the ids of the run: "42" and 42 are one user."""
    requested = list(map(plain_id, users))
    for user in requested:
        if not isinstance(user, str | int):
            raise UsageError(f"the user {user!r} is not an id: ids are texts or integers.")
    rows = ((user, session.users.find(user)) for user in requested)
    return list(dict.fromkeys(user if row < 0 else session.users[row] for user, row in rows))


def _array(ids: Iterable[ExternalId]) -> Array:
    """Returns int64 if all ids are integers, else strings."""
    values = list(ids)
    if all(isinstance(value, int | np.integer) for value in values):
        return np.array(values, np.int64)
    return np.array([str(value) for value in values], np.str_)
