"""Arguments and options that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

LogFolder = Annotated[Path, typer.Argument(metavar="LOG", help="Log folder.")]
NewLogFolder = Annotated[Path, typer.Option("--out", metavar="LOG", help="Log folder to create.")]
RunFolder = Annotated[Path, typer.Argument(metavar="RUN", help="Run folder.")]
ModelName = Annotated[str | None, typer.Option("--model", metavar="NAME", help="Model or recipe. [default: edge]")]
Assignments = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Any field of the config by its dotted key; repeatable."),
]
Protocol = Annotated[
    str,
    typer.Option(
        metavar="NAME",
        help="full (all items), sampled-499 or sampled-9999 (sampled negatives), tgb (rules of the Temporal Graph "
        "Benchmark), or online (all items; the model learns from each event after ranking it).",
    ),
]
Lists = Annotated[
    bool | None,
    typer.Option(
        "--lists/--no-lists",
        help="Metrics of recommended lists too: coverage, diversity and others. [default: with protocol full]",
    ),
]
NewerEvents = Annotated[
    Path | None,
    typer.Option(metavar="LOG", help="Log whose newer events update the states before the answer."),
]
UpdateEpochs = Annotated[int, typer.Option(min=1, help="Number of passes over the new training events.")]
Replay = Annotated[
    float, typer.Option(min=0, max=1e6, help="Old training events trained on again, as a share of the new ones.")
]
UpdateRate = Annotated[float, typer.Option(min=0, max=1e6, help="Factor of the run's learning rates.")]
Force = Annotated[bool, typer.Option("--force", help="Overwrite existing output.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
