"""What comes in and goes out over HTTP, as pydantic checks it and OpenAPI shows it."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, StrictFloat, StrictInt, StrictStr

MOST_EVENTS, MOST_ITEMS, MOST_USERS = 1000, 1000, 1000

OwnId = (
    Annotated[StrictStr, Field(min_length=1, max_length=256)]
    | Annotated[StrictInt, Field(ge=-(2**63) + 1, le=2**63 - 1)]
)
Time = StrictInt | StrictFloat | Annotated[StrictStr, Field(max_length=64)]
Finite = Annotated[float, Field(allow_inf_nan=False)]
Amount = Annotated[int, Field(ge=1, le=MOST_ITEMS)]


class In(BaseModel):
    model_config = ConfigDict(extra="forbid")


class EventIn(In):
    user_id: OwnId
    item_id: OwnId
    timestamp: Annotated[Time, Field(description="A number in the log's unit, or ISO 8601.")]
    event_id: Annotated[
        StrictStr | None,
        Field(min_length=1, max_length=256, description="Sent twice, an event has no second effect."),
    ] = None
    features: Annotated[
        list[Finite] | None, Field(max_length=4096, description="As many as the run's log has; without: zeros.")
    ] = None


class EventsIn(In):
    events: Annotated[list[EventIn], Field(min_length=1, max_length=MOST_EVENTS)]


class AskedIn(In):
    user_ids: Annotated[list[OwnId], Field(min_length=1, max_length=MOST_USERS)]
    k: Amount = 10
    time: Time | None = None
    filter_seen: bool = False


class WhatIfIn(In):
    item_id: OwnId
    timestamp: Time | None = None
    k: Amount = 10
    filter_seen: bool = False


class Receipt(BaseModel):
    accepted: int
    duplicates: int
    late: int


class Why(BaseModel):
    shares: dict[str, float]
    near: str | int | None


class Item(BaseModel):
    item_id: str | int
    score: float
    why: Why | None = None


class Recommended(BaseModel):
    user_id: str | int
    known: bool
    items: list[Item]


class RecommendedMany(BaseModel):
    users: list[Recommended]


class Similar(BaseModel):
    item_id: str | int
    items: list[Item]


class Problem(BaseModel):
    type: str
    title: str
    status: int
    detail: str
