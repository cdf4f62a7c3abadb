"""What d-nodes cost in accuracy and save in depth: the paper's ablation, on a log small enough for any machine.

    python benchmarks/recall_by_dnodes.py --plot docs/pictures/recall-by-dnodes.png

The paper's model without active entities is trained by each number of d-nodes a window; then the events after the
training events are ranked among all items. Levels, not seconds, are told: they are what a GPU's time follows, and
the same on every machine.
"""

from __future__ import annotations

import argparse
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

from dynedge.data.log import EventLog
from dynedge.data.synthetic import synthesize
from dynedge.models.edge import recurrence
from dynedge.models.edge.config import PAPER
from dynedge.report.style import BLUE, ORANGE, figure, save, style_axes
from dynedge.training.config import TrainingConfig
from dynedge.training.loop import fit

Row = dict[str, Any]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--recipe", default="lastfm-like")
    parser.add_argument("--events", type=int, default=60_000)
    parser.add_argument("--windows", type=int, default=30)
    parser.add_argument("--dnodes", default="0,10,40,160,640", help="numbers a window, with commas")
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--plot", type=Path)
    args = parser.parse_args()
    print("d-nodes a window, mean longest path, Recall@10 by seed", flush=True)
    with tempfile.TemporaryDirectory(prefix="recall-") as folder:
        log = synthesize(args.recipe, Path(folder) / "log", events=args.events, quiet=True)
        rows = [measure(log, count, args) for count in map(int, args.dnodes.split(","))]
    if args.plot:
        draw(rows, args.plot)


def measure(log: EventLog, count: int, args: argparse.Namespace) -> Row:
    config = replace(PAPER, active_users=None, active_items=None, dnodes=count, windows=args.windows)
    recalls, path = [], 0.0
    for seed in range(args.seeds):
        training = TrainingConfig(epochs=args.epochs, patience=0, seed=seed, device="cpu", precision="float32")
        events, _ = training.train_valid_ranges(log)
        model = recurrence.Recurrence.create(config, log, events.stop, seed)
        course = fit(model, log, training)
        recalls.append(course.history[-1]["valid_recall@10"])
        path = sum(window.longest_path for window in model.plan.stats) / args.windows
    print(f"  {count:4} {path:8.1f}  " + ", ".join(f"{recall:.4f}" for recall in recalls), flush=True)
    return {"dnodes": count, "path": path, "recall": sum(recalls) / len(recalls)}


def draw(rows: list[Row], path: Path) -> None:
    """Bars are levels, the line is Recall@10."""
    fig = figure(6, 3.4)
    axes, names = fig.subplots(), [str(row["dnodes"]) for row in rows]
    axes.bar(names, [row["path"] for row in rows], color=BLUE)
    style_axes(axes, "d-nodes a window", xlabel="K", ylabel="mean longest path")
    beside = axes.twinx()
    recalls = [row["recall"] for row in rows]
    beside.plot(names, recalls, "o-", color=ORANGE)
    beside.set(ylabel="Recall@10", ylim=(0, 1.1 * max(recalls)))
    beside.yaxis.label.set_color(ORANGE)
    save(fig, path)


if __name__ == "__main__":
    main()
