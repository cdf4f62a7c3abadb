"""Route that accepts events."""

from __future__ import annotations

import asyncio

from fastapi import APIRouter, Request
from starlette.responses import JSONResponse, Response

from dynedge.errors import UsageError
from dynedge.serving.route_context import service_of
from dynedge.serving.routes.common import BODY_ERRORS, ERRORS, StrictRoute
from dynedge.serving.schemas import EventsBody, EventsReceipt
from dynedge.serving.validation import validate_event

router = APIRouter(responses=ERRORS, route_class=StrictRoute)


@router.post("/events", response_model=EventsReceipt, responses=BODY_ERRORS)
async def post_events(request: Request, body: EventsBody) -> Response:
    """Accepts 1 to 1,000 events in the order in which they happened; responds once they are durable and applied."""
    service = service_of(request)
    events = []
    for number, event in enumerate(body.events):
        try:
            events.append(validate_event(service.session, event))
        except UsageError as error:
            raise UsageError(f"events.{number}: {error}") from None
    receipt = await asyncio.wrap_future(service.engine.submit(events))
    return JSONResponse(vars(receipt) | {"position": service.position_text(receipt.position)})
