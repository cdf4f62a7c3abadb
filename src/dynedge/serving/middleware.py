"""Who may come in: the right host, the right token, no body that is too long, no more at once than can be done.

It stands before everything else and reads no body, so that turning away costs next to nothing.
"""

from __future__ import annotations

import hmac
import time
from collections.abc import Callable
from typing import Any

from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from dynedge.serving.problem_details import busy, problem

LONGEST = 1 << 20  # bytes of a body
TOO_LONG = f"the body has more than {LONGEST:,} bytes; send fewer events at once."
AT_ONCE = 32  # requests
OPEN = "/health", "/ready"  # to anyone, and never refused for being busy
LOOPBACK = "127.0.0.1", "localhost", "::1"


class Guard:
    """`hosts`: names this service goes by; none: any. `told` hears path, status and seconds of each request."""

    def __init__(
        self,
        app: ASGIApp,
        token: str | None,
        hosts: tuple[str, ...],
        told: Callable[[str, int, float], None],
    ) -> None:
        self.app, self.hosts, self.told = app, hosts, told
        self._token = token.encode() if token else None
        self._inside = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        began, status = time.perf_counter(), 500

        async def sending(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        self._inside += 1
        try:
            refusal = self._refusal(scope)
            if refusal is not None:
                await refusal(scope, receive, sending)
            else:
                await self.app(scope, _Bounded(receive), sending)
        finally:
            self._inside -= 1
            self.told(getattr(scope.get("route"), "path", "other"), status, time.perf_counter() - began)

    def _refusal(self, scope: Scope) -> Any:
        headers, is_open = Headers(scope=scope), scope["path"] in OPEN
        if self._inside > AT_ONCE and not is_open:
            return busy()
        if self.hosts:
            host, origin = _name(headers.get("host", "")), headers.get("origin")
            if host not in self.hosts:
                return problem(421, f"this service does not go by the name {host!r}.")
            if origin is not None and _name(origin.partition("://")[2]) not in self.hosts:
                return problem(403, "pages of other sites may not use this service.")
        if self._token and not is_open and not scope["path"].startswith("/page") and scope["path"] != "/":
            given = headers.get("authorization", "").removeprefix("Bearer ").encode()
            if not hmac.compare_digest(given, self._token):
                return problem(401, "send the token: Authorization: Bearer TOKEN.", {"WWW-Authenticate": "Bearer"})
        length = headers.get("content-length", "0")
        if length.isdigit() and int(length) > LONGEST:
            return problem(413, TOO_LONG)
        return None


def _name(host: str) -> str:
    """Without a port."""
    return host[1:].partition("]")[0] if host.startswith("[") else host.partition(":")[0]


class _Bounded:
    """A body that is sent without its length is counted as it comes."""

    def __init__(self, receive: Receive) -> None:
        self._receive, self._read = receive, 0

    async def __call__(self) -> Message:
        message = await self._receive()
        if message["type"] == "http.request":
            self._read += len(message.get("body", b""))
            if self._read > LONGEST:
                raise HTTPException(413, TOO_LONG)
        return message
