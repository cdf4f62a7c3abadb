"""The verb `plan`: how deep a log's windows are, what d-nodes do about it, and what that means in time."""

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
from dynedge.errors import UsageError

if TYPE_CHECKING:
    from dynedge.plan.cost_model import CostModel
    from dynedge.plan.planner import Plan

DNODES = (0, 10, 20, 40, 80, 160, 320, 640)  # the columns of the paper's Table 4
PARTS = (1, 2, 4, 8, 16, 32, 64, 128)
SURVEY_EVENTS = 5_000_000  # the table asks 24 questions a window; of a larger log it takes evenly spaced windows
_TABLE = [
    *(("best", "max_dnodes", k) for k in DNODES),
    *(("longest-path", "max_dnodes", k) for k in DNODES),
    *(("cut-by-time", "parts", parts) for parts in PARTS),
]
FLAGS = {"max_dnodes": "--dnodes", "max_depth": "--depth", "parts": "--parts"}
LIMITS = "Limits (at most one)"


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
    the time that planning took.
    """
    limits = {"max_dnodes": dnodes, "max_depth": depth, "parts": parts}
    asked = {name: value for name, value in limits.items() if value is not None}
    _check(method, asked, budget, windows, active_users, active_items)

    from dynedge.data.log import read_log
    from dynedge.data.splits import Split
    from dynedge.plan.planner import plan_log

    machines = _machines()
    if machine not in machines:
        raise UsageError(f"--machine {machine!r} is not known; there are: {', '.join(machines)}.")
    if plot is not None:
        from dynedge.report.style import check_target

        check_target(plot)

    start = time.monotonic()
    planned = plan_log(
        read_log(log),
        split=None if split is None else Split.parse(split),
        windows=windows,
        active_users=active_users,
        active_items=active_items,
        method=method if asked or budget is not None else "best",
        **asked,
        budget=budget,
        cost=machines[machine],
        cache=not no_cache,
    )
    summary = _summary(planned, start)
    table = _survey(planned, _TABLE) if plot is not None or not (asked or budget) else []
    if as_json:
        print(json.dumps(summary | ({"table": table} if table else {})))
    else:
        print(_describe(summary))
        print(f"\n{_table_text(table, len(planned))}" if table else "", end="")
    if plot is not None:
        _draw(planned, table, plot)


def _check(
    method: str,
    asked: dict[str, int],
    budget: float | None,
    windows: int,
    active_users: int | None,
    active_items: int | None,
) -> None:
    """One clear sentence, naming the flag, for whatever cannot be planned."""
    from dynedge.plan.dnodes import METHODS

    if method not in METHODS:
        raise UsageError(f"--method {method!r} is not known; there are: {', '.join(METHODS)}.")
    flags = [FLAGS[name] for name in asked] + (["--budget"] if budget is not None else [])
    if len(flags) > 1:
        raise UsageError(f"{' and '.join(flags)} cannot be given together: ask in one way.")
    least = [(FLAGS[name], value, 0 if name == "max_dnodes" else 1) for name, value in asked.items()]
    least += [("--windows", windows, 1)]
    least += [
        (f"--active-{side}", n, 0) for side, n in (("users", active_users), ("items", active_items)) if n is not None
    ]
    for flag, value, minimum in least:
        if value < minimum:
            raise UsageError(f"{flag} {value} should be at least {minimum}.")
    if budget is not None and not (budget > 0 and math.isfinite(budget)):
        raise UsageError(f"--budget {budget:g} should be a number of seconds above 0.")
    limits = METHODS[method].limits
    takes = [FLAGS[name] for name in limits] + (["--budget"] if "max_depth" in limits else [])
    if flags and flags[0] not in takes:
        raise UsageError(f"--method {method} is asked by {' or '.join(takes)}, not by {flags[0]}.")


def _machines() -> dict[str, CostModel]:
    from dynedge.plan.cost_model import H200, measure_cpu

    return {"cpu": measure_cpu(), "h200": H200}


def _summary(planned: Plan, start: float) -> dict[str, Any]:
    """Plan every window, with its schedule, and sum it up."""
    from dynedge.utils.progress import Progress

    config, stats = planned.config, []
    with Progress("planning", total=config.train_end) as progress:
        for window in planned:
            stats.append(window.stats)
            progress.advance(window.stats.events)
    seconds = time.monotonic() - start
    levels, rows = sum(window.longest_path for window in stats), sum(window.rows for window in stats)
    return {
        "log": str(planned.log.path),
        "windows": len(planned),
        "events": config.train_end,
        "active_users": config.active_users,
        "active_items": config.active_items,
        "method": config.method,
        "dnodes": config.max_dnodes,
        "depth": config.max_depth,
        "parts": config.parts,
        "mean_longest_path": levels / len(planned),
        "max_longest_path": max(window.longest_path for window in stats),
        "mean_dnodes": sum(window.dnodes for window in stats) / len(planned),
        "rows": rows,
        "seconds": seconds,
        "cached": planned.from_cache,
        "epoch_seconds": _epoch_seconds(levels, rows),
    }


def _epoch_seconds(levels: float, rows: float) -> dict[str, float]:
    return {name: cost.epoch_seconds(levels, rows) for name, cost in _machines().items()}


def _survey(planned: Plan, questions: Sequence[tuple[str, str, int]]) -> list[dict[str, Any]]:
    """What each question gives, on the mean over the windows (evenly spaced ones, if the log is large)."""
    from dynedge.plan.planner import DNodeRequest
    from dynedge.utils.progress import Progress

    step = max(1, math.ceil(planned.config.train_end / SURVEY_EVENTS))
    chosen = range(0, len(planned), step)
    asked = [DNodeRequest(method, **{name: value}) for method, name, value in questions]
    means = [[0.0, 0.0, 0.0] for _ in questions]
    with Progress("comparing", total=len(chosen), unit="windows") as progress:
        for answers in planned.compare_methods(asked, chosen):
            for mean, stats in zip(means, answers, strict=True):
                for at, value in enumerate((stats.dnodes, stats.longest_path, stats.rows)):
                    mean[at] += value / len(chosen)
            progress.advance(1)
    return [
        {
            "method": method,
            FLAGS[name].removeprefix("--"): value,
            "windows": len(chosen),
            "mean_dnodes": dnodes,
            "mean_longest_path": depth,
            "epoch_seconds": _epoch_seconds(depth * len(planned), rows * len(planned)),
        }
        for (method, name, value), (dnodes, depth, rows) in zip(questions, means, strict=True)
    ]


def _describe(summary: dict[str, Any]) -> str:
    from dynedge.utils.progress import clock, quantity

    phrases = {"dnodes": "K = {} d-nodes a window", "depth": "no path longer than {}", "parts": "{} parts a window"}
    asked = [text.format(summary[name]) for name, text in phrases.items() if summary[name] is not None]
    active = [f"{side} above {n}" for side in ("users", "items") if (n := summary[f"active_{side}"]) is not None]
    machines = [
        f"{_duration(summary['epoch_seconds'][name])} on {cost.machine} ({cost.level_us:.3g} µs a level, "
        f"{cost.row_ns:.3g} ns a row)"
        for name, cost in _machines().items()
    ]
    lines = {
        "events": f"{quantity(summary['events'])} for training, in {summary['windows']} windows",
        "active": f"{' and '.join(active)} training events" if active else "none (n* = ∞)",
        "asked": f"{summary['method']}, {asked[0]}",
        "d-nodes": f"{summary['mean_dnodes']:.1f} a window",
        "longest path": f"{summary['mean_longest_path']:.2f} on the mean, {summary['max_longest_path']} at most",
        "an epoch": f"{machines[0]}, predicted",
        "": f"{machines[1]}",
        "planned in": f"{clock(summary['seconds'])}, with schedules{', from the cache' if summary['cached'] else ''}",
    }
    return "\n".join(f"{name:14}{text}" for name, text in lines.items())


def _table_text(table: list[dict[str, Any]], windows: int) -> str:
    """The paper's Table 4, turned on its side."""
    best, paper, parts = (table[at : at + len(DNODES)] for at in range(0, len(table), len(DNODES)))
    some = table[0]["windows"]
    over = f"{windows} windows" if some == windows else f"{some} of {windows} windows, evenly spaced"
    lines = [
        f"Mean over {over}; an epoch's seconds are predicted, this CPU / H200.",
        "",
        f"{'d-nodes':>8}  {'best':>10}  {'an epoch':>17}  {'longest-path*':>14}  {'an epoch':>17}",
    ]
    for one, two in zip(best, paper, strict=True):
        lines.append(
            f"{one['dnodes']:8}  {one['mean_longest_path']:10.2f}  {_times(one):>17}"
            f"  {two['mean_longest_path']:14.2f}  {_times(two):>17}"
        )
    lines += ["", f"{'parts':>8}  {'d-nodes':>10}  {'cut-by-time':>17}  {'':14}  {'an epoch':>17}"]
    for row in parts:
        lines.append(
            f"{row['parts']:8}  {row['mean_dnodes']:10.1f}  {row['mean_longest_path']:17.2f}"
            f"  {'':14}  {_times(row):>17}"
        )
    return "\n".join([*lines, "", "* the paper's Algorithm 2", ""])


def _times(row: dict[str, Any]) -> str:
    return " / ".join(_duration(seconds) for seconds in row["epoch_seconds"].values())


def _duration(seconds: float) -> str:
    from dynedge.utils.progress import clock

    return f"{seconds:.2g} s" if seconds < 1 else clock(seconds)


def _draw(planned: Plan, table: list[dict[str, Any]], path: Path) -> None:
    """The table's curves, `depth` asked for the depths `best` reached, and the log's first events."""
    from dynedge.report.plan import draw, first_events

    reached = sorted({max(1, round(row["mean_longest_path"])) for row in table if row["method"] == "best"})
    table = table + _survey(planned, [("depth", "max_depth", depth) for depth in reached])
    curves: dict[str, list[tuple[float, float]]] = {}
    for row in table:
        curves.setdefault(row["method"], []).append((row["mean_dnodes"], row["mean_longest_path"]))
    draw(path, curves, table[0]["mean_longest_path"], first_events(planned))
