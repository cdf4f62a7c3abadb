"""The command `tune`: a hyperparameter search on a log."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from dynedge.cli import app, stopped
from dynedge.cli.config_flags import config_flag
from dynedge.cli.options import Assignments, Json, LogFolder, ModelName
from dynedge.cli.tables import table


@app.command()
def tune(
    log: LogFolder,
    out: Annotated[
        Path, typer.Option("--out", metavar="DIR", help="Folder for the trials and the best config.toml.")
    ],
    model: ModelName = None,
    trials: Annotated[int, typer.Option(metavar="N", help="Maximum number of trials.", min=1)] = 30,
    minutes: Annotated[
        float | None, typer.Option(metavar="X", help="Time limit; no trial starts after it.", min=0)
    ] = None,
    epochs: Annotated[int | None, config_flag("epochs", default=False, min=1, rich_help_panel=None)] = None,
    assignments: Assignments = None,
    as_json: Json = False,
) -> None:
    """Search for better settings of a model by validation MRR.

    The search starts at the model's defaults, or at the values given by --set; the best settings are written to
    DIR/config.toml. The search space is part of the model's registry entry; test events are not used. An interrupted
    search continues when the same command is run again, and more --trials or --minutes extend it.
    """
    from dynedge.config import override, set_key
    from dynedge.data.log import read_log
    from dynedge.experiments.tune import tune as search
    from dynedge.models.registry import default_model
    from dynedge.runs.run_config import recipe_config
    from dynedge.utils.process_group import process_group
    from dynedge.utils.signals import StoppedBySignal

    name = model or default_model()
    recipe = recipe_config(name)
    if epochs is not None:
        recipe = set_key(recipe, "training.epochs", epochs, "--epochs")
    recipe = override(recipe, assignments or [])
    try:
        with process_group() as group:
            results = search(read_log(log), recipe, out, trials=trials, minutes=minutes, group=group)
    except StoppedBySignal as signal:
        raise stopped(signal, signal.exit_code, "run the same command again to continue") from None
    if not group.is_first:
        return
    config = out / "config.toml" if results[0]["valid_mrr"] is not None else None
    summary = {
        "model": name,
        "log": str(log),
        "config": config and str(config),
        "best": results[0],
        "trials": results,
    }
    print(json.dumps(summary) if as_json else _text(summary))
    if config is None:
        raise typer.Exit(3)


def _text(summary: dict[str, Any]) -> str:
    from dynedge.utils.progress import clock

    rows = [["trial", "validation MRR", "Recall@10", "epochs", "time", "settings"]]
    for trial in summary["trials"]:
        failed = trial["valid_mrr"] is None
        metrics = ["-"] * 3 if failed else [f"{trial['valid_mrr']:.4f}", f"{trial['valid_recall@10']:.4f}"]
        metrics += [] if failed else [str(trial["epochs"])]
        rows.append([str(trial["trial"] + 1), *metrics, clock(trial["seconds"]), _settings(trial)])
    text = table(rows, text_columns=(0, 5))
    if summary["config"]:
        text += f"\n\ntrain with the best: dynedge train {summary['log']} --config {summary['config']} --out RUN"
    return text


def _settings(trial: dict[str, Any]) -> str:
    settings = ", ".join(f"{key}={value}" for key, value in trial["changed"].items()) or "defaults"
    return f"{settings}: {trial['error']}" if trial["error"] else settings
