"""The verb `serve`: a run as a service that takes in events and answers questions."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from dynedge.cli import app
from dynedge.errors import DataError, UsageError

TOKEN = "DYNEDGE_TOKEN"
Data = Annotated[Path | None, typer.Option(metavar="DIR", help="The service's own folder; RUN.data unless given.")]


def data_of(run: Path, data: Path | None) -> Path:
    """Where the service of a run keeps what it was sent."""
    run = Path(os.path.abspath(run))  # `.` has a name too
    return data or run.with_name(run.name + ".data")


@app.command()
def serve(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run folder.")],
    host: Annotated[str, typer.Option(help="Where to listen; beyond this machine with a token only.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="The port; 0: any free one.", min=0, max=65535)] = 8000,
    data: Data = None,
    token_file: Annotated[
        Path | None, typer.Option(metavar="FILE", help=f"A token that requests must carry; or ${TOKEN}.")
    ] = None,
    source: Annotated[
        str | None,
        typer.Option(metavar="URL", help="Follow a Redis Stream: redis://HOST:PORT/DB?stream=events&group=dynedge"),
    ] = None,
    replay: Annotated[
        Path | None, typer.Option(metavar="LOG", help="Play what the run does not know of a log into the service.")
    ] = None,
    rate: Annotated[float, typer.Option(help="Events a second of --replay.", min=0.1)] = 20.0,
) -> None:
    """Serve a run: events go in and are never lost, states move with them, recommendations come out.

    The page at / shows what happens. SIGHUP, or POST /reload, puts in what RUN has become since, without a pause.
    """
    token = _token(token_file)
    from dynedge.serving.middleware import LOOPBACK

    if host not in LOOPBACK and token is None:
        raise UsageError(f"--host {host} is open to other machines: pass --token-file FILE, or set {TOKEN}.")
    from dynedge.serving.engine import Engine
    from dynedge.serving.process import listen

    run = Path(os.path.abspath(run))
    folder = data_of(run, data)
    print(f"opening {run}, with what {folder} has …", file=sys.stderr)
    engine = Engine(run, folder)
    sources: list[Any] = []
    if source is not None:
        from dynedge.serving.redis_stream import RedisSource

        sources.append(RedisSource(engine, source))
    if replay is not None:
        from dynedge.data.log import read_log
        from dynedge.serving.replay import Replay

        sources.append(Replay(engine, read_log(replay), rate))
    listen(engine, host, port, token, sources)


def _token(file: Path | None) -> str | None:
    try:
        told = os.environ.get(TOKEN, "") if file is None else file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        raise DataError(f"--token-file {file} cannot be read.") from None
    if file is not None and not told.strip():
        raise DataError(f"--token-file {file} is empty.")
    return told.strip() or None
