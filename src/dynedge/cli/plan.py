"""The command `plan`: longest paths of a log's training windows, by d-nodes, and the predicted time of an epoch."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dynedge.cli import app
from dynedge.cli.config_flags import config_default, config_flag
from dynedge.cli.help_format import SectionedCommand
from dynedge.cli.options import Json, LogFolder
from dynedge.cli.tables import table
from dynedge.errors import UsageError

if TYPE_CHECKING:
    from dynedge.plan.cost_model import CostModel
    from dynedge.plan.planner import Plan

DNODES = (0, 10, 20, 40, 80, 160, 320, 640)  # the columns of the paper's Table 4
PARTS = (1, 2, 4, 8, 16, 32, 64, 128)
SURVEY_EVENTS = 5_000_000  # the table has 24 rows; for a larger log they are means over evenly spaced windows
TABLE_ROWS = [
    *(("best", "max_dnodes", k) for k in DNODES),
    *(("longest-path", "max_dnodes", k) for k in DNODES),
    *(("cut-by-time", "parts", parts) for parts in PARTS),
]
FLAGS = {"max_dnodes": "--dnodes", "max_depth": "--depth", "parts": "--parts"}
LIMITS = "Limits (at most one)"
SHARED = "Several processes (docs/scaling.md)"


def _shared(name: str, **changes: Any) -> Any:
    """Returns the flag of a config field, listed with the command's other options."""
    return config_flag(name, **{"rich_help_panel": None, **changes})


@app.command("plan", cls=SectionedCommand)
def plan_command(
    log: LogFolder,
    split: Annotated[str | None, _shared("split")] = None,
    windows: Annotated[int, _shared("windows")] = config_default("windows"),
    active_users: Annotated[int | None, _shared("active_users")] = config_default("active_users"),
    active_items: Annotated[int | None, _shared("active_items")] = config_default("active_items"),
    method: Annotated[str, _shared("method", metavar="best|longest-path|depth|cut-by-time")] = config_default(
        "method"
    ),
    dnodes: Annotated[int | None, _shared("dnodes", rich_help_panel=LIMITS)] = None,
    depth: Annotated[int | None, _shared("depth", rich_help_panel=LIMITS)] = None,
    parts: Annotated[
        int | None,
        typer.Option(
            metavar="N", help="Number of parts per window, for --method cut-by-time.", rich_help_panel=LIMITS
        ),
    ] = None,
    budget: Annotated[
        float | None,
        typer.Option(
            metavar="X",
            help="Predicted seconds per epoch, reached with as few d-nodes as possible.",
            rich_help_panel=LIMITS,
        ),
    ] = None,
    machine: Annotated[
        str, typer.Option(metavar="cpu|h200", help="Machine of --budget: this CPU (measured) or an H200 GPU.")
    ] = "cpu",
    segments: Annotated[int, _shared("segments", rich_help_panel=SHARED)] = config_default("segments"),
    world: Annotated[
        int,
        typer.Option(metavar="N", help="Number of processes that share the segments.", min=1, rich_help_panel=SHARED),
    ] = 1,
    plot: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="File for a plot of path length by d-nodes, and of the first events."),
    ] = None,
    no_cache: Annotated[bool, typer.Option("--no-cache", help="Do not read or write LOG/plans.")] = False,
    as_json: Json = False,
) -> None:
    """Show the longest paths of training windows, by d-nodes.

    With one of --dnodes, --depth, --parts and --budget, every window is planned to that limit, and the chosen d-nodes
    are cached in LOG/plans for training. Without a limit, no d-nodes are used, and a table in the form of the paper's
    Table 4 shows the longest path and the predicted time of an epoch for 0 to 640 d-nodes. In the JSON, "seconds" is
    the time that planning took. --segments and --world add a prediction of time, traffic and memory for an epoch that
    several processes share, with windows of equal size.
    """
    limits = {
        name: value
        for name, value in {"max_dnodes": dnodes, "max_depth": depth, "parts": parts}.items()
        if value is not None
    }
    _check(method, limits, budget, windows, active_users, active_items)
    _check_shares(segments, world, windows)

    from dynedge.data.log import read_log
    from dynedge.data.splits import Split
    from dynedge.plan.planner import plan_log

    machines = _machines()
    if machine not in machines:
        raise UsageError(f"--machine {machine!r} does not exist; choose one of: {', '.join(machines)}.")
    if plot is not None:
        from dynedge.report.style import check_plot_path

        check_plot_path(plot)

    limited = bool(limits) or budget is not None
    start = time.monotonic()
    opened = read_log(log)
    plan = plan_log(
        opened,
        split=None if split is None else Split.parse(split).at(opened.time),
        windows=windows,
        active_users=active_users,
        active_items=active_items,
        method=method if limited else "best",
        **limits,
        budget=budget,
        cost=machines[machine],
        cache=not no_cache,
    )
    summary = _summary(plan, start)
    if segments > 1:
        summary["shared"] = _shared_epoch(plan, segments, world)
    rows = _survey(plan, TABLE_ROWS) if plot is not None or not limited else []
    if as_json:
        print(json.dumps(summary | ({"table": rows} if rows else {})))
    else:
        print(_text(summary))
        print(f"\n{_survey_text(rows, len(plan))}" if rows else "", end="")
    if plot is not None:
        _draw(plan, rows, plot)


