"""Compares the solvers of the d-node constraint φ = state: residual and validation MRR after each epoch.

    python benchmarks/solvers.py --log LOG --depth 8 --epochs 6 --plot solvers.png

Without --log: wikipedia of ../shared/data if available, else a synthetic lastfm-like log. All runs share the seed and
all settings except the solver; `exact` has no d-nodes and therefore no residual.
"""

from __future__ import annotations

import argparse
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from load_log import load_log
from machine_info import describe_machine

from dynedge.data.log import EventLog, read_log
from dynedge.models.edge.config import SOLVERS, RecurrenceConfig
from dynedge.models.edge.recurrence import Recurrence
from dynedge.report.style import BLUE, GREEN, GREY, ORANGE, RED, figure, save, style_axes
from dynedge.training.config import TrainingConfig
from dynedge.training.loop import fit

COLORS = dict(zip(("exact", *SOLVERS), (GREY, BLUE, ORANGE, GREEN, RED), strict=True))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--log", type=Path, help="Log folder.")
    parser.add_argument("--depth", type=int, default=8, help="Maximum path length in levels.")
    parser.add_argument("--epochs", type=int, default=6, help="Number of training epochs.")
    parser.add_argument("--alpha", type=float, default=1.0, help="Weight of the d-node constraint.")
    parser.add_argument("--seed", type=int, default=0, help="Seed of training.")
    parser.add_argument("--plot", type=Path, help="Image file to write.")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="solvers-") as folder:
        log = read_log(args.log) if args.log else load_log("wikipedia", Path(folder), synthetic_events=100_000)
        settings = f"depth {args.depth}, α = {args.alpha:g}"
        print(f"{describe_machine()}; torch {torch.__version__}; {len(log):,} events, {settings}")
        history = {solver: train(log, solver, args) for solver in COLORS}
    for solver, records in history.items():
        cells = [f"{r['valid_mrr']:.4f}" + (f" ({r['residual']:.3f})" if solver != "exact" else "") for r in records]
        print(f"{solver:16} {'  '.join(cells)}")
    print("validation MRR after each epoch, and in brackets the mean ‖φ − state‖")
    if args.plot:
        draw(history, args.plot)


def train(log: EventLog, solver: str, args: argparse.Namespace) -> list[dict[str, Any]]:
    """Trains with this solver; returns the record of each epoch."""
    config = RecurrenceConfig(alpha=args.alpha)
    if solver != "exact":
        config = replace(config, depth=args.depth, solver=solver)
    training = TrainingConfig(epochs=args.epochs, patience=0, seed=args.seed)
    model = Recurrence.create(config, log, training.train_valid_ranges(log)[0].stop, args.seed)
    return fit(model, log, training).history


def draw(history: dict[str, list[dict[str, Any]]], path: Path) -> None:
    fig = figure(11, 4)
    left, right = fig.subplots(1, 2)
    for solver, records in history.items():
        epochs = [record["epoch"] for record in records]
        left.plot(epochs, [record["valid_mrr"] for record in records], color=COLORS[solver], marker="o", label=solver)
        if solver != "exact":
            right.plot(
                epochs, [record["residual"] for record in records], color=COLORS[solver], marker="o", label=solver
            )
    style_axes(left, "MRR of validation events", xlabel="epoch")
    style_axes(right, "Residual: mean ‖φ − state‖", xlabel="epoch")
    for axes in (left, right):
        axes.set_ylim(bottom=0)
        axes.legend(frameon=False)
    save(fig, path)


if __name__ == "__main__":
    main()
