"""What a service answers, as plain values for JSON; own ids everywhere. Whoever asks holds the engine's lock."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from dynedge.data.id_index import ExternalId
from dynedge.errors import DynedgeError, UsageError
from dynedge.inference.event_input import Event
from dynedge.inference.session import NOBODY, Live

Told = dict[str, Any]


class UnknownError(DynedgeError):
    """Nobody has this id."""


def recommendations(
    live: Live, users: Sequence[ExternalId], k: int, time: float | None = None, *, filter_seen: bool = False
) -> list[Told]:
    """One answer a user, in the order asked. A moment before the newest event is answered as that event's.

    Whoever is unknown gets the popular list, with shares of all events as scores.
    """
    rows = [live.users.find(user) for user in users]
    known = np.array(sorted({row for row in rows if row >= 0}), np.int64)
    lists = zip(*live.recommend(known, k, moment(live, time), filter_seen=filter_seen), strict=True)
    own = dict(zip(known.tolist(), lists, strict=True))
    found = []
    for user, row in zip(users, rows, strict=True):
        items, scores = own[row] if row >= 0 else live.popular(k)
        best = [
            {"item_id": live.items[int(item)], "score": float(score)}
            for item, score in zip(items, scores, strict=True)
            if item != NOBODY
        ]
        found.append({"user_id": live.users[row] if row >= 0 else user, "known": row >= 0, "items": best})
    return found


def moment(live: Live, time: float | None) -> float:
    return live.coverage.last_time if time is None else max(time, live.coverage.last_time)


def explained(live: Live, answer: Told, time: float | None) -> Told:
    """An answer of `recommendations`, each item with why."""
    row = live.users.find(answer["user_id"])
    if row < 0:
        return answer | {
            "items": [item | {"why": {"shares": {"popular": 1.0}, "near": None}} for item in answer["items"]]
        }
    items = torch.tensor([live.items.find(one["item_id"]) for one in answer["items"]], dtype=torch.int64)
    with torch.no_grad():
        reasons = live.model.explain(row, moment(live, time), items, live.state)
    if reasons is None:
        return answer
    why = [
        {"shares": reason.shares, "near": None if reason.near < 0 else live.items[reason.near]} for reason in reasons
    ]
    return answer | {"items": [item | {"why": one} for item, one in zip(answer["items"], why, strict=True)]}


def what_if(live: Live, event: Event, k: int, *, filter_seen: bool = False) -> Told:
    """The user's recommendations as they are and as they would be after an event that did not happen."""
    if live.users.find(event.user) < 0:
        raise UnknownError(f"nobody knows the user {event.user!r}; send an event of theirs first.")
    if live.items.find(event.item) < 0:
        raise UnknownError(f"nobody knows the item {event.item!r}.")
    before = recommendations(live, [event.user], k, event.time, filter_seen=filter_seen)[0]
    with live.supposing(event):
        after = recommendations(live, [event.user], k, event.time, filter_seen=filter_seen)[0]
    ranks = {item["item_id"]: rank for rank, item in enumerate(before["items"], 1)}
    moved = [item | {"rank_before": ranks.get(item["item_id"])} for item in after["items"]]
    return {"user_id": before["user_id"], "before": before["items"], "after": moved}


@torch.no_grad()
def similar(live: Live, item: ExternalId, k: int) -> Told:
    """The items whose vectors lie in the same direction from the mean item's."""
    row = live.items.find(item)
    if row < 0:
        raise UnknownError(f"nobody knows the item {item!r}.")
    found = live.model.vectors(live.state)
    if found is None:
        raise UsageError(f"the model {live.config.name} has no vectors of items, so it knows no similar ones.")
    vectors = found[1].float()
    vectors = vectors - vectors.mean(0)
    cosine = torch.nn.functional.cosine_similarity(vectors, vectors[row : row + 1])
    cosine[row] = -torch.inf
    scores, rows = cosine.topk(min(k, len(cosine) - 1))
    best = zip(rows.tolist(), scores.tolist(), strict=True)
    return {
        "item_id": live.items[row],
        "items": [{"item_id": live.items[one], "score": score} for one, score in best],
    }