def _check(
    method: str,
    limits: dict[str, int],
    budget: float | None,
    windows: int,
    active_users: int | None,
    active_items: int | None,
) -> None:
    """Raises a UsageError that names the flag, for values that cannot be planned."""
    from dynedge.plan.dnodes import METHODS

    if method not in METHODS:
        raise UsageError(f"--method {method!r} does not exist; choose one of: {', '.join(METHODS)}.")
    flags = [FLAGS[name] for name in limits] + (["--budget"] if budget is not None else [])
    if len(flags) > 1:
        raise UsageError(f"{' and '.join(flags)} exclude each other: pass one of them.")
    minimums = [(FLAGS[name], value, 0 if name == "max_dnodes" else 1) for name, value in limits.items()]
    minimums += [("--windows", windows, 1)]
    minimums += [
        (f"--active-{side}", n, 0) for side, n in (("users", active_users), ("items", active_items)) if n is not None
    ]
    for flag, value, minimum in minimums:
        if value < minimum:
            raise UsageError(f"{flag} {value} should be at least {minimum}.")
    if budget is not None and not (budget > 0 and math.isfinite(budget)):
        raise UsageError(f"--budget {budget:g} should be a number of seconds above 0.")
    accepted = [FLAGS[name] for name in METHODS[method].limits]
    accepted += ["--budget"] if "max_depth" in METHODS[method].limits else []
    if flags and flags[0] not in accepted:
        raise UsageError(f"--method {method} accepts {' or '.join(accepted)}, not {flags[0]}.")


def _check_shares(segments: int, world: int, windows: int) -> None:
    if segments < 1:
        raise UsageError(f"--segments {segments} should be at least 1.")
    if segments % world or segments > windows:
        raise UsageError(
            f"--segments {segments} should be a multiple of --world {world}, and at most --windows {windows}."
        )


def _shared_epoch(plan: Plan, segments: int, world: int) -> dict[str, Any]:
    """Predictions for an epoch that `world` processes share, by machine."""
    from dataclasses import asdict

    from dynedge.models.edge.model_size import model_size
    from dynedge.plan.scaling import INFINIBAND, ONE_MACHINE, predict

    size = model_size(plan)
    windows = [window.longest_path for window in plan.stats], [window.rows for window in plan.stats]
    predictions = {}
    for name, network in {"cpu": ONE_MACHINE, "h200": INFINIBAND}.items():
        cost = _machines()[name]
        shared, alone = (predict(*windows, size, segments, count, cost, network) for count in (world, 1))
        efficiency = alone.seconds / world / shared.seconds
        predictions[name] = asdict(shared) | {"seconds": shared.seconds, "efficiency": efficiency}
    return {"segments": segments, "world": world, "machines": predictions}


