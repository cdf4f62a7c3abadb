"""The command `train`: trains a model on a log and writes a run folder."""

from __future__ import annotations

import json
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dynedge.cli import app, stopped
from dynedge.cli.config_flags import with_config_flags
from dynedge.cli.help_format import SectionedCommand
from dynedge.cli.options import Assignments, Json, LogFolder, ModelName
from dynedge.errors import UsageError

if TYPE_CHECKING:
    from dynedge.runs.folder import RunFolder
    from dynedge.runs.run_config import RunConfig
    from dynedge.training.train_state import TrainState


@app.command(cls=SectionedCommand)
@with_config_flags
def train(
    log: LogFolder,
    out: Annotated[Path, typer.Option("--out", metavar="RUN", help="Run folder to create.")],
    flags: dict[str, Any],
    model: ModelName = None,
    assignments: Assignments = None,
    config: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Config to start from, such as the config.toml of a run.")
    ] = None,
    start_from: Annotated[
        Path | None, typer.Option("--from", metavar="RUN", help="Run whose vectors initialize the users and items.")
    ] = None,
    final: Annotated[
        bool,
        typer.Option(
            "--final", help="Train on all events, without validation; the last epoch is kept. Same as --split 1,0,0."
        ),
    ] = False,
    resume: Annotated[bool, typer.Option("--resume", help="Continue an interrupted run, if RUN exists.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Overwrite an existing run.")] = False,
    track: Annotated[
        list[str] | None,
        typer.Option(
            metavar="TRACKER",
            help="Tracker of the run: tensorboard, mlflow or mlflow:URI, wandb or wandb:PROJECT; repeatable.",
        ),
    ] = None,
    plot: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="File for a plot of the learning curve and the longest paths."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Train a model on a log and save it as a run.

    RUN keeps the epoch with the best validation MRR. The training and model options are fields of the config, which
    RUN/config.toml lists in full. --set reaches every field, those of other models included. A run interrupted by
    Ctrl-C (exit code 130), SIGTERM (143) or a crash continues with --resume, to the same result.
    """
    if plot:
        from dynedge.report.run_figure import draw_run
        from dynedge.report.style import check_plot_path

        check_plot_path(plot)
    from dynedge.data.log import read_log
    from dynedge.runs.folder import RunFolder
    from dynedge.runs.train_run import train_run
    from dynedge.utils.process_group import is_restarted, process_group
    from dynedge.utils.signals import StoppedBySignal, StopSignal

    if final:
        if "split" in flags:
            raise UsageError("--final trains on all events: leave out --split.")
        flags = flags | {"split": "1,0,0"}
    if is_restarted():  # torchrun --max-restarts
        resume, force = True, False
    is_first = True
    try:
        with StopSignal() as stop, process_group() as group, ExitStack() as stack:
            is_first = group.is_first
            with group.together():
                run = stack.enter_context(RunFolder(out, resume=resume, force=force, group=group))
                composed, opened = _compose(run, model, config, flags, assignments or []), read_log(log)
            trained, state = train_run(run, composed, opened, stop=stop, track=track or (), start_from=start_from)
    except StoppedBySignal as signal:
        if not is_first:
            raise typer.Exit(signal.exit_code) from None
        again = "run the same command again" if resume else "add --resume to the same command"
        advice = f"{again} to continue" if out.exists() else "nothing was saved yet"
        raise stopped(signal, signal.exit_code, advice) from None
    if not is_first:
        return
    summary = summary_of(out, trained, state)
    print(json.dumps(summary) if as_json else summary_text(summary))
    if plot:
        draw_run(out, plot)
        print(f"wrote {plot}", file=sys.stderr)


def _compose(
    run: RunFolder,
    model: str | None,
    file: Path | None,
    flags: dict[str, Any],
    assignments: list[str],
) -> RunConfig:
    """Returns the config; later sources win: the recipe (or the run to resume), the file, the flags, --set."""
    from dynedge.config import from_toml, override, set_key
    from dynedge.models.registry import default_model
    from dynedge.runs.run_config import parse_config, read_config_file, recipe_config, resolve_key

    text = read_config_file(file, "--config ") if file else ""
    if run.resume and run.exists:
        config = from_toml(run.config(), text, str(file))
        config = set_key(config, "name", model) if model else config
    elif file:
        config = parse_config(text, str(file), model)
    else:
        config = recipe_config(model or default_model())
    for name, value in flags.items():
        flag = "--" + name.replace("_", "-")
        config = set_key(config, resolve_key(config, name, flag), value, flag)
    return override(config, assignments)


def summary_of(out: Path, config: RunConfig, state: TrainState) -> dict[str, Any]:
    best = state.best
    at_best = state.history[best.epoch] if best else {}
    return {
        "run": str(out),
        "model": config.name,
        "epochs": len(state.history),
        "stopped_early": len(state.history) < config.training.epochs,
        "best_epoch": best.epoch + 1 if best else None,
        "valid_mrr": at_best.get("valid_mrr"),
        "valid_recall@10": at_best.get("valid_recall@10"),
        "seconds": round(sum(record["seconds"] + record["valid_seconds"] for record in state.history), 3),
    }


def summary_text(summary: dict[str, Any]) -> str:
    from dynedge.utils.progress import clock

    early = ", stopped early" if summary["stopped_early"] else ""
    epochs = f"{summary['epochs']} epoch{'' if summary['epochs'] == 1 else 's'}"
    lines = {
        "model": f"{summary['model']}, {epochs} in {clock(summary['seconds'])}{early}",
    }
    if summary["best_epoch"] is not None:
        lines["best epoch"] = summary["best_epoch"]
    if summary["valid_mrr"] is not None:
        lines["validation"] = f"MRR {summary['valid_mrr']:.4f}, Recall@10 {summary['valid_recall@10']:.4f}"
    lines["run"] = f"{summary['run']} (its README.md describes the files and the next commands)"
    return "\n".join(f"{name:12}{value}" for name, value in lines.items())
