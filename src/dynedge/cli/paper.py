"""The command `paper`: every table and figure of the EDGE paper, for any log."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from dynedge.cli import app, stopped
from dynedge.cli.options import LogFolder


@app.command()
def paper(
    log: LogFolder,
    out: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Folder for page, tables, figures and runs. [default: LOG-paper]"),
    ] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="Quick run on the last 30,000 events with few epochs, to see the layout.")
    ] = False,
    seeds: Annotated[int, typer.Option(metavar="N", help="Number of seeds.", min=1)] = 1,
    epochs: Annotated[
        int | None, typer.Option(metavar="N", help="Maximum number of epochs of every system.", min=1)
    ] = None,
) -> None:
    """Reproduce the tables and figures of the EDGE paper for a log.

    Trains the paper's thirteen systems, EDGE as published, and this package's own, under the protocol that fits the
    log's size, and EDGE with fewer and more d-nodes and active entities. Writes DIR/index.html, table1.csv to
    table5.csv, figure1.svg and so on, and results.json. An interrupted command continues when it is run again.
    """
    from dataclasses import replace

    from dynedge.data.log import read_log
    from dynedge.experiments.paper import QUICK, Extent, run_paper, uncut_plan
    from dynedge.report.paper_figures import draw_figures
    from dynedge.report.paper_page import tables, write_page, write_tables
    from dynedge.report.style import check_plot_path
    from dynedge.utils.atomic_io import write_text
    from dynedge.utils.signals import StoppedBySignal

    folder = out or log.resolve().with_name(f"{log.resolve().name}-paper")
    if folder.exists() and not folder.is_dir():
        raise typer.BadParameter(f"--out {folder} is a file; give a folder.")
    if not folder.absolute().parent.is_dir():
        raise typer.BadParameter(f"--out {folder}: the folder {folder.parent} does not exist.")
    extent = QUICK if quick else Extent()
    extent = extent if epochs is None else replace(extent, epochs=epochs, edge_epochs=epochs)
    opened = read_log(log)
    folder.mkdir(exist_ok=True)
    check_plot_path(folder / "figure1.svg")
    try:
        results = run_paper(opened, folder, extent, seeds=seeds)
    except StoppedBySignal as signal:
        raise stopped(signal, signal.exit_code, "run the same command again to continue") from None
    studied = read_log(results["log"])
    made = tables(results)
    write_text(folder / "results.json", json.dumps(results, indent=1) + "\n")
    write_tables(made, folder)
    figures = draw_figures(results, studied, uncut_plan(studied, results["edge"]), folder)
    print(f"wrote {write_page(results, made, figures, folder)}", file=sys.stderr)