def _machines() -> dict[str, CostModel]:
    from dynedge.plan.cost_model import H200, measure_cpu

    return {"cpu": measure_cpu(), "h200": H200}


def _summary(plan: Plan, start: float) -> dict[str, Any]:
    """Plans every window, with its schedule, and returns totals and means."""
    from dynedge.utils.progress import Progress

    config, stats = plan.config, []
    with Progress("planning", total=config.train_end) as progress:
        for window in plan:
            stats.append(window.stats)
            progress.advance(window.stats.events)
    seconds = time.monotonic() - start
    levels, rows = sum(window.longest_path for window in stats), sum(window.rows for window in stats)
    return {
        "log": str(plan.log.path),
        "windows": len(plan),
        "events": config.train_end,
        "active_users": config.active_users,
        "active_items": config.active_items,
        "method": config.method,
        "dnodes": config.max_dnodes,
        "depth": config.max_depth,
        "parts": config.parts,
        "mean_longest_path": levels / len(plan),
        "max_longest_path": max(window.longest_path for window in stats),
        "mean_dnodes": sum(window.dnodes for window in stats) / len(plan),
        "rows": rows,
        "seconds": seconds,
        "cached": plan.from_cache,
        "epoch_seconds": _epoch_seconds(levels, rows),
    }


def _epoch_seconds(levels: float, rows: float) -> dict[str, float]:
    return {name: cost.epoch_seconds(levels, rows) for name, cost in _machines().items()}


def _survey(plan: Plan, requests: Sequence[tuple[str, str, int]]) -> list[dict[str, Any]]:
    """Returns the result of each request (method, limit, value): means over the windows of the log."""
    from dynedge.plan.planner import DNodeRequest
    from dynedge.utils.progress import Progress

    step = max(1, math.ceil(plan.config.train_end / SURVEY_EVENTS))
    windows = range(0, len(plan), step)
    means = [[0.0, 0.0, 0.0] for _ in requests]
    with Progress("comparing", total=len(windows), unit="windows") as progress:
        dnode_requests = [DNodeRequest(method, **{limit: value}) for method, limit, value in requests]
        for results in plan.compare_methods(dnode_requests, windows):
            for mean, stats in zip(means, results, strict=True):
                for at, value in enumerate((stats.dnodes, stats.longest_path, stats.rows)):
                    mean[at] += value / len(windows)
            progress.advance(1)
    return [
        {
            "method": method,
            FLAGS[limit].removeprefix("--"): value,
            "windows": len(windows),
            "mean_dnodes": dnodes,
            "mean_longest_path": depth,
            "epoch_seconds": _epoch_seconds(depth * len(plan), rows * len(plan)),
        }
        for (method, limit, value), (dnodes, depth, rows) in zip(requests, means, strict=True)
    ]


def _text(summary: dict[str, Any]) -> str:
    from dynedge.utils.progress import clock, quantity

    phrases = {
        "dnodes": "at most {} d-nodes per window",
        "depth": "paths of length {} at most",
        "parts": "{} parts per window",
    }
    limit = next(text.format(summary[name]) for name, text in phrases.items() if summary[name] is not None)
    active = [f"{side} above {n}" for side in ("users", "items") if (n := summary[f"active_{side}"]) is not None]
    machines = [
        f"{_duration(summary['epoch_seconds'][name])} on {cost.machine} ({cost.level_us:.3g} µs per level, "
        f"{cost.row_ns:.3g} ns per row)"
        for name, cost in _machines().items()
    ]
    cached = ", d-nodes from the cache" if summary["cached"] else ""
    lines = {
        "events": f"{quantity(summary['events'])} for training, in {summary['windows']} windows",
        "active": f"{' and '.join(active)} training events" if active else "none (n* = ∞)",
        "method": f"{summary['method']}, {limit}",
        "d-nodes": f"{summary['mean_dnodes']:.1f} per window",
        "longest path": f"mean {summary['mean_longest_path']:.2f}, maximum {summary['max_longest_path']}",
        "epoch": f"{machines[0]}, predicted",
        "": f"{machines[1]}",
        "planning": f"{clock(summary['seconds'])} with schedules{cached}",
    }
    if "shared" in summary:
        lines |= _shared_text(summary["shared"])
    return "\n".join(f"{name:14}{text}" for name, text in lines.items())


