"""Figure of a run: training loss, validation metrics, and the longest path of each window."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from dynedge.report.style import BLUE, GREEN, GREY, ORANGE, figure, integer_ticks, legend_above_data, save, style_axes
from dynedge.utils.file_checks import read_json_object
from dynedge.utils.jsonl import read_jsonl

VALID_METRICS = (("valid_mrr", "MRR", ORANGE), ("valid_recall@10", "Recall@10", GREEN))


def draw_run(run: Path, path: Path) -> None:
    """Writes the figure of `dynedge train --plot`."""
    records = read_jsonl(run / "metrics.jsonl")
    run_info = read_json_object(run / "run_info.json")
    has_windows = "longest_path" in run_info
    fig = figure(13, 4)
    axes = fig.subplots(1, 3 if has_windows else 2)
    epochs = [record["epoch"] for record in records]
    _draw_loss(axes[0], epochs, [record["loss"] for record in records])
    _draw_validation(axes[1], epochs, records)
    if has_windows:
        _draw_longest_paths(axes[2], run_info)
    save(fig, path)


def _draw_loss(axes: Any, epochs: list[int], losses: list[float]) -> None:
    axes.plot(epochs, losses, color=BLUE, marker="o")
    style_axes(axes, "Training loss", xlabel="epoch", ylabel="loss")
    integer_ticks(axes.xaxis)


def _draw_validation(axes: Any, epochs: list[int], records: list[dict[str, Any]]) -> None:
    """MRR and Recall@10 after each epoch, with the best epoch by MRR marked."""
    for name, title, color in VALID_METRICS:
        values = [record[name] for record in records]
        if not values or None in values:
            continue
        best = values.index(max(values))
        label = f"{title}, best {values[best]:.3f} (epoch {epochs[best]})"
        axes.plot(epochs, values, color=color, marker="o", label=label)
        if name == "valid_mrr":
            axes.vlines(epochs[best], 0, values[best], color=color, linewidth=1, linestyle="--")
    style_axes(axes, "Validation metrics", xlabel="epoch")
    integer_ticks(axes.xaxis)
    legend_above_data(axes)


def _draw_longest_paths(axes: Any, run_info: dict[str, list[int]]) -> None:
    windows = range(1, len(run_info["longest_path"]) + 1)
    dnodes = sum(run_info["dnodes"]) / max(len(run_info["dnodes"]), 1)
    axes.step(windows, run_info["longest_path_uncut"], where="mid", color=GREY, label="without d-nodes")
    if dnodes:
        label = f"with {dnodes:.3g} d-nodes per window"
        axes.step(windows, run_info["longest_path"], where="mid", color=BLUE, label=label)
    style_axes(axes, "Longest path per window", xlabel="window", ylabel="longest path (levels)")
    integer_ticks(axes.xaxis)
    legend_above_data(axes)
