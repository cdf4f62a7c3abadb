"""Routes that inspect users, items, the run and the current activity; the page is made of them."""

from __future__ import annotations

import math
from typing import Annotated

import numpy as np
from fastapi import APIRouter, Query, Request
from starlette.responses import JSONResponse, Response

from dynedge.errors import UsageError
from dynedge.inference.event_input import Event
from dynedge.inference.session import Session
from dynedge.serving.route_context import Service, service_of
from dynedge.serving.routes.common import ERRORS, Limit, MinPosition, PathId, StrictRoute
from dynedge.serving.service_queries import Record, find_row
from dynedge.serving.validation import applicable_events

router = APIRouter(responses=ERRORS, route_class=StrictRoute)


@router.get("/users/{id:id}/history")
async def get_user_history(request: Request, id: PathId, limit: Limit = 50) -> Response:
    """Returns the user's latest events in the journal, newest first."""
    service = service_of(request)
    session = service.session
    user = session.users[find_row(session, 0, id)]
    latest = await _latest(service, session, str(user), limit)
    events = [_history_entry(session, event) | {"event_id": event.event_id} for event in latest]
    return JSONResponse({"user_id": user, "events": events})


async def _latest(service: Service, session: Session, user: str, limit: int) -> list[Event]:
    entries = await service.background(service.engine.journal.of_user, user, limit)
    return [event for _, event in applicable_events(session, entries)]


def _history_entry(session: Session, event: Event) -> Record:
    return {"item_id": session.items.canonical(event.item), "time": event.time}


@router.get("/users/{id:id}/drift")
async def get_user_drift(request: Request, id: PathId) -> Response:
    """Returns the user's recent states since the service started, oldest first, projected to two dimensions."""
    return await _drift(service_of(request), 0, id)


@router.get("/items/{id:id}/drift")
async def get_item_drift(request: Request, id: PathId) -> Response:
    """Returns the item's recent states since the service started, oldest first, projected to two dimensions."""
    return await _drift(service_of(request), 1, id)


async def _drift(service: Service, side: int, external_id: str) -> Response:
    session = service.session
    row = find_row(session, side, external_id)
    points = await service.background(service.engine.drift.trajectory, side, row)
    if points is None:
        raise UsageError(f"the model {session.config.name} has no states to inspect.")
    return JSONResponse({"id": (session.users, session.items)[side][row], "points": points})


@router.get("/users/{id:id}")
async def get_user(request: Request, id: PathId) -> Response:
    """Returns whether the user was in the training log, and their last event in the journal."""
    service = service_of(request)
    session = service.session
    row = find_row(session, 0, id)
    last = await _latest(service, session, str(session.users[row]), 1)
    last_event = _history_entry(session, last[0]) if last else None
    trained = row < session.run_log.num_users
    return JSONResponse({"user_id": session.users[row], "in_training_log": trained, "last_event": last_event})


@router.get("/items/{id:id}")
async def get_item(request: Request, id: PathId, min_position: MinPosition = None) -> Response:
    """Returns whether the item was in the training log, its number of events, and the columns that describe it."""
    service = service_of(request)
    await service.reach(min_position)
    return await service.answer(_item, id)


def _item(session: Session, external_id: str) -> Record:
    row = find_row(session, 1, external_id)
    return {
        "item_id": session.items[row],
        "in_training_log": row < session.run_log.num_items,
        "events": int(session.coverage.item_counts[row]),
        "metadata": session.item_metadata.records(np.array([row]))[0],
    }


@router.get("/search")
async def search(
    request: Request,
    side: Annotated[str, Query(pattern="^(users|items)$")],
    prefix: Annotated[str, Query(max_length=256)] = "",
    limit: Limit = 20,
) -> Response:
    """Returns ids of users or items that start with a prefix, ignoring case."""
    service = service_of(request)
    ids = service.session.users if side == "users" else service.session.items
    return JSONResponse({"ids": await service.background(ids.search, prefix, limit)})


@router.get("/activity")
async def get_activity(request: Request) -> Response:
    """Returns counts of events and state updates: in all, and in each of the last 120 seconds."""
    engine = service_of(request).engine
    session, newest = engine.session, engine.session.coverage.last_time
    return JSONResponse(
        {
            "journal_events": engine.journal.count,
            "accepted": engine.accepted,
            "duplicates": engine.duplicates,
            "late": engine.late,
            "user_state_updates": engine.drift.updates[0],
            "item_state_updates": engine.drift.updates[1],
            "users": len(session.users),
            "items": len(session.items),
            "newest_event_time": newest if math.isfinite(newest) else None,
            "per_second": engine.drift.per_second(),
        }
    )


@router.get("/run")
async def get_run(request: Request) -> Response:
    """Returns the served run: config, learning curve, longest paths, d-nodes, metrics with intervals."""
    return JSONResponse(await service_of(request).run_info())
