"""The figures of `dynedge paper` as SVG files, numbered as in the EDGE paper; the last one draws its Table 4."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from dynedge.data.log import EventLog
from dynedge.data.statistics import degrees
from dynedge.plan.levels import NO_DNODES
from dynedge.plan.links import ACTIVE
from dynedge.plan.planner import Plan
from dynedge.report.leaderboard_page import STYLE, time_scatter
from dynedge.report.log_figure import draw_distribution
from dynedge.report.plan_figure import draw_curves, draw_graph, example_events, graph_symbols
from dynedge.report.style import BLUE, GREEN, GREY, ORANGE, RED, figure, log_scales, style_axes
from dynedge.utils.array_type import Array
from dynedge.utils.atomic_io import write_text

Results = Mapping[str, Any]
BINS = 40  # of Figure 7

# By number: what the figure shows.
CAPTIONS = {
    1: "Dependencies of a few events: a dot is a state, the number in it the step in which it is computed.",
    2: "The same events computed as by JODIE, without d-nodes, and as by EDGE, with d-nodes.",
    3: "The log is scale-free where these lines are straight: number of users and items with at least x events.",
    4: "Training time per epoch and test MRR of all systems.",
    5: "EDGE by number of d-nodes: training time per epoch (bars) and Recall@10 (points, with intervals).",
    6: "Training time per epoch of the dynamic graph models, and of EDGE by number of d-nodes.",
    7: "Appendix: number of training events per user and per item, with the thresholds n* of Table 5.",
    8: "Appendix: as Figure 5, with MRR.",
    9: "Table 4 as a figure: longest path by number of d-nodes.",
}


def draw_figures(results: Results, log: EventLog, plan: Plan, folder: Path) -> list[Path]:
    """Writes figure1.svg and so on; returns their paths in order."""
    draw: dict[int, Callable[[Path], None]] = {
        1: lambda path: _draw_dependencies(plan, path, with_dnodes=False),
        2: lambda path: _draw_dependencies(plan, path, with_dnodes=True),
        3: lambda path: _draw_degrees(log, path),
        4: lambda path: _write_scatter(results, path),
        5: lambda path: _draw_by_dnodes(results["dnodes"], "recall@10", "Recall@10", path),
        6: lambda path: _draw_runtimes(results, path),
        7: lambda path: _draw_training_degrees(results, log, path),
        8: lambda path: _draw_by_dnodes(results["dnodes"], "mrr", "MRR", path),
        9: lambda path: _draw_paths(results["paths"], path),
    }
    paths = {number: folder / f"figure{number}.svg" for number in draw}
    for number, path in paths.items():
        draw[number](path)
    return list(paths.values())


def _save(fig: Any, path: Path) -> None:
    """As SVG whose text stays text and whose bytes depend on the content alone."""
    import matplotlib as mpl

    with mpl.rc_context({"svg.fonttype": "none", "svg.hashsalt": path.name}):
        fig.savefig(path, metadata={"Date": None})


def _draw_dependencies(plan: Plan, path: Path, *, with_dnodes: bool) -> None:
    graph = example_events(plan)
    fig = figure(13 if with_dnodes else 7, 5.5)
    panels = [NO_DNODES, graph.dnodes] if with_dnodes else [NO_DNODES]
    for axes, dnodes in zip(fig.subplots(1, len(panels), squeeze=False)[0], panels, strict=True):
        draw_graph(axes, graph, dnodes)
    symbols = graph_symbols(has_active=bool((graph.prev == ACTIVE).any()))
    symbols = symbols if with_dnodes else symbols[:-2]
    fig.legend(handles=symbols, loc="outside lower center", ncols=len(symbols), frameon=False)
    _save(fig, path)


def _draw_degrees(log: EventLog, path: Path) -> None:
    fig = figure(11, 4.2)
    left, right = fig.subplots(1, 2)
    draw_distribution(left, degrees(log.user, log.num_users), "user", BLUE)
    draw_distribution(right, degrees(log.item, log.num_items), "item", ORANGE)
    _save(fig, path)


def _draw_training_degrees(results: Results, log: EventLog, path: Path) -> None:
    train_end, _ = log.split.bounds(len(log))
    fig = figure(11, 4.2)
    sides = (log.user, log.num_users, "user", BLUE), (log.item, log.num_items, "item", ORANGE)
    for side, (axes, (ids, count, entity, color)) in enumerate(zip(fig.subplots(1, 2), sides, strict=True)):
        counts = degrees(ids[:train_end], count)
        _draw_histogram(axes, counts[counts > 0], entity, color)
        for row in results["ladder"]:
            if row["threshold"] is not None:
                axes.axvline(row["threshold"][side], color=RED, linewidth=1, linestyle="--")
    _save(fig, path)


def _draw_histogram(axes: Any, counts: Array, entity: str, color: str) -> None:
    most = max(int(counts.max(initial=1)), 2)
    bins = np.unique(np.floor(np.geomspace(1, most + 1, BINS)))
    axes.hist(counts, bins=bins, color=color, alpha=0.8)
    labels = {"xlabel": "number of training events (dashed: n*)", "ylabel": f"number of {entity}s"}
    style_axes(axes, f"Training events per {entity}", **labels)
    log_scales(axes)
    axes.set_ylim(bottom=0.7)


def _write_scatter(results: Results, path: Path) -> None:
    rows = [row for row in results["systems"]["rows"] if row["mrr"] is not None and row["seconds_per_epoch"]]
    classes = dict(zip((row["model"] for row in rows), ("first", "second"), strict=False))
    if not rows:
        _save(figure(7, 4), path)
        return
    opening = '<svg xmlns="http://www.w3.org/2000/svg" width="760" height="444" '
    # The style follows the reader's color scheme, so the background must as well.
    style = (
        f'<style>{STYLE.read_text(encoding="utf-8")}</style><rect width="100%" height="100%" fill="var(--paper)"/>'
    )
    write_text(path, time_scatter(rows, classes).replace("<svg ", opening, 1).replace(">", f">{style}", 1))


def _draw_by_dnodes(rows: Sequence[Results], metric: str, title: str, path: Path) -> None:
    """A panel per threshold: seconds per epoch as bars, the metric as points with intervals on the right axis."""
    panels: dict[Any, list[Results]] = {}
    for row in rows:
        if row[metric] is not None:
            panels.setdefault(_threshold_text(row["threshold"]), []).append(row)
    fig = figure(6 * max(len(panels), 1), 4.2)
    shown = [row for of_panel in panels.values() for row in of_panel]
    most_seconds = max((row["seconds_per_epoch"] for row in shown), default=1.0)
    most = max((row["intervals"][metric][1] for row in shown), default=1.0)
    all_axes = fig.subplots(1, max(len(panels), 1), squeeze=False)[0]
    for position, (axes, (name, of_panel)) in enumerate(zip(all_axes, panels.items(), strict=False)):
        at = range(len(of_panel))
        axes.bar(at, [row["seconds_per_epoch"] for row in of_panel], color=BLUE, alpha=0.55, width=0.6)
        axes.set_xticks(at, [str(row["dnodes"]) for row in of_panel])
        axes.set_ylim(0, 1.15 * most_seconds)
        label = "seconds per epoch (bars)" if position == 0 else ""
        style_axes(axes, f"n* = {name}", xlabel="d-nodes per window", ylabel=label)
        right = axes.twinx()
        low, high = zip(*(row["intervals"][metric] for row in of_panel), strict=True)
        right.vlines(at, low, high, color=RED, linewidth=2, alpha=0.5)
        right.plot(at, [row[metric] for row in of_panel], "o", color=RED)
        label = f"test {title} (points)" if position == len(panels) - 1 else ""
        right.set(ylabel=label, ylim=(0, 1.15 * most))
        right.spines[["top"]].set_visible(False)
    _save(fig, path)


def _threshold_text(threshold: Sequence[int] | None) -> str:
    return "∞" if threshold is None else f"({threshold[0]}, {threshold[1]})"


def _draw_runtimes(results: Results, path: Path) -> None:
    bars = [
        (row["model"], row, GREY)
        for row in results["dynamic"]["rows"]
        if row["seconds_per_epoch"] and row["recipe"] != results["edge"]
    ]
    bars += [
        (f"EDGE, {row['dnodes']} d-nodes, n* = {_threshold_text(row['threshold'])}", row, GREEN)
        for row in results["dnodes"]
        if row["seconds_per_epoch"]
    ]
    bars.sort(key=lambda bar: -bar[1]["seconds_per_epoch"])
    fig = figure(9, 1.2 + 0.34 * max(len(bars), 1))
    axes = fig.subplots()
    at = range(len(bars))
    axes.barh(at, [row["seconds_per_epoch"] for _, row, _ in bars], color=[color for *_, color in bars], alpha=0.75)
    for position, (_, row, _) in enumerate(bars):
        axes.plot(row["seconds_range"], [position, position], color="black", linewidth=1)
    axes.set_yticks(at, [name for name, *_ in bars])
    axes.set_ylim(len(bars) - 0.4, -0.6)
    label = "seconds per epoch: median (bar), fastest to slowest (line)"
    style_axes(axes, "Training time per epoch", xlabel=label)
    _save(fig, path)


def _draw_paths(paths: Results, path: Path) -> None:
    curves = {
        method: [(point["dnodes"], point["path"]) for point in points]
        for method, points in paths.items()
        if method != "windows"
    }
    fig = figure(9, 5)
    draw_curves(fig.subplots(), curves, paths["best"][0]["path"])
    _save(fig, path)