def _shared_text(shared: dict[str, Any]) -> dict[str, str]:
    from dynedge.plan.scaling import INFINIBAND, ONE_MACHINE
    from dynedge.utils.progress import quantity

    lines = {"shared": f"{shared['segments']} segments, {shared['world']} processes, predicted per epoch:"}
    for (name, one), network in zip(shared["machines"].items(), (ONE_MACHINE, INFINIBAND), strict=True):
        parts = ", ".join(f"{part} {_duration(one[part])}" for part in ("compute", "exchange", "borders"))
        lines[f"  {name}"] = (
            f"{_duration(one['seconds'])} ({parts}), efficiency {one['efficiency']:.2f}; {one['steps']} steps of "
            f"{quantity(one['step_bytes'])}B sent, {quantity(one['memory'])}B of memory per process ({network.name})"
        )
    return lines


def _survey_text(rows: list[dict[str, Any]], windows: int) -> str:
    """Returns the paper's Table 4 with a row per number of d-nodes, and the same for parts of equal time."""
    best, longest_path, parts = (rows[at : at + len(DNODES)] for at in range(0, len(rows), len(DNODES)))
    surveyed = rows[0]["windows"]
    over = f"{windows} windows" if surveyed == windows else f"{surveyed} of {windows} windows, evenly spaced"
    by_dnodes = [["d-nodes", "best: path", "epoch", "longest-path*: path", "epoch"]]
    for one, other in zip(best, longest_path, strict=True):
        paths = (f"{row['mean_longest_path']:.2f}" for row in (one, other))
        by_dnodes.append([str(one["dnodes"]), next(paths), _times(one), next(paths), _times(other)])
    by_parts = [["parts", "d-nodes", "cut-by-time: path", "epoch"]]
    for row in parts:
        by_parts.append(
            [str(row["parts"]), f"{row['mean_dnodes']:.1f}", f"{row['mean_longest_path']:.2f}", _times(row)]
        )
    return "\n".join(
        [
            f"Longest path (mean over {over}) and predicted time of an epoch (this CPU / H200) by method.",
            "",
            table(by_dnodes, text_columns=()),
            "",
            table(by_parts, text_columns=()),
            "",
            "* Algorithm 2 of the paper",
            "",
        ]
    )


def _times(row: dict[str, Any]) -> str:
    return " / ".join(_duration(seconds) for seconds in row["epoch_seconds"].values())


def _duration(seconds: float) -> str:
    from dynedge.utils.progress import clock

    return f"{seconds:.2g} s" if seconds < 1 else clock(seconds)


def _draw(plan: Plan, rows: list[dict[str, Any]], path: Path) -> None:
    """Plots the rows of the table, the method `depth` at the depths that `best` reached, and the first events."""
    from dynedge.report.plan_figure import draw_plan, example_events

    depths = sorted({max(1, round(row["mean_longest_path"])) for row in rows if row["method"] == "best"})
    rows = rows + _survey(plan, [("depth", "max_depth", depth) for depth in depths])
    curves: dict[str, list[tuple[float, float]]] = {}
    for row in rows:
        curves.setdefault(row["method"], []).append((row["mean_dnodes"], row["mean_longest_path"]))
    draw_plan(path, curves, rows[0]["mean_longest_path"], example_events(plan))
