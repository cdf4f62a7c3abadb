"""The server process: socket, event loop, signals."""

from __future__ import annotations

import asyncio
import gc
import signal
import socket
import sys
import threading
from collections.abc import Sequence

import torch
import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from dynedge.errors import UsageError
from dynedge.serving.app import EventSource, make_app
from dynedge.serving.engine import Engine
from dynedge.serving.middleware import LOOPBACK

HEADER_SECONDS = 20.0  # within which the headers of a request must be complete
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
        config = uvicorn.Config(app, http=TimedHttpProtocol, log_level="warning", access_log=False, lifespan="on")
        uvicorn.Server(config).run(sockets=[bound])


class TimedHttpProtocol(HttpToolsProtocol):
    """Closes a connection on which the headers of a request are not complete in time."""

    _timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._restart_timer()

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._restart_timer()

    def on_headers_complete(self) -> None:
        self._stop_timer()
        super().on_headers_complete()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timer()
        super().connection_lost(exc)

    def _restart_timer(self) -> None:
        self._stop_timer()
        self._timer = self.loop.call_later(HEADER_SECONDS, self.transport.close)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()


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
