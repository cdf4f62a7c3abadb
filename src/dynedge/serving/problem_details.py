"""Errors as problem details (RFC 9457): application/problem+json with one sentence on what to do."""

from __future__ import annotations

import json
import re
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
UNION_MEMBER = re.compile(r"constrained-\w+|int|float|str|bool|(list|dict)\[.*\]")  # in the place of an error


def problem(status: int, detail: str, headers: dict[str, str] | None = None) -> Response:
    """Returns a response with problem details."""
    content = {"type": "about:blank", "title": HTTPStatus(status).phrase, "status": status, "detail": detail}
    return Response(json.dumps(content), status, headers, media_type=MEDIA_TYPE)


def busy(headers: dict[str, str] | None = None) -> Response:
    return problem(503, "too many requests are queued; retry in a second.", RETRY | (headers or {}))


def failed(reason: str) -> Response:
    return problem(503, f"the service must be restarted ({reason}); no accepted event is lost.", RETRY)


def _validation_detail(error: RequestValidationError) -> str:
    errors = error.errors()
    first = errors[0]
    if first["type"] == "json_invalid":
        return f"the body is not valid JSON: {first['ctx']['error']}, at character {first['loc'][-1]}."
    if not (where := _place(first)) and isinstance(first.get("input"), bytes):
        return "the body is not read as JSON: send the header Content-Type: application/json."
    # A value of several allowed types has an error for each; what is wrong besides the type says most, the deepest.
    same = [one for one in errors if _place(one)[: len(where)] == where]
    wrong = [one for one in same if not one["type"].endswith("_type")] or same
    where = max(map(_place, wrong), key=len)
    messages = dict.fromkeys(_lower(one["msg"]) for one in wrong if _place(one) == where)
    return f"{'.'.join(where) or 'the body'}: {', or '.join(messages)}."


def _place(error: Any) -> list[str]:
    """The keys that lead to a wrong value, without the source and the alternatives of a union: list[…], int."""
    _, *keys = error["loc"]
    return [str(key) for key in keys if not UNION_MEMBER.fullmatch(str(key))]


def _lower(text: str) -> str:
    return text[:1].lower() + text[1:]


def _http_detail(error: HTTPException) -> str:
    common = {
        400: "the body cannot be read as JSON: it is nested too deeply, or has a number of too many digits.",
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
