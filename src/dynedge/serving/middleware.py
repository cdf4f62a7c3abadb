"""Access control as ASGI middleware: concurrency limit, host and origin, bearer token, size and time of the body.

It runs before everything else and refuses a request, where it can, before reading its body. A request counts towards
the concurrency limit from when its body is complete until its answer begins, so that clients that send or read slowly
hold no places of others.
"""

from __future__ import annotations

import asyncio
import hmac
import time
from collections.abc import Callable

from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from dynedge.serving.problem_details import busy, problem

MAX_BODY_BYTES = 1 << 20
BODY_TOO_LARGE = f"the body has more than {MAX_BODY_BYTES:,} bytes; send fewer events per request."
MAX_CONCURRENT_REQUESTS = 32
MAX_BUFFERED_BYTES = 1 << 26  # of bodies that are not complete yet, all together
BODY_SECONDS = 20.0  # within which a body must be complete
BODY_TOO_SLOW = f"the body was not complete within {BODY_SECONDS:g} seconds; send it faster, or fewer events."
HEALTH_PATHS = "/health", "/ready"  # need no token and are never refused as busy
CLOSE = {"Connection": "close"}  # the rest of the body is not read
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
        self._active = 0  # requests whose body is complete and whose answer has not begun
        self._buffered = 0  # bytes of the bodies that are not

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        if scope["method"] == "HEAD":  # answered like GET; the server leaves out the body
            scope = {**scope, "method": "GET"}
        started, status = time.perf_counter(), 500

        async def send_and_note_status(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self._respond(scope, receive, send_and_note_status)
        finally:
            path = getattr(scope.get("route"), "path", "other")
            self.record(path, status, time.perf_counter() - started)

    async def _respond(self, scope: Scope, receive: Receive, send: Send) -> None:
        body = self._refusal(scope) or await self._read_body(receive)
        if not isinstance(body, Response | None):
            body = self._refuse_if_busy(scope) or body
        if isinstance(body, Response):
            await body(scope, receive, send)
        elif body is not None:
            await self._answer(scope, _CompleteBody(bytes(body), receive), send)

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Calls the application; the request is active until its answer begins, however slowly that is read."""
        active = 1
        self._active += active

        async def send_and_release(message: Message) -> None:
            nonlocal active
            self._active -= active
            active = 0
            await send(message)

        try:
            await self.app(scope, receive, send_and_release)
        finally:
            self._active -= active

    async def _read_body(self, receive: Receive) -> Response | bytearray | None:
        """Returns the whole body, a refusal, or None if the client has left."""
        body = bytearray()
        try:
            async with asyncio.timeout(BODY_SECONDS):
                while True:
                    message = await receive()
                    if message["type"] != "http.request":
                        return None
                    part = message.get("body", b"")
                    body += part
                    self._buffered += len(part)
                    if len(body) > MAX_BODY_BYTES:
                        return problem(413, BODY_TOO_LARGE, CLOSE)
                    if not message.get("more_body", False):
                        return body
                    if self._buffered > MAX_BUFFERED_BYTES:
                        return busy(CLOSE)
        except TimeoutError:
            return problem(408, BODY_TOO_SLOW, CLOSE)
        finally:
            self._buffered -= len(body)

    def _refuse_if_busy(self, scope: Scope) -> Response | None:
        full = self._active >= MAX_CONCURRENT_REQUESTS and scope["path"] not in HEALTH_PATHS
        return busy() if full else None

    def _refusal(self, scope: Scope) -> Response | None:
        headers, path = Headers(scope=scope), scope["path"]
        if (refusal := self._refuse_if_busy(scope)) is not None:
            return refusal
        if self.hosts:
            host, origin = _host_name(headers.get("host", "")), headers.get("origin")
            if host not in self.hosts:
                return problem(421, f"this service does not answer to the host name {host!r}.")
            if origin is not None and _host_name(origin.partition("://")[2]) not in self.hosts:
                return problem(403, "requests from pages of other sites are refused.")
        if self._token and not _is_public(path):
            scheme, _, token = headers.get("authorization", "").partition(" ")
            if scheme.lower() != "bearer" or not hmac.compare_digest(token.strip().encode(), self._token):
                return problem(401, "send the token: Authorization: Bearer TOKEN.", {"WWW-Authenticate": "Bearer"})
        length = headers.get("content-length", "0")
        if len(length) > 18 or (length.isdigit() and int(length) > MAX_BODY_BYTES):
            return problem(413, BODY_TOO_LARGE, CLOSE)
        return None


def _is_public(path: str) -> bool:
    """Health checks and the files of the page need no token."""
    return path in HEALTH_PATHS or path == "/" or path.startswith("/page")


def _host_name(host: str) -> str:
    """Returns a host without its port."""
    return host[1:].partition("]")[0] if host.startswith("[") else host.partition(":")[0]


class _CompleteBody:
    """The `receive` of a request whose body was read already."""

    def __init__(self, body: bytes, receive: Receive) -> None:
        self._body: bytes | None = body
        self._receive = receive

    async def __call__(self) -> Message:
        if self._body is None:
            return await self._receive()
        body, self._body = self._body, None
        return {"type": "http.request", "body": body, "more_body": False}
