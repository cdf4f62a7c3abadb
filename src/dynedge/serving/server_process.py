"""The server process: socket, event loop, signals."""

from __future__ import annotations

import gc
import signal
import socket
import sys
import threading
from collections.abc import Sequence

import torch
import uvicorn

from dynedge.errors import UsageError
from dynedge.serving.app import EventSource, make_app
from dynedge.serving.engine import Engine
from dynedge.serving.middleware import LOOPBACK

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
        config = uvicorn.Config(app, log_level="warning", access_log=False, lifespan="on")
        uvicorn.Server(config).run(sockets=[bound])


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
