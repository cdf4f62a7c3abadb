"""The server process: socket, event loop, signals."""

from __future__ import annotations

import asyncio
import gc
import signal
import socket
import sys
import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
import uvicorn
from fastapi import FastAPI
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from dynedge.errors import UsageError
from dynedge.serving.app import EventSource, make_app
from dynedge.serving.engine import Engine
from dynedge.serving.middleware import LOOPBACK

if TYPE_CHECKING:
    from uvicorn._types import ASGI3Application

HEADER_SECONDS = 20.0  # within which the headers of a request must be complete
MAX_HEADER_BYTES = 1 << 16  # of a request
HEADERS_TOO_LARGE = b"HTTP/1.1 431 Request Header Fields Too Large\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"
READ_SECONDS = 20.0  # within which a client must read some of an answer
SWITCH_INTERVAL = 0.0005  # seconds; requests are short, so a thread should not wait long for its turn


def run_server(engine: Engine, host: str, port: int, token: str | None, sources: Sequence[EventSource] = ()) -> None:
    """Serves until SIGTERM or SIGINT; SIGHUP reloads the run folder."""
    sys.setswitchinterval(SWITCH_INTERVAL)
    torch.set_num_threads(1)  # requests are small: a second thread would take the core from the next one
    gc.freeze()  # long-lived objects need not be scanned by later collections
    signal.signal(signal.SIGHUP, lambda *_: threading.Thread(target=_reload, args=(engine,), daemon=True).start())
    with _bind(host, port) as bound:
        address = f"{f'[{host}]' if ':' in host else host}:{bound.getsockname()[1]}"
        print(f"http://{address}  {engine.session.folder.name}, {engine.journal.count:,} events", flush=True)
        hosts = LOOPBACK if host in LOOPBACK else ()
        app = make_app(engine, token, hosts, sources)
        uvicorn.Server(server_config(app)).run(sockets=[bound])


def server_config(app: FastAPI) -> uvicorn.Config:
    """Returns the settings of uvicorn, which would otherwise parse headers of proxies and accept WebSockets."""
    return uvicorn.Config(
        app,
        http=GuardedHttpProtocol,
        ws="none",
        lifespan="on",
        log_level="warning",
        access_log=False,
        proxy_headers=False,
    )


class GuardedHttpProtocol(HttpToolsProtocol):
    """Bounds what one connection may take: time and size of headers, and time of a reader that does not read.

    Bodies are bounded in middleware.py.
    """

    _header_timer: asyncio.TimerHandle | None = None
    _write_timer: asyncio.TimerHandle | None = None
    _answered: RequestResponseCycle | None = None  # the request that is being answered; later ones may wait behind it
    _header_bytes = 0  # received since the last byte of a body, or the end of the last request

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._restart_header_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        _cancel(self._header_timer)
        _cancel(self._write_timer)
        if self._answered is not None:
            self._answered.disconnected = True  # else uvloop raises an error for every part of the answer
        super().connection_lost(exc)

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: ASGI3Application) -> None:
        self._answered = cycle
        super()._start_asgi_task(cycle, app)

    def data_received(self, data: bytes) -> None:
        self._header_bytes += len(data)
        super().data_received(data)
        if self._header_bytes > MAX_HEADER_BYTES and not self.transport.is_closing():
            if self.cycle is None or self.cycle.response_complete:  # else these are trailers of a request
                self.transport.write(HEADERS_TOO_LARGE)
            self.transport.close()

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._restart_header_timer()

    def on_headers_complete(self) -> None:
        self._header_bytes = 0
        _cancel(self._header_timer)
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self._header_bytes = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._header_bytes = 0
        super().on_message_complete()

    def eof_received(self) -> bool:  # type: ignore[override]
        """Keeps the connection open for the answer if the client has sent a whole request and will send no more."""
        if self.cycle is None or self.cycle.more_body or self.cycle.response_complete:
            return False
        self.cycle.keep_alive = False
        return True

    def pause_writing(self) -> None:
        super().pause_writing()
        self._watch_reader()

    def resume_writing(self) -> None:
        _cancel(self._write_timer)
        super().resume_writing()

    def _watch_reader(self) -> None:
        unread = self.transport.get_write_buffer_size()
        self._write_timer = self.loop.call_later(READ_SECONDS, self._abort_unless_read, unread)

    def _abort_unless_read(self, unread: int) -> None:
        if self.transport.get_write_buffer_size() < unread:
            self._watch_reader()
        else:
            self.transport.abort()

    def _restart_header_timer(self) -> None:
        _cancel(self._header_timer)
        self._header_timer = self.loop.call_later(HEADER_SECONDS, self.transport.close)


def _cancel(timer: asyncio.TimerHandle | None) -> None:
    if timer is not None:
        timer.cancel()


def _bind(host: str, port: int) -> socket.socket:
    try:
        return socket.create_server(
            (host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET, backlog=256
        )
    except OSError as error:
        raise UsageError(f"--host {host} --port {port}: cannot listen there ({error.strerror}).") from None


def _reload(engine: Engine) -> None:
    try:
        position = engine.reload()
        print(f"{engine.run} reloaded, with {position:,} events of the journal", file=sys.stderr)
    except Exception as error:
        print(f"dynedge: {engine.run} was not reloaded, the previous run stays in use: {error}", file=sys.stderr)
