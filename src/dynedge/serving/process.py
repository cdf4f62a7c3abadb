"""A server process: the socket, the loop, the signals."""

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
from dynedge.serving.app import Source, make_app
from dynedge.serving.engine import Engine
from dynedge.serving.middleware import LOOPBACK

SWITCH = 0.0005  # seconds after which a thread makes room for another: answers are short, and so should waits be


def listen(engine: Engine, host: str, port: int, token: str | None, sources: Sequence[Source] = ()) -> None:
    """Until SIGTERM or SIGINT; SIGHUP opens the run anew."""
    sys.setswitchinterval(SWITCH)
    torch.set_num_threads(1)  # requests are small: a second thread would take the core from the next one
    gc.freeze()  # what is there now stays: collections need not look at it again
    signal.signal(signal.SIGHUP, lambda *_: threading.Thread(target=_swap, args=(engine,), daemon=True).start())
    with _bound(host, port) as opened:
        address = f"{f'[{host}]' if ':' in host else host}:{opened.getsockname()[1]}"
        print(f"http://{address}  {engine.live.folder.name}, {engine.journal.end:,} events so far", flush=True)
        hosts = LOOPBACK if host in LOOPBACK else ()
        app = make_app(engine, token, hosts, sources)
        config = uvicorn.Config(app, log_level="warning", access_log=False, lifespan="on")
        uvicorn.Server(config).run(sockets=[opened])


def _bound(host: str, port: int) -> socket.socket:
    try:
        return socket.create_server(
            (host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET, backlog=256
        )
    except OSError as error:
        raise UsageError(f"--host {host} --port {port} cannot be listened on: {error.strerror}.") from None


def _swap(engine: Engine) -> None:
    try:
        position = engine.swap()
        print(f"{engine.run} opened anew, with {position:,} events of the journal", file=sys.stderr)
    except Exception as error:
        print(f"dynedge: {engine.run} was not opened anew, the old one goes on: {error}", file=sys.stderr)
