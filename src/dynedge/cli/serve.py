"""The command `serve`: an HTTP service that consumes events and returns recommendations."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dynedge.cli import app
from dynedge.cli.options import RunFolder
from dynedge.errors import DataError, UsageError

if TYPE_CHECKING:
    from dynedge.serving.redis_journal import RedisJournal

TOKEN = "DYNEDGE_TOKEN"
ServiceFolder = Annotated[
    Path | None, typer.Option(metavar="DIR", help="Folder for the journal and snapshots. [default: RUN.data]")
]

JournalUrl = Annotated[
    str | None,
    typer.Option(
        metavar="URL", help="Redis Stream that replicas share: redis://HOST:PORT/STREAM. [default: a file in --data]"
    ),
]


def service_folder(run: Path, data: Path | None) -> Path:
    """Returns the folder in which the service of a run stores its journal."""
    run = Path(os.path.abspath(run))  # `.` has a name too
    return data or run.with_name(run.name + ".data")


@app.command()
def serve(
    run: RunFolder,
    host: Annotated[
        str,
        typer.Option(metavar="ADDRESS", help="Address to listen on; other machines can connect only with a token."),
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(metavar="N", help="Port; 0: any free port.", min=0, max=65535)] = 8000,
    data: ServiceFolder = None,
    journal: JournalUrl = None,
    keep_days: Annotated[
        float | None,
        typer.Option(metavar="X", help="Days after which events leave the stream. [default: never]", min=0),
    ] = None,
    token_file: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help=f"File with a token that requests must carry; or set {TOKEN}."),
    ] = None,
    replay: Annotated[
        Path | None, typer.Option(metavar="LOG", help="Log whose newer events are replayed into the service.")
    ] = None,
    rate: Annotated[float, typer.Option(metavar="X", help="Events per second of --replay.", min=0.1)] = 20.0,
    learn: Annotated[
        bool, typer.Option("--learn", help="Learn from received events in the background; see dynedge refresh.")
    ] = False,
    learn_every: Annotated[
        int, typer.Option(metavar="N", help="Number of received events between refreshes by --learn.", min=1)
    ] = 10_000,
) -> None:
    """Serve recommendations over HTTP, updated by incoming events.

    Events are written to a journal before they are acknowledged, so none is lost. The page at / shows the service
    live. SIGHUP or POST /reload loads a retrained RUN without downtime. With --journal, any number of replicas serve
    the same events.
    """
    if keep_days is not None and journal is None:
        raise UsageError("--keep-days is for a Redis Stream; pass --journal URL with it.")
    if learn and journal is not None:
        raise UsageError("--learn is for a journal in --data; with --journal, run dynedge refresh on one machine.")
    token = _read_token(token_file)
    from dynedge.serving.middleware import LOOPBACK

    if host not in LOOPBACK and token is None:
        raise UsageError(f"--host {host} is open to other machines: pass --token-file FILE, or set {TOKEN}.")
    from dynedge.serving.engine import Engine
    from dynedge.serving.server_process import run_server

    run = Path(os.path.abspath(run))
    folder = service_folder(run, data)
    print(f"opening {run} with the events in {folder} …", file=sys.stderr)
    stream = None
    if journal is not None:
        stream = open_redis_journal(journal, None if keep_days is None else keep_days * 86400)
        print(stream.durability(), file=sys.stderr)
    engine = Engine(run, folder, stream)
    sources: list[Any] = []
    if replay is not None:
        from dynedge.data.log import read_log
        from dynedge.serving.log_replay import LogReplay

        sources.append(LogReplay(engine, read_log(replay), rate))
    if learn:
        from dynedge.serving.learner import BackgroundLearner

        sources.append(BackgroundLearner(engine, learn_every))
    run_server(engine, host, port, token, sources)


def open_redis_journal(url: str, keep_seconds: float | None = None) -> RedisJournal:
    try:
        from dynedge.serving.redis_journal import RedisJournal
    except ImportError:
        raise UsageError("--journal needs the package redis; install it with: pip install 'dynedge[redis]'") from None
    return RedisJournal(url, keep_seconds)


def _read_token(file: Path | None) -> str | None:
    try:
        text = os.environ.get(TOKEN, "") if file is None else file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        raise DataError(f"--token-file {file} cannot be read.") from None
    if file is not None and not text.strip():
        raise DataError(f"--token-file {file} is empty.")
    return text.strip() or None
