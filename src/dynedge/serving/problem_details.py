"""Errors as problem details (RFC 9457): application/problem+json with one sentence on what to do."""

from __future__ import annotations

import json
from collections.abc import Callable
from http import HTTPStatus
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import Response

from dynedge.errors import DynedgeError
from dynedge.serving.engine import BehindError, BusyError, EngineFailedError
from dynedge.serving.journal import DiskFullError, JournalUnavailableError
from dynedge.serving.service_queries import UnknownIdError

MEDIA_TYPE = "application/problem+json"
RETRY = {"Retry-After": "1"}


def problem(status: int, detail: str, headers: dict[str, str] | None = None) -> Response:
    """Returns a response with problem details."""
    content = {"type": "about:blank", "title": HTTPStatus(status).phrase, "status": status, "detail": detail}
    return Response(json.dumps(content), status, headers, media_type=MEDIA_TYPE)


def busy(headers: dict[str, str] | None = None) -> Response:
    return problem(503, "too many requests are queued; retry in a second.", RETRY | (headers or {}))


def failed(reason: str) -> Response:
    return problem(503, f"the service must be restarted ({reason}); no accepted event is lost.", RETRY)


def _validation_detail(error: RequestValidationError) -> str:
    first = error.errors()[0]
    where = ".".join(str(part) for part in first["loc"] if part not in ("body", "query", "path"))
    return f"{where or 'the body'}: {first['msg'][:1].lower()}{first['msg'][1:]}."


def _http_detail(error: HTTPException) -> str:
    common = {
        404: "this path does not exist; /docs lists those that do.",
        405: "this path does not support that method; see /docs.",
    }
    return common.get(error.status_code) or f"{str(error.detail).rstrip('.')}."


def add_exception_handlers(app: FastAPI) -> None:
    """Maps every exception of the service to problem details."""

    def add(kind: type[Exception], respond: Callable[[Any], Response]) -> None:
        async def handler(_: Request, error: Any) -> Response:
            return respond(error)

        app.add_exception_handler(kind, handler)

    add(RequestValidationError, lambda error: problem(422, _validation_detail(error)))
    add(HTTPException, lambda error: problem(error.status_code, _http_detail(error), error.headers))
    add(UnknownIdError, lambda error: problem(404, str(error)))
    add(DynedgeError, lambda error: problem(422, str(error)))
    add(BehindError, lambda error: problem(503, f"{error}; retry in a second.", RETRY))
    add(BusyError, lambda error: busy())
    add(EngineFailedError, lambda error: failed(str(error)))
    add(JournalUnavailableError, lambda error: problem(503, f"{error}; retry with the same event ids.", RETRY))
    add(DiskFullError, lambda error: problem(507, f"{error}; free some space. Queries still work, nothing is lost."))
    add(Exception, lambda error: problem(500, f"this is a bug in dynedge ({type(error).__name__})."))
