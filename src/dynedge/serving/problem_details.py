"""Errors as RFC 9457 tells them: application/problem+json, with a sentence that says what to do."""

from __future__ import annotations

import json
from http import HTTPStatus
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import Response

from dynedge.errors import DynedgeError
from dynedge.serving.answers import UnknownError
from dynedge.serving.engine import BrokenError, BusyError
from dynedge.serving.journal import DiskFullError

KIND = "application/problem+json"
RETRY = {"Retry-After": "1"}


def problem(status: int, sentence: str, headers: dict[str, str] | None = None) -> Response:
    told = {"type": "about:blank", "title": HTTPStatus(status).phrase, "status": status, "detail": sentence}
    return Response(json.dumps(told), status, headers, media_type=KIND)


def busy() -> Response:
    return problem(503, "more requests are waiting than can be answered soon; come again in a second.", RETRY)


def _sentence(error: RequestValidationError) -> str:
    first = error.errors()[0]
    where = ".".join(str(part) for part in first["loc"] if part not in ("body", "query", "path"))
    return f"{where or 'the body'}: {first['msg'][:1].lower()}{first['msg'][1:]}."


def _spoken(error: HTTPException) -> str:
    plain = {404: "there is nothing here; /docs lists what is.", 405: "this path is not for that method; see /docs."}
    return plain.get(error.status_code) or f"{str(error.detail).rstrip('.')}."


def add_to(app: FastAPI) -> None:
    def told(kind: type[Exception], answer: Any) -> None:
        async def handler(_: Request, error: Any) -> Response:
            return answer(error)

        app.add_exception_handler(kind, handler)

    told(RequestValidationError, lambda error: problem(422, _sentence(error)))
    told(HTTPException, lambda error: problem(error.status_code, _spoken(error), error.headers))
    told(UnknownError, lambda error: problem(404, str(error)))
    told(DynedgeError, lambda error: problem(422, str(error)))
    told(BusyError, lambda error: busy())
    told(
        BrokenError,
        lambda error: problem(503, f"the service must be started anew ({error}); nothing is lost.", RETRY),
    )
    told(
        DiskFullError, lambda error: problem(507, f"{error}; free some. What was accepted is safe, questions go on.")
    )
    told(Exception, lambda error: problem(500, f"this is a bug in dynedge ({type(error).__name__})."))
