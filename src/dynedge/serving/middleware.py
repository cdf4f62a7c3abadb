"""Access control as ASGI middleware: concurrency limit, host and origin, bearer token, body size.

It runs before everything else and reads no body, so that refusing a request is cheap.
"""

from __future__ import annotations

import hmac
import time
from collections.abc import Callable

from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from dynedge.serving.problem_details import busy, problem

MAX_BODY_BYTES = 1 << 20
BODY_TOO_LARGE = f"the body has more than {MAX_BODY_BYTES:,} bytes; send fewer events per request."
MAX_CONCURRENT_REQUESTS = 32
HEALTH_PATHS = "/health", "/ready"  # need no token and are never refused as busy
LOOPBACK = "127.0.0.1", "localhost", "::1"


class AccessMiddleware:
    """Refuses requests that may not or cannot be served.

    `hosts` are the allowed host names, all if empty. `record` is called with path, status and seconds per request.
    """

    def __init__(
        self,
        app: ASGIApp,
        token: str | None,
        hosts: tuple[str, ...],
        record: Callable[[str, int, float], None],
    ) -> None:
        self.app, self.hosts, self.record = app, hosts, record
        self._token = token.encode() if token else None
        self._active = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        started, status = time.perf_counter(), 500

        async def send_and_note_status(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        self._active += 1
        try:
            refusal = self._refusal(scope)
            if refusal is not None:
                await refusal(scope, receive, send_and_note_status)
            else:
                await self.app(scope, _LimitedBody(receive), send_and_note_status)
        finally:
            self._active -= 1
            path = getattr(scope.get("route"), "path", "other")
            self.record(path, status, time.perf_counter() - started)

    def _refusal(self, scope: Scope) -> Response | None:
        headers, path = Headers(scope=scope), scope["path"]
        if self._active > MAX_CONCURRENT_REQUESTS and path not in HEALTH_PATHS:
            return busy()
        if self.hosts:
            host, origin = _host_name(headers.get("host", "")), headers.get("origin")
            if host not in self.hosts:
                return problem(421, f"this service does not answer to the host name {host!r}.")
            if origin is not None and _host_name(origin.partition("://")[2]) not in self.hosts:
                return problem(403, "requests from pages of other sites are refused.")
        if self._token and not _is_public(path):
            token = headers.get("authorization", "").removeprefix("Bearer ").encode()
            if not hmac.compare_digest(token, self._token):
                return problem(401, "send the token: Authorization: Bearer TOKEN.", {"WWW-Authenticate": "Bearer"})
        length = headers.get("content-length", "0")
        if length.isdigit() and int(length) > MAX_BODY_BYTES:
            return problem(413, BODY_TOO_LARGE)
        return None


def _is_public(path: str) -> bool:
    """Health checks and the files of the page need no token."""
    return path in HEALTH_PATHS or path == "/" or path.startswith("/page")


def _host_name(host: str) -> str:
    """Returns a host without its port."""
    return host[1:].partition("]")[0] if host.startswith("[") else host.partition(":")[0]


class _LimitedBody:
    """Counts the bytes of a body that was sent without a Content-Length."""

    def __init__(self, receive: Receive) -> None:
        self._receive, self._read = receive, 0

    async def __call__(self) -> Message:
        message = await self._receive()
        if message["type"] == "http.request":
            self._read += len(message.get("body", b""))
            if self._read > MAX_BODY_BYTES:
                raise HTTPException(413, BODY_TOO_LARGE)
        return message
