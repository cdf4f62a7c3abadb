"""The command `update`: continues a run on a log that has gained events."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from dynedge.cli import app, stopped
from dynedge.cli.options import Json, LogFolder, Replay, RunFolder, UpdateEpochs, UpdateRate


@app.command()
def update(
    run: RunFolder,
    log: LogFolder,
    out: Annotated[Path, typer.Option("--out", metavar="RUN2", help="Run folder to create.")],
    epochs: UpdateEpochs = 2,
    replay: Replay = 1.0,
    rate: UpdateRate = 0.5,
    resume: Annotated[bool, typer.Option("--resume", help="Continue an interrupted update, if RUN2 exists.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Overwrite an existing run.")] = False,
    as_json: Json = False,
) -> None:
    """Continue a run on a log that has gained events, as a new run.

    LOG starts with the events of the log that RUN was trained on (dynedge append makes such a log) and is split in
    the same shares. RUN2 starts from the parameters and the optimizer state of RUN, new users and items get rows, and
    it trains on the new training events. An update interrupted by Ctrl-C, SIGTERM or a crash continues with --resume,
    to the same result.
    """
    from dynedge.cli.train import summary_of, summary_text
    from dynedge.data.log import read_log
    from dynedge.runs import folder
    from dynedge.runs.update_run import UpdateConfig, update_run
    from dynedge.utils.signals import StoppedBySignal, StopSignal

    settings = UpdateConfig(epochs, replay, rate)
    try:
        with StopSignal() as stop, folder.RunFolder(out, resume=resume, force=force) as new:
            config, state = update_run(run, read_log(log), new, settings, stop=stop)
    except StoppedBySignal as signal:
        again = "run the same command again" if resume else "add --resume to the same command"
        advice = f"{again} to continue" if out.exists() else "nothing was saved yet"
        raise stopped(signal, signal.exit_code, advice) from None
    summary = {**summary_of(out, config, state), "parent": str(run)}
    summary["stopped_early"] = False
    print(json.dumps(summary) if as_json else summary_text(summary))
