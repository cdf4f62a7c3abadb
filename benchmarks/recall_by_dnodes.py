"""Effect of the number of d-nodes on Recall@10 and on the longest path: the paper's ablation on a small log.

    python benchmarks/recall_by_dnodes.py --plot docs/pictures/recall-by-dnodes.png

The paper's model without active entities is trained with each number of d-nodes per window; then the events after the
training events are ranked among all items. Levels are reported instead of seconds: they determine the time on a GPU
and are the same on every machine.
"""

from __future__ import annotations

import argparse
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

from paper_setting import PAPER

from dynedge.data.log import EventLog
from dynedge.data.synthetic import synthesize
from dynedge.models.edge.recurrence import Recurrence
from dynedge.report.style import BLUE, ORANGE, figure, save, style_axes
from dynedge.training.config import TrainingConfig
from dynedge.training.loop import fit

Row = dict[str, Any]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--recipe", default="lastfm-like", help="Recipe of the synthetic log.")
    parser.add_argument("--events", type=int, default=60_000, help="Number of events of the log.")
    parser.add_argument("--windows", type=int, default=30, help="Number of windows per epoch.")
    parser.add_argument(
        "--dnodes", default="0,10,40,160,640", help="Numbers of d-nodes per window, separated by commas."
    )
    parser.add_argument("--epochs", type=int, default=4, help="Number of training epochs.")
    parser.add_argument("--seeds", type=int, default=2, help="Number of seeds.")
    parser.add_argument("--plot", type=Path, help="Image file to write.")
    args = parser.parse_args()
    print("d-nodes per window, mean longest path, Recall@10 of each seed", flush=True)
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
        model = Recurrence.create(config, log, events.stop, seed)
        train_state = fit(model, log, training)
        recalls.append(train_state.history[-1]["valid_recall@10"])
        path = sum(window.longest_path for window in model.plan.stats) / args.windows
    print(f"  {count:4} {path:8.1f}  " + ", ".join(f"{recall:.4f}" for recall in recalls), flush=True)
    return {"dnodes": count, "path": path, "recall": sum(recalls) / len(recalls)}


def draw(rows: list[Row], path: Path) -> None:
    """Draws levels as bars and Recall@10 as a line."""
    fig = figure(6, 3.4)
    axes, names = fig.subplots(), [str(row["dnodes"]) for row in rows]
    axes.bar(names, [row["path"] for row in rows], color=BLUE)
    style_axes(axes, "d-nodes per window", xlabel="K", ylabel="mean longest path")
    right = axes.twinx()
    recalls = [row["recall"] for row in rows]
    right.plot(names, recalls, "o-", color=ORANGE)
    right.set(ylabel="Recall@10", ylim=(0, 1.1 * max(recalls)))
    right.yaxis.label.set_color(ORANGE)
    save(fig, path)


if __name__ == "__main__":
    main()
