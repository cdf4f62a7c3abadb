"""The verb `train`: any model of the registry on a log, into a run folder."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dynedge.cli import app
from dynedge.cli.data import Json

if TYPE_CHECKING:
    from dynedge.runs.folder import RunFolder
    from dynedge.runs.run_config import RunConfig
    from dynedge.training.train_state import TrainState


def _flag(help: str, metavar: str = "N") -> Any:
    return typer.Option(metavar=metavar, help=help)


@app.command()
def train(
    log: Annotated[Path, typer.Argument(metavar="LOG", help="The log's folder.")],
    out: Annotated[Path, typer.Option("--out", metavar="RUN", help="The run folder to make.")],
    model: Annotated[str | None, _flag("A model or a recipe of one.", "NAME")] = None,
    epochs: Annotated[str | None, _flag("Passes over the training events, at most.")] = None,
    seed: Annotated[str | None, _flag("All random draws follow from it.")] = None,
    split: Annotated[str | None, _flag("Train, valid, test; default: the log's own split.", "A,B,C")] = None,
    windows: Annotated[str | None, _flag("Windows the training events are cut into.")] = None,
    dnodes: Annotated[str | None, _flag("d-nodes a window.")] = None,
    depth: Annotated[str | None, _flag("No path longer than this.")] = None,
    active_users: Annotated[str | None, _flag("Users with more training events are active.")] = None,
    active_items: Annotated[str | None, _flag("The same for items.")] = None,
    alpha: Annotated[str | None, _flag("Weight of the constraint φ = state.", "X")] = None,
    solver: Annotated[str | None, _flag("How the constraint is met.", "NAME")] = None,
    negatives: Annotated[str | None, _flag("Items each event's own is told from.")] = None,
    dim: Annotated[str | None, _flag("Width of a state.")] = None,
    lr: Annotated[str | None, _flag("Learning rate.", "X")] = None,
    device: Annotated[str | None, _flag("auto, cpu, cuda or cuda:N.", "D")] = None,
    precision: Annotated[str | None, _flag("auto, float32, bfloat16 or float64.", "P")] = None,
    deterministic: Annotated[
        bool, typer.Option("--deterministic", help="The same bits every time on a GPU too.")
    ] = False,
    settings: Annotated[
        list[str] | None, typer.Option("--set", metavar="A.B=V", help="Any config field, by its dotted name.")
    ] = None,
    config: Annotated[Path | None, typer.Option(metavar="FILE", help="A config.toml, as a run folder has.")] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on with RUN where it stopped, if it is there.")
    ] = False,
    force: Annotated[bool, typer.Option("--force", help="Replace an existing RUN.")] = False,
    tensorboard: Annotated[bool, typer.Option("--tensorboard", help="Also write RUN/tensorboard.")] = False,
    plot: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Draw the learning curve and the longest paths into this file."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Train a model on LOG and keep the best epoch by validation MRR in RUN.

    Flags are short for config fields; RUN/config.toml lists them all. Stopped by Ctrl-C (exit 130), SIGTERM (143) or
    worse, the same command with --resume goes on, to the same result.
    """
    flags = {
        **{"epochs": epochs, "seed": seed, "split": split, "lr": lr, "device": device, "precision": precision},
        **{"windows": windows, "dnodes": dnodes, "depth": depth, "alpha": alpha, "solver": solver, "dim": dim},
        **{"active-users": active_users, "active-items": active_items, "negatives": negatives},
    }
    told = {flag: value for flag, value in flags.items() if value is not None}
    if deterministic:
        told["deterministic"] = "true"

    if plot:
        from dynedge.report.run import draw_run
        from dynedge.report.style import check_target

        check_target(plot)
    from dynedge.data.log import read_log
    from dynedge.runs.folder import RunFolder
    from dynedge.runs.train_run import train_run
    from dynedge.utils.signals import StoppedBySignal, StopSignal

    try:
        with StopSignal() as stop, RunFolder(out, resume=resume, force=force) as run:
            wanted = _compose(run, model, config, told, settings or [])
            done, course = train_run(run, wanted, read_log(log), stop=stop, tensorboard=tensorboard)
    except StoppedBySignal as stopped:
        again = "" if resume else " with --resume"
        kept = f"the same command{again} goes on where it stood" if out.exists() else "nothing was kept"
        print(f"dynedge: stopped by {stopped}; {kept}.", file=sys.stderr)
        raise typer.Exit(stopped.exit_code) from None
    summary = _summary(out, done, course)
    print(json.dumps(summary) if as_json else _table(summary))
    if plot:
        draw_run(out, plot)
        print(f"drew {plot}", file=sys.stderr)


def _compose(
    run: RunFolder,
    model: str | None,
    file: Path | None,
    flags: dict[str, str],
    settings: list[str],
) -> RunConfig:
    """Later wins: the recipe (or the config of the run gone on with), the file, the flags, --set."""
    from dynedge.config import from_toml, override, set_key
    from dynedge.models.registry import default_model
    from dynedge.runs.run_config import parse_config, read_config_file, recipe_config, resolve_key

    text = read_config_file(file, "--config ") if file else ""
    if run.resume and run.exists:
        config = run.config()
        config = from_toml(config, text, str(file))
        config = set_key(config, "name", model) if model else config
    elif file:
        config = parse_config(text, str(file), model)
    else:
        config = recipe_config(model or default_model())
    for flag, value in flags.items():
        config = set_key(config, resolve_key(config, flag.replace("-", "_"), f"--{flag}"), value, f"--{flag}")
    return override(config, settings)


def _summary(out: Path, config: RunConfig, course: TrainState) -> dict[str, Any]:
    best = course.best
    at_best = course.history[best.epoch] if best else {}
    spent = sum(record["seconds"] + record["valid_seconds"] for record in course.history)
    return {
        "run": str(out),
        "model": config.name,
        "epochs": len(course.history),
        "stopped_early": len(course.history) < config.training.epochs,
        "best_epoch": best.epoch + 1 if best else None,
        "valid_mrr": at_best.get("valid_mrr"),
        "valid_recall@10": at_best.get("valid_recall@10"),
        "seconds": round(spent, 3),
    }


def _table(summary: dict[str, Any]) -> str:
    from dynedge.utils.progress import clock

    early = ", no better one after it for a while" if summary["stopped_early"] else ""
    lines = {
        "model": f"{summary['model']}, {summary['epochs']} epochs in {clock(summary['seconds'])}{early}",
        "best epoch": summary["best_epoch"],
    }
    if summary["valid_mrr"] is not None:
        lines["valid"] = f"MRR {summary['valid_mrr']:.4f}, Recall@10 {summary['valid_recall@10']:.4f}"
    lines["run"] = f"{summary['run']}: model.safetensors, metrics.jsonl; its README.md says how to use it"
    return "\n".join(f"{name:12}{value}" for name, value in lines.items())
