"""Routes that recommend items: for one user, for many, after a hypothetical event; and similar items."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Request
from starlette.responses import JSONResponse, Response

from dynedge.data.id_index import ExternalId
from dynedge.errors import UsageError
from dynedge.inference.event_input import Event
from dynedge.inference.recommend import recommend
from dynedge.inference.rules import Rules
from dynedge.inference.session import Session
from dynedge.serving import schemas, service_queries
from dynedge.serving.batcher import QueryOptions
from dynedge.serving.route_context import service_of
from dynedge.serving.routes.common import (
    BODY_ERRORS,
    ERRORS,
    ItemCount,
    MinPosition,
    PathId,
    QueryRules,
    QueryTime,
    StrictRoute,
)
from dynedge.serving.service_queries import Record, query_time

MAX_TOTAL = 100_000  # items of a request, users times k: others wait meanwhile
MAX_DIVERSE = 10_000  # the same with diversity, which is computed one by one

router = APIRouter(responses=ERRORS, route_class=StrictRoute)
Explain = Annotated[bool, Query(description="Add the reasons for each item's score.")]


@router.get("/users/{id:id}/recommendations", response_model=schemas.PositionedRecommendations)
async def get_recommendations(
    request: Request,
    id: PathId,
    rules: QueryRules,
    k: ItemCount = 10,
    time: QueryTime = None,
    explain: Explain = False,
    min_position: MinPosition = None,
) -> Response:
    """Returns the user's best items at `time`, by default at the time of the newest event."""
    service = service_of(request)
    at = service.parse_time(time)
    await service.reach(min_position)
    answer = await service.batcher.answer(id, QueryOptions(k, at, rules))
    best = answer.recommendations
    record = await service.query(service_queries.explained, best, at) if explain else best.to_record()
    return JSONResponse(record | {"position": service.position_text(answer.position)})


@router.post("/recommendations", response_model=schemas.ManyRecommendations, responses=BODY_ERRORS)
async def post_recommendations(
    request: Request, body: schemas.RecommendationsBody, min_position: MinPosition = None
) -> Response:
    """Returns the best items of up to 1,000 users, in the order of the request."""
    service = service_of(request)
    at = service.parse_time(body.time)
    await service.reach(min_position)
    rules = body.rules()
    most = MAX_DIVERSE if rules.diversity else MAX_TOTAL
    if len(body.user_ids) * body.k > most:
        limited = "a request with diversity" if rules.diversity else "a request"
        raise UsageError(f"{limited} may have {most:,} items: users times k.")
    return await service.answer(_recommend, body.user_ids, body.k, at, rules)


def _recommend(session: Session, users: list[ExternalId], k: int, time: float | None, rules: Rules) -> Record:
    return {"users": recommend(session, users, k, query_time(session, time), rules).to_records()}


@router.post("/users/{id:id}/what-if", responses=BODY_ERRORS)
async def post_what_if(
    request: Request, id: PathId, body: schemas.WhatIfBody, min_position: MinPosition = None
) -> Response:
    """Returns the user's best items now and after one hypothetical event; nothing is stored."""
    service = service_of(request)
    at = service.parse_time(body.timestamp)
    await service.reach(min_position)
    return await service.answer(_what_if, id, body, at)


def _what_if(session: Session, user: str, body: schemas.WhatIfBody, time: float | None) -> Record:
    event = Event(user, str(body.item_id), query_time(session, time))
    return service_queries.what_if(session, event, body.k, body.rules())


@router.get("/items/{id:id}/similar", response_model=schemas.SimilarItems)
async def get_similar_items(
    request: Request, id: PathId, k: ItemCount = 10, min_position: MinPosition = None
) -> Response:
    """Returns the items with the most similar vectors, by cosine similarity."""
    service = service_of(request)
    await service.reach(min_position)
    return await service.answer(service_queries.similar_items, id, k)
