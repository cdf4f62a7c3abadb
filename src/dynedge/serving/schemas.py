"""Request and response bodies, validated by pydantic and documented in OpenAPI."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, StrictBool, StrictFloat, StrictInt, StrictStr

from dynedge.inference.event_input import MAX_FEATURE
from dynedge.inference.rules import MAX_BOOST, Rules

MAX_EVENTS, MAX_ITEMS, MAX_USERS = 1000, 1000, 1000

ID_PATTERN = r"^[^\x00]+$"  # any text without zero bytes, as in `prepare`
IdBody = (
    Annotated[StrictStr, Field(min_length=1, max_length=256, pattern=ID_PATTERN)]
    | Annotated[StrictInt, Field(ge=-(2**63) + 1, le=2**63 - 1)]
)
Timestamp = Annotated[
    StrictInt | StrictFloat | Annotated[StrictStr, Field(max_length=64)],
    Field(description="Number in the unit of the run's log, or ISO 8601."),
]
Feature = Annotated[float, Field(allow_inf_nan=False, ge=-MAX_FEATURE, le=MAX_FEATURE)]
ItemCount = Annotated[int, Field(ge=1, le=MAX_ITEMS, description="Number of items per user.")]
FilterSeen = Annotated[bool, Field(description="Hide items that the user has already seen.")]
MAX_VALUES, MAX_COLUMNS = 10_000, 16  # of a rule
Column = Annotated[str, Field(min_length=1, max_length=256)]
RuleValue = Annotated[StrictStr, Field(max_length=256)]
ValueList = Annotated[list[StrictBool | StrictInt | RuleValue], Field(max_length=MAX_VALUES)]
ValueLists = ValueList | Annotated[dict[Column, ValueList], Field(max_length=MAX_COLUMNS)]
Boost = Annotated[float, Field(ge=-MAX_BOOST, le=MAX_BOOST, allow_inf_nan=False)]
MinScore = Annotated[float | None, Field(allow_inf_nan=False, description="Minimum score of items.")]
Diversity = Annotated[float, Field(ge=0, le=1, description="Weight of diversity (maximal marginal relevance).")]

Position = Annotated[str, Field(description="Position in the journal; another request can ask for it: min_position.")]


class RequestBody(BaseModel):
    """Base of request bodies: unknown keys are refused."""

    model_config = ConfigDict(extra="forbid")


class EventBody(RequestBody):
    user_id: IdBody
    item_id: IdBody
    timestamp: Timestamp
    event_id: Annotated[
        Annotated[StrictStr, Field(min_length=1, max_length=256, pattern=ID_PATTERN)] | None,
        Field(description="Events with an id that was sent before are ignored."),
    ] = None
    features: Annotated[
        list[Feature] | None,
        Field(max_length=4096, description="Event features of the run's log; zeros if missing."),
    ] = None


class EventsBody(RequestBody):
    events: Annotated[list[EventBody], Field(min_length=1, max_length=MAX_EVENTS)]


class RulesBody(RequestBody):
    """Business rules of a request (inference/rules.py)."""

    filter_seen: FilterSeen = False
    allow: Annotated[
        ValueLists | None,
        Field(
            description="Only items with these values, by column; the column item_id, or a list alone, is of items."
        ),
    ] = None
    deny: Annotated[ValueLists | None, Field(description="Values that exclude an item, by column.")] = None
    boost: Annotated[
        Annotated[
            dict[Column, Annotated[dict[RuleValue, Boost], Field(max_length=MAX_VALUES)]],
            Field(max_length=MAX_COLUMNS),
        ]
        | None,
        Field(description="Added to the scores of items, by column and value."),
    ] = None
    max_per: Annotated[
        Annotated[dict[Column, Annotated[StrictInt, Field(ge=1, le=MAX_ITEMS)]], Field(max_length=MAX_COLUMNS)]
        | None,
        Field(description="Maximum number of items with the same value, by column."),
    ] = None
    min_score: MinScore = None
    diversity: Diversity = 0.0

    def rules(self) -> Rules:
        return Rules.of(**{name: getattr(self, name) for name in RulesBody.model_fields})


class RecommendationsBody(RulesBody):
    user_ids: Annotated[list[IdBody], Field(min_length=1, max_length=MAX_USERS)]
    k: ItemCount = 10
    time: Timestamp | None = None


class WhatIfBody(RulesBody):
    item_id: IdBody
    timestamp: Timestamp | None = None
    k: ItemCount = 10


class EventsReceipt(BaseModel):
    accepted: int
    duplicates: int
    late: Annotated[int | None, Field(description="Null: the events are durable, but not applied yet.")]
    position: Position


class Explanation(BaseModel):
    shares: Annotated[dict[str, float], Field(description="Share of the score by reason; they sum to 1.")]
    similar_to: Annotated[str | int | None, Field(description="A recent item of the user that is similar.")]


class ScoredItem(BaseModel):
    item_id: str | int
    score: float
    metadata: Annotated[
        dict[str, str | int | float | bool] | None,
        Field(description="Columns that describe the item, if there are any."),
    ] = None
    explanation: Explanation | None = None


class UserRecommendations(BaseModel):
    user_id: str | int
    known: Annotated[bool, Field(description="False: unknown user; the items are the most popular ones.")]
    items: list[ScoredItem]


class PositionedRecommendations(UserRecommendations):
    position: Position


class ManyRecommendations(BaseModel):
    users: list[UserRecommendations]
    position: Position


class SimilarItems(BaseModel):
    item_id: str | int
    items: list[ScoredItem]
    position: Position


class ProblemDetails(BaseModel):
    type: str
    title: str
    status: int
    detail: str
