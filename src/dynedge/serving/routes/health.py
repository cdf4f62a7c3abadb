"""Routes for operators: reload, health, readiness, Prometheus metrics."""

from __future__ import annotations

from fastapi import APIRouter, Request
from starlette.responses import JSONResponse, PlainTextResponse, Response

from dynedge.serving.problem_details import failed
from dynedge.serving.route_context import service_of
from dynedge.serving.routes.common import ERRORS

router = APIRouter(responses=ERRORS)


@router.post("/reload")
async def post_reload(request: Request) -> Response:
    """Opens the run folder again, replays the journal and replaces the served run without dropping requests."""
    service = service_of(request)
    position = await service.background(service.engine.reload)
    return JSONResponse({"position": service.position_text(position)})


@router.get("/health")
async def get_health() -> Response:
    """Responds as long as the process is alive."""
    return JSONResponse({"status": "ok"})


@router.get("/ready")
async def get_ready(request: Request) -> Response:
    """Responds with 200 if events and queries are accepted, else with 503."""
    engine = service_of(request).engine
    if engine.failure:
        return failed(engine.failure)
    session, position = engine.session, engine.journal.text(engine.position)
    answer = {"status": "ready", "position": position, "run": session.folder.name}
    return JSONResponse(answer | ({"events_not_applied": session.not_applied} if session.not_applied else {}))


@router.get("/metrics", response_class=PlainTextResponse)
async def get_metrics(request: Request) -> Response:
    """Returns metrics in the Prometheus text format."""
    return PlainTextResponse(service_of(request).metrics.text())
