"""How well each solver ties φ to its state: residual and validation MRR against epochs, beside no d-nodes at all.

    python benchmarks/solvers.py --log LOG --depth 8 --epochs 6 --plot solvers.png

Without --log, wikipedia from ../shared/data if it is there, else a lastfm-like log made here. Every run has the same
seed and settings but for the solver; `exact` cuts nothing, so it has no residual.
"""

from __future__ import annotations

import argparse
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from machine_info import machine

from dynedge.data.ingest.pipeline import prepare
from dynedge.data.ingest.schema import Schema
from dynedge.data.log import EventLog, read_log
from dynedge.data.synthetic import synthesize
from dynedge.models.edge.config import SOLVERS, RecurrenceConfig
from dynedge.models.edge.recurrence import Recurrence
from dynedge.report.style import BLUE, GREEN, GREY, ORANGE, RED, figure, save, style_axes
from dynedge.training.config import TrainingConfig
from dynedge.training.loop import fit

WIKIPEDIA = Path(__file__).parents[2] / "shared" / "data" / "wikipedia.parquet"
COLORS = dict(zip(("exact", *SOLVERS), (GREY, BLUE, ORANGE, GREEN, RED), strict=True))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--log", type=Path)
    parser.add_argument("--depth", type=int, default=8, help="no path longer than this")
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--alpha", type=float, default=1.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--plot", type=Path)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="solvers-") as folder:
        log = load(args.log, Path(folder))
        print(f"{machine()}; torch {torch.__version__}; {len(log):,} events, depth {args.depth}, α = {args.alpha:g}")
        found = {who: run(log, who, args) for who in COLORS}
    for who, records in found.items():
        show = [f"{r['valid_mrr']:.4f}" + (f" ({r['residual']:.3f})" if who != "exact" else "") for r in records]
        print(f"{who:16} {'  '.join(show)}")
    print("valid MRR after each epoch, and in brackets the mean ‖φ − state‖")
    if args.plot:
        draw(found, args.plot)


def load(path: Path | None, folder: Path) -> EventLog:
    if path:
        return read_log(path)
    if WIKIPEDIA.exists():
        return prepare(WIKIPEDIA, folder / "log", Schema(user="user", item="item"))
    return synthesize("lastfm-like", folder / "log", events=100_000)


def run(log: EventLog, who: str, args: argparse.Namespace) -> list[dict[str, Any]]:
    """The records of a training with this solver."""
    config = RecurrenceConfig(alpha=args.alpha)
    if who != "exact":
        config = replace(config, depth=args.depth, solver=who)
    training = TrainingConfig(epochs=args.epochs, patience=0, seed=args.seed)
    model = Recurrence.create(config, log, training.train_valid_ranges(log)[0].stop, args.seed)
    return fit(model, log, training).history


def draw(found: dict[str, list[dict[str, Any]]], path: Path) -> None:
    fig = figure(11, 4)
    left, right = fig.subplots(1, 2)
    for who, records in found.items():
        epochs = [record["epoch"] for record in records]
        left.plot(epochs, [record["valid_mrr"] for record in records], color=COLORS[who], marker="o", label=who)
        if who != "exact":
            right.plot(epochs, [record["residual"] for record in records], color=COLORS[who], marker="o", label=who)
    style_axes(left, "MRR of validation events", xlabel="epoch")
    style_axes(right, "Residual: mean ‖φ − state‖", xlabel="epoch")
    for axes in (left, right):
        axes.set_ylim(bottom=0)
        axes.legend(frameon=False)
    save(fig, path)


if __name__ == "__main__":
    main()
