"""The demo: the main job on a small log made here."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from dynedge.cli import app
from dynedge.cli.data import Force


@app.command()
def demo(
    out: Annotated[Path, typer.Option("--out", help="A folder for everything the demo makes.")] = Path("demo"),
    seed: Annotated[int, typer.Option(help="Another seed, another log.")] = 0,
    force: Force = False,
) -> None:
    """Make a log, look at it, plan its training; pictures at the end."""
