"""A picture of a run: how it learned, and how deep its windows were without d-nodes and with them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from dynedge.report.style import BLUE, GREEN, GREY, ORANGE, figure, save, tidy
from dynedge.utils.jsonl import read_jsonl


def draw_run(run: Path, path: Path) -> None:
    records = read_jsonl(run / "metrics.jsonl")
    facts = json.loads((run / "run_info.json").read_text())
    fig = figure(13, 4)
    paths = "longest_path" in facts
    axes = fig.subplots(1, 3 if paths else 2)
    epochs = [record["epoch"] for record in records]
    _draw_curve(axes[0], epochs, [record["loss"] for record in records], "Loss of training events", BLUE)
    _draw_valid(axes[1], epochs, records)
    if paths:
        _draw_paths(axes[2], facts)
    save(fig, path)


def _draw_curve(axes: Any, epochs: list[int], values: list[float], title: str, color: str) -> None:
    axes.plot(epochs, values, color=color, marker="o")
    tidy(axes, title, xlabel="epoch")
    axes.xaxis.get_major_locator().set_params(integer=True)


def _draw_valid(axes: Any, epochs: list[int], records: list[dict[str, Any]]) -> None:
    """MRR and Recall@10 of the validation events, the best epoch by MRR marked."""
    for name, label, color in (("valid_mrr", "MRR", ORANGE), ("valid_recall@10", "Recall@10", GREEN)):
        values = [record[name] for record in records]
        if any(value is None for value in values):
            continue
        axes.plot(epochs, values, color=color, marker="o", label=label)
        if name == "valid_mrr":
            best = values.index(max(values))
            axes.annotate(f"best: {values[best]:.3f}", (epochs[best], values[best]), (0, -16), ha="right",
                          textcoords="offset points", color=color)  # fmt: skip
    tidy(axes, "Validation events", xlabel="epoch")
    axes.set_ylim(bottom=0)
    axes.xaxis.get_major_locator().set_params(integer=True)
    axes.legend(frameon=False)


def _draw_paths(axes: Any, facts: dict[str, list[int]]) -> None:
    windows = range(1, len(facts["longest_path"]) + 1)
    axes.step(windows, facts["longest_path_uncut"], where="mid", color=GREY, label="without d-nodes")
    per_window = sum(facts["dnodes"]) / max(len(facts["dnodes"]), 1)
    label = f"with {per_window:.3g} d-nodes a window"
    axes.step(windows, facts["longest_path"], where="mid", color=BLUE, label=label)
    tidy(axes, "Longest path", xlabel="window")
    axes.set_ylim(bottom=0)
    axes.legend(frameon=False)
