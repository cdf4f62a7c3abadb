"""Queries of the service and of the Python API: explanations, what-if and similar items, as plain values for JSON.

The caller holds the engine's lock.
"""

from __future__ import annotations

from typing import Any

import torch

from dynedge.data.id_index import ExternalId
from dynedge.errors import DynedgeError
from dynedge.inference.event_input import Event
from dynedge.inference.recommend import UserRecommendations, recommend, scored_items
from dynedge.inference.rules import Rules
from dynedge.inference.session import Session
from dynedge.models.capabilities import Explainable, HasVectors, capable

Record = dict[str, Any]
UNKNOWN_USER = {"shares": {"popular": 1.0}, "similar_to": None}


class UnknownIdError(DynedgeError):
    """No user or item has this id."""


def find_row(session: Session, side: int, external_id: ExternalId) -> int:
    """Returns the row of a user (side 0) or an item (side 1), or raises UnknownIdError."""
    row = (session.users, session.items)[side].find(external_id)
    if row < 0:
        raise UnknownIdError(f"no {('user', 'item')[side]} has the id {external_id!r}.")
    return row


def query_time(session: Session, time: float | None) -> float:
    """Returns the requested time, or the newest event's time if that is later."""
    return session.coverage.last_time if time is None else max(time, session.coverage.last_time)


def explained(session: Session, answer: UserRecommendations, time: float | None) -> Record:
    """Returns the record of a user's recommendations with an explanation of each item's score."""
    record = answer.to_record()
    explanations = _explanations(session, answer, query_time(session, time))
    if explanations is not None:
        for item, explanation in zip(record["items"], explanations, strict=True):
            item["explanation"] = explanation
    return record


def _explanations(session: Session, answer: UserRecommendations, time: float) -> list[Record] | None:
    if not answer.known:
        return [UNKNOWN_USER for _ in answer.item_rows]
    model = capable(session.model, Explainable)
    if model is None:
        return None
    if not len(answer.item_rows):
        return []
    with torch.no_grad():
        explanations = model.explain(answer.user_row, time, torch.from_numpy(answer.item_rows), session.state)
    nearest = [one.nearest_item for one in explanations]
    similar = [None if item < 0 else session.items[item] for item in nearest]
    return [{"shares": one.shares, "similar_to": item} for one, item in zip(explanations, similar, strict=True)]


def what_if(session: Session, event: Event, k: int, rules: Rules) -> Record:
    """Returns a user's recommendations now and after one hypothetical event; the state does not change."""
    find_row(session, 0, event.user)
    find_row(session, 1, event.item)
    before = recommend(session, [event.user], k, event.time, rules).to_records()[0]
    with session.hypothetical(event):
        after = recommend(session, [event.user], k, event.time, rules).to_records()[0]
    ranks = {item["item_id"]: rank for rank, item in enumerate(before["items"], 1)}
    ranked = [item | {"rank_before": ranks.get(item["item_id"])} for item in after["items"]]
    return {"user_id": before["user_id"], "before": before["items"], "after": ranked}


@torch.no_grad()
def similar_items(session: Session, item: ExternalId, k: int) -> Record:
    """Returns the items with the highest cosine similarity of their centred vectors."""
    row = find_row(session, 1, item)
    vectors = session.require(HasVectors, "has no item vectors").vectors(session.state)[1].float()
    vectors = vectors - vectors.mean(0)
    cosine = torch.nn.functional.cosine_similarity(vectors, vectors[row : row + 1])
    cosine[row] = -torch.inf
    scores, rows = cosine.topk(min(k, len(cosine) - 1))
    items = scored_items(session.items, session.item_metadata, rows.numpy(), scores.numpy())
    return {"item_id": session.items[row], "items": items}
