"""What each choice of the recipe `edge-paper-small` contributes: validation MRR, state norm and residual by epoch.

    python benchmarks/paper_recipe.py --logs DIR --names wikipedia,ml-100k --epochs 15 [--variants "A;B"]

--logs is a folder of prepared logs (dynedge prepare). A variant is the recipe with other settings; all have the same
seed. Printed are the best validation MRR, that of every epoch, the mean norm of the states in the last epoch, the
mean ‖φ − state‖ there, and the mean longest path.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import torch
from machine_info import describe_machine

from dynedge.config import override
from dynedge.data.log import EventLog, read_log
from dynedge.runs.run_config import build_model, recipe_config, resolve_config
from dynedge.training.loop import fit

ACTIVE = ["model.active_users=200", "model.active_items=100"]
NOT_AVERAGED = ["training.average=0"]
LEARNED = ["model.solver=penalty"]
SHORT = "300 windows"  # however few events the log has; the recipe has at least 1,793 events per window
WINDOWS: dict[str, list[str]] = {
    "the recipe": [],
    "no d-nodes": ["model.dnodes_share=none"],
    "18 % d-nodes": ["model.dnodes_share=0.18"],
    "36 % d-nodes": ["model.dnodes_share=0.36"],
    **{f"{count} windows": ["model.min_window_events=0", f"model.windows={count}"] for count in (60, 100, 150, 300)},
}
CHOICES: dict[str, list[str]] = {
    "no d-nodes": ["model.dnodes_share=none"],
    "18 % d-nodes": ["model.dnodes_share=0.18"],
    "36 % d-nodes": ["model.dnodes_share=0.36"],
    "dropout 0.3": ["model.dropout=0.3"],
    "dropout 0.5": ["model.dropout=0.5"],
    "a third of the learning rate of rows": ["training.row_lr=0.003"],
    "a third of the other learning rate": ["training.lr=0.0003"],
    "a third of both learning rates": ["training.lr=0.0003", "training.row_lr=0.003"],
    "averaged over 2,000 windows": ["training.average=2000"],
    "averaged over 2,000 windows, dropout 0.5": ["training.average=2000", "model.dropout=0.5"],
    "n* = (200, 100), ψ frozen": ACTIVE,
    "n* = (200, 100), ψ evolves": [*ACTIVE, "model.evolve_active=true"],
    "not averaged": NOT_AVERAGED,
    "not averaged, no d-nodes": [*NOT_AVERAGED, "model.dnodes_share=none"],
    "the same, negatives per chunk": [
        *NOT_AVERAGED,
        "model.dnodes_share=none",
        "model.negatives_per_event=false",
    ],
    "not averaged, α = 0.1": [*NOT_AVERAGED, "model.alpha=0.1"],
    "not averaged, no penalty (refresh)": [*NOT_AVERAGED, "model.solver=refresh"],
    "not averaged, φ learned, cold, α = 1": [*NOT_AVERAGED, *LEARNED, "model.alpha=1", "model.phi_warmup=0"],
    "not averaged, φ learned, α = 1": [*NOT_AVERAGED, *LEARNED, "model.alpha=1"],
    "not averaged, φ learned, α = 1, rate × 10": [
        *NOT_AVERAGED,
        *LEARNED,
        "model.alpha=1",
        "model.phi_lr_factor=10",
    ],
    "not averaged, φ learned, rate × 30": [*NOT_AVERAGED, *LEARNED, "model.phi_lr_factor=30"],
}
VARIANTS = WINDOWS | {f"{SHORT}, {name}": [*WINDOWS[SHORT], *settings] for name, settings in CHOICES.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--logs", type=Path, required=True, help="Folder of log folders.")
    parser.add_argument("--names", default="wikipedia,ml-100k", help="Names of logs, separated by commas.")
    parser.add_argument("--variants", help="Names of variants, separated by semicolons; default: all.")
    parser.add_argument("--epochs", type=int, default=15, help="Number of training epochs.")
    parser.add_argument("--seed", type=int, default=0, help="Seed of training.")
    args = parser.parse_args()
    torch.set_num_threads(1)
    print(f"{describe_machine()}; torch {torch.__version__}; {args.epochs} epochs, seed {args.seed}", flush=True)
    for name in args.names.split(","):
        log = read_log(args.logs / name)
        for variant in args.variants.split(";") if args.variants else VARIANTS:
            print(f"{name}, {variant}: {train(log, VARIANTS[variant], args)}", flush=True)


def train(log: EventLog, settings: list[str], args: argparse.Namespace) -> str:
    training = [f"training.epochs={args.epochs}", "training.patience=0", f"training.seed={args.seed}"]
    config = resolve_config(override(recipe_config("edge-paper-small"), [*training, *settings]), log)
    model = build_model(config, log)
    history = fit(model, log, config.training).history
    curve = [record["valid_mrr"] for record in history]
    path = np.mean(model.run_info()["longest_path"])
    last = f"norm {history[-1]['state_norm']:.2f}, residual {history[-1]['residual']:.2f}, path {path:.1f}"
    return f"{max(curve):.4f} ({' '.join(f'{value:.4f}' for value in curve)}), {last}"


if __name__ == "__main__":
    main()
