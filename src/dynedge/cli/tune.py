"""The verb `tune`: a small search for a model's settings on a log."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from dynedge.cli import app
from dynedge.cli.data import Json
from dynedge.cli.evaluate import table


@app.command()
def tune(
    log: Annotated[Path, typer.Argument(metavar="LOG", help="The log's folder.")],
    out: Annotated[Path, typer.Option("--out", metavar="DIR", help="A folder for the search and its config.toml.")],
    model: Annotated[str, typer.Option(metavar="NAME", help="A model or a recipe of one.")] = "edge",
    trials: Annotated[int, typer.Option(help="So many settings, at most.", min=1)] = 20,
    minutes: Annotated[float | None, typer.Option(help="Begin no trial after so many.", min=0)] = None,
    epochs: Annotated[int | None, typer.Option(help="Epochs of a trial, at most.", min=1)] = None,
    as_json: Json = False,
) -> None:
    """Search for settings by validation MRR, from the model's own on, and write the best to DIR/config.toml.

    What is tried is stated in the model's registry entry. Stopped or killed, the same command goes on; with more
    --trials or --minutes it goes further. The test events are not looked at.
    """
    from dynedge.config import set_key
    from dynedge.data.log import read_log
    from dynedge.experiments.tune import tune as search
    from dynedge.runs.run_config import recipe_config
    from dynedge.utils.signals import StoppedBySignal

    recipe = recipe_config(model)
    if epochs is not None:
        recipe = set_key(recipe, "training.epochs", epochs, "--epochs")
    try:
        found = search(read_log(log), recipe, out, trials=trials, minutes=minutes)
    except StoppedBySignal as stopped:
        print(f"dynedge: stopped by {stopped}; the same command goes on where it stood.", file=sys.stderr)
        raise typer.Exit(stopped.exit_code) from None
    config = out / "config.toml" if found[0]["valid_mrr"] is not None else None
    summary = {"model": model, "log": str(log), "config": config and str(config), "best": found[0], "trials": found}
    print(json.dumps(summary) if as_json else _text(summary))
    if config is None:
        raise typer.Exit(3)


def _text(summary: dict[str, Any]) -> str:
    from dynedge.utils.progress import clock

    rows = [["trial", "valid MRR", "Recall@10", "epochs", "time", "settings"]]
    for trial in summary["trials"]:
        failed = trial["valid_mrr"] is None
        rows.append(
            [
                str(trial["trial"] + 1),
                *(["-"] * 3 if failed else [f"{trial['valid_mrr']:.4f}", f"{trial['valid_recall@10']:.4f}"]),
                *([] if failed else [str(trial["epochs"])]),
                clock(trial["seconds"]),
                _told(trial),
            ]
        )
    head = [row[:-1] for row in rows]
    lines = [f"{line}  {row[-1]}" for line, row in zip(table(head).splitlines(), rows, strict=True)]
    if summary["config"]:
        lines += ["", f"the best: dynedge train {summary['log']} --config {summary['config']} --out RUN"]
    return "\n".join(lines)


def _told(trial: dict[str, Any]) -> str:
    settings = ", ".join(f"{key}={value}" for key, value in trial["changed"].items()) or "as it is"
    return f"{settings}: {trial['error']}" if trial["error"] else settings
