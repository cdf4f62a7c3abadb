"""Accuracy of EDGE, its two experts, the heuristics, and ablations on real logs.

    python benchmarks/accuracy.py run --logs DIR --runs DIR --experiments main,ablations,dnodes --seeds 3 --jobs 2
    python benchmarks/accuracy.py table --logs DIR --runs DIR
    python benchmarks/accuracy.py plot --logs DIR --runs DIR --out docs/pictures

--logs is a folder of prepared logs (dynedge prepare). Each run trains on 80 % of a log, validates on the next 10 %
and is evaluated on the last 10 % by full ranking. It appends one row to RUNS/results.csv; `run` resumes with the
missing rows. Runs of `main` and `heuristics` are stored where `dynedge compare` looks for them (baselines.py).
`table` prints the tables of docs/results.md from the rows and the stored ranks: means over seeds, and paired
differences in MRR and Recall@10 with bootstrap confidence intervals clustered by user. `plot` shows the effect of
d-nodes and activity thresholds (`--experiments dnodes`): seconds per epoch as bars, Recall@10 as points.
"""

from __future__ import annotations

import argparse
import csv
import fcntl
import json
import shutil
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import torch
from machine_info import describe_machine

from dynedge.config import override
from dynedge.data.log import read_log
from dynedge.evaluation.bootstrap import confidence_intervals
from dynedge.models.baselines.heuristics import RECIPES
from dynedge.models.count_memory.config import CONTEXTS
from dynedge.runs.evaluate_run import evaluate_run
from dynedge.runs.folder import RunFolder
from dynedge.runs.run_config import recipe_config
from dynedge.runs.train_run import train_run

COLUMNS = (
    *("log", "experiment", "variant", "seed", "valid_mrr", "valid_recall@10", "test_mrr", "test_recall@10"),
    *("epochs", "best_epoch", "seconds_per_epoch", "longest_path", "weight", "parameters"),
)

Variant = tuple[str, list[str]]  # model or recipe, and settings
HEURISTICS: dict[str, Variant] = {name: (name, []) for name in RECIPES}
MAIN: dict[str, Variant] = {
    name: (name, []) for name in ("edge", "memory", "counts", "recurrence", "edge-paper-small", "edge-paper-large")
}

# From the paper's model without d-nodes and active entities, one addition after another; then parts of the memory.
EXACT = ["model.dnodes_share=none"]
ADDITIONS = {
    "paper, no d-nodes": EXACT,
    "+ all items or 512 as negatives": ["model.negatives=512", "model.full_softmax_up_to=4096"],
    "+ candidates by id and bias": ["model.candidate_id_up_to=4096"],
    "+ time gaps": ["model.time_gaps=true"],
    "+ repeat bonus": ["model.history=true"],
    "+ dropout": ["model.dropout=0.3"],
    "+ popularity and staleness of candidates": ["model.popularity=true"],
    "+ copy path": ["model.copy_path=true"],
    "+ successors": ["model.successors=true"],
    "+ user profile": ["model.profile=true"],
}
ABLATIONS: dict[str, Variant] = {}
for _name, _more in ADDITIONS.items():
    _before = next(reversed(ABLATIONS.values()))[1] if ABLATIONS else []
    ABLATIONS[_name] = ("edge-paper-small", [*_before, *_more])
ABLATIONS |= {
    "memory, constant weights": ("memory", ["model.gating_hidden=0"]),
    "memory, no rescaling network": ("memory", ["model.rescaling_hidden=0"]),
}
ABLATIONS |= {
    f"memory without {left_out}": ("memory", [f"model.contexts={','.join(c for c in CONTEXTS if c != left_out)}"])
    for left_out in CONTEXTS
}
ABLATIONS |= {
    f"edge without {part}": ("edge", [f"model.recurrence.{setting}=false"])
    for part, setting in (("repeat bonus", "history"), ("user profile", "profile"))
}
DNODES: dict[str, Variant] = {
    f"K={k}, n*={users or '∞'}/{items or '∞'}": (
        "edge-paper-small",
        [
            "model.dnodes_share=none",
            f"model.dnodes={k}",
            f"model.active_users={users or 'none'}",
            f"model.active_items={items or 'none'}",
        ],
    )
    for users, items in ((0, 0), (200, 100))
    for k in (0, 20, 160, 640)
}
DNODES["9 % of a window's events, n*=200/100"] = (
    "edge-paper-small",
    ["model.active_users=200", "model.active_items=100"],
)
# About a quarter of the longest path of the recipe's windows by Algorithm 2, on wikipedia and on ml-100k.
DNODES |= {
    f"{share} % of a window's events": ("edge-paper-small", [f"model.dnodes_share={share / 100}"])
    for share in (4, 16)
}
SOLVERS: dict[str, Variant] = {"no d-nodes": ("recurrence", [])}
SOLVERS |= {
    f"quarter of the longest path, {name}": ("recurrence", [f"model.solver={solver}", f"model.alpha={alpha}"])
    for name, solver, alpha in (
        ("refresh", "refresh", 1),
        ("refresh and penalty, α = 0.01", "refresh-penalty", 0.01),
        ("penalty, α = 1", "penalty", 1),
        ("penalty, α = 0.1", "penalty", 0.1),
        ("augmented", "augmented", 1),
    )
}
EXPERIMENTS = {
    "heuristics": HEURISTICS,
    "main": MAIN,
    "ablations": ABLATIONS,
    "dnodes": DNODES,
    "solvers": SOLVERS,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=("run", "one", "table", "plot"), help="Command; `one` is used by `run`.")
    parser.add_argument("--logs", type=Path, required=True, help="Folder of log folders.")
    parser.add_argument("--runs", type=Path, required=True, help="Folder for run folders and results.csv.")
    parser.add_argument(
        "--names", default="wikipedia,ml-100k,online_retail", help="Names of logs, separated by commas."
    )
    parser.add_argument("--experiments", default="main,heuristics", help=f"Any of {', '.join(EXPERIMENTS)}.")
    parser.add_argument("--variants", help="Names of variants, separated by semicolons; default: all.")
    parser.add_argument("--seeds", type=int, default=3, help="Number of seeds.")
    parser.add_argument("--epochs", type=int, default=20, help="Maximum number of epochs.")
    parser.add_argument("--split", default="", help="Shares of the split, as 0.7,0.15,0.15; default: the log's.")
    parser.add_argument("--jobs", type=int, default=1, help="Number of runs at the same time.")
    parser.add_argument("--seed", type=int, default=0, help="Seed of `one`.")
    parser.add_argument("--out", type=Path, help="Folder for the image of `plot`.")
    args = parser.parse_args()
    {"run": run, "one": run_one, "table": print_tables, "plot": plot}[args.command](args)


def run(args: argparse.Namespace) -> None:
    """Runs everything that has no row yet, each in a subprocess."""
    args.runs.mkdir(parents=True, exist_ok=True)
    done = {(row["log"], row["experiment"], row["variant"], int(row["seed"])) for row in read_rows(args.runs)}
    tasks = [
        (log, experiment, variant, seed)
        for experiment in args.experiments.split(",")
        for log in args.names.split(",")
        for variant in EXPERIMENTS[experiment]
        for seed in range(args.seeds)
        if (not args.variants or variant in args.variants.split(";"))
        and not (experiment == "heuristics" and seed)
        and (log, experiment, variant, seed) not in done
    ]
    print(f"{describe_machine()}; torch {torch.__version__}; {len(tasks)} runs to do", flush=True)
    began = time.monotonic()

    def start(task: tuple[str, str, str, int]) -> None:
        log, experiment, variant, seed = task
        command = [sys.executable, __file__, "one", "--logs", args.logs, "--runs", args.runs, "--names", log]
        command += ["--experiments", experiment, "--variants", variant, "--seed", seed]
        command += ["--epochs", args.epochs, "--split", args.split]
        ended = subprocess.run([str(word) for word in command], check=False, capture_output=True, text=True)
        message = ended.stdout.strip() if ended.returncode == 0 else f"{task} failed: {ended.stderr[-500:]}"
        print(f"{time.monotonic() - began:6.0f} s  {message}", flush=True)

    with ThreadPoolExecutor(args.jobs) as pool:
        list(pool.map(start, tasks))


def run_one(args: argparse.Namespace) -> None:
    """Trains and evaluates one variant with one seed, and appends its row."""
    torch.set_num_threads(1)
    name, settings = EXPERIMENTS[args.experiments][args.variants]
    log = read_log(args.logs / args.names)
    config = recipe_config(name)
    if args.experiments == "solvers" and settings:
        settings = [*settings, f"model.depth={quarter_depth(args.logs / args.names)}"]
    training = [f"training.seed={args.seed}", f"training.split={args.split}"]
    if name not in RECIPES:
        training.append(f"training.epochs={args.epochs}")
    config = override(config, [*training, *settings])
    folder = run_path(args.runs, args.names, args.experiments, args.variants, args.seed)
    folder.parent.mkdir(parents=True, exist_ok=True)
    with RunFolder(folder, force=folder.exists()) as run_folder:
        _, train_state = train_run(run_folder, config, log, quiet=True)
    ranked = evaluate_run(folder, quiet=True)
    shutil.rmtree(folder / "checkpoints")
    summaries = {part: ranked.summary(part) for part in ("valid", "test")}
    run_info = json.loads((folder / "run_info.json").read_text())
    best = train_state.history[train_state.best.epoch] if train_state.best else {}
    row = {
        "log": args.names,
        "experiment": args.experiments,
        "variant": args.variants,
        "seed": args.seed,
        **{f"{part}_{m}": round(summaries[part][m], 5) for part in summaries for m in ("mrr", "recall@10")},
        "epochs": len(train_state.history),
        "best_epoch": best.get("epoch", ""),
        "seconds_per_epoch": round(float(np.median([record["seconds"] for record in train_state.history])), 2),
        "longest_path": round(float(np.mean(run_info["longest_path"])), 1) if "longest_path" in run_info else "",
        "weight": best.get("weight", ""),
        "parameters": train_state.model.num_parameters,
    }
    append_row(args.runs, row)
    print(" ".join(f"{key}={value}" for key, value in row.items()))


def quarter_depth(path: Path) -> int:
    """Returns a quarter of the mean longest path of the log's windows without d-nodes."""
    from dynedge.models.edge.config import RecurrenceConfig
    from dynedge.models.edge.recurrence import make_plan

    log = read_log(path)
    plan = make_plan(RecurrenceConfig(), log, log.split.bounds(len(log))[0])
    return max(1, round(float(np.mean([window.longest_path for window in plan.stats])) / 4))


def run_path(runs: Path, log: str, experiment: str, variant: str, seed: int) -> Path:
    name = "".join(letter if letter.isalnum() or letter in "-." else "_" for letter in variant)
    return runs / log / (f"{name}-{seed}" if experiment in ("main", "heuristics") else f"{experiment}-{name}-{seed}")


def append_row(runs: Path, row: dict[str, Any]) -> None:
    with open(runs / "results.csv", "a+", newline="", encoding="utf-8") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.seek(0, 2)
        writer = csv.DictWriter(file, COLUMNS)
        if not file.tell():
            writer.writeheader()
        writer.writerow(row)


def read_rows(runs: Path) -> list[dict[str, str]]:
    path = runs / "results.csv"
    return list(csv.DictReader(path.open(encoding="utf-8"))) if path.exists() else []


def print_tables(args: argparse.Namespace) -> None:
    rows = read_rows(args.runs)
    for log in args.names.split(","):
        for experiment in args.experiments.split(","):
            selected = [row for row in rows if row["log"] == log and row["experiment"] == experiment]
            if selected:
                print(f"\n### {log}: {experiment}\n")
                print_table(args, log, selected)


def print_table(args: argparse.Namespace, log: str, rows: list[dict[str, str]]) -> None:
    """Prints a row for each variant, with the paired difference of `edge` to it if both have stored ranks."""
    edge = load_ranks(args.runs, log, "main", "edge")
    events = read_log(args.logs / log)
    user = np.asarray(events.user)[events.split.ranges(len(events))["test"].start :]
    columns = "seeds | validation MRR | test MRR | test Recall@10 | s/epoch | longest path"
    print(f"| | {columns} | `edge` MRR − this | `edge` Recall@10 − this |")
    print("|---|---|---|---|---|---|---|---|---|")
    experiment, present = rows[0]["experiment"], {row["variant"] for row in rows}
    order = [variant for variant in EXPERIMENTS[experiment] if variant in present]
    if experiment in ("heuristics", "main"):
        means = {v: np.mean([float(row["test_mrr"]) for row in rows if row["variant"] == v]) for v in order}
        order.sort(key=lambda variant: -means[variant])
    for variant in order:
        selected = [row for row in rows if row["variant"] == variant]
        cells = [variant, str(len(selected))]
        for column in ("valid_mrr", "test_mrr", "test_recall@10"):
            values = [float(row[column]) for row in selected]
            spread = f" ± {np.std(values):.4f}" if len(values) > 1 else ""
            cells.append(f"{np.mean(values):.4f}{spread}")
        cells.append(f"{np.mean([float(row['seconds_per_epoch']) for row in selected]):.1f}")
        cells.append(selected[0]["longest_path"] or "–")
        ranks = load_ranks(args.runs, log, experiment, variant)
        cells += paired_differences(edge, ranks, user) if variant != "edge" else ("", "")
        print(f"| {' | '.join(cells)} |")


def load_ranks(runs: Path, log: str, experiment: str, variant: str) -> list[np.ndarray]:
    """Returns the stored ranks of each seed."""
    paths = (run_path(runs, log, experiment, variant, seed) / "ranks" / "full.npy" for seed in range(20))
    return [np.load(path) for path in paths if path.exists()]


def paired_differences(first: list[np.ndarray], second: list[np.ndarray], user: np.ndarray) -> tuple[str, str]:
    """Returns the differences in MRR and Recall@10 on the test events, first minus second, averaged over seeds."""
    if not first or not second:
        return "–", "–"
    cells = []
    for score in (lambda ranks: 1 / ranks, lambda ranks: (ranks <= 10).astype(float)):
        both = [np.mean([score(ranks[-len(user) :]) for ranks in seeds], 0) for seeds in (first, second)]
        values = (both[0] - both[1])[:, None]
        low, high = confidence_intervals(values, user)[0]
        cells.append(f"{values.mean():+.4f} [{low:+.4f}, {high:+.4f}]")
    return cells[0], cells[1]


def plot(args: argparse.Namespace) -> None:
    """Draws the paper's ablation figure for these logs."""
    from dynedge.report.style import BLUE, GREY, ORANGE, figure, save, style_axes

    rows = [
        row for row in read_rows(args.runs) if row["experiment"] == "dnodes" and row["log"] in args.names.split(",")
    ]
    logs = list(dict.fromkeys(row["log"] for row in rows))
    fig = figure(6.5 * len(logs), 4.2)
    for axis, log in zip(fig.subplots(1, len(logs), squeeze=False)[0], logs, strict=True):
        variants = {name: [row for row in rows if row["log"] == log and row["variant"] == name] for name in DNODES}
        variants = {name: seeds for name, seeds in variants.items() if seeds}
        seconds = [np.mean([float(row["seconds_per_epoch"]) for row in seeds]) for seeds in variants.values()]
        recalls = [[float(row["test_recall@10"]) for row in seeds] for seeds in variants.values()]
        colors = [BLUE if "∞" in name else GREY for name in variants]
        axis.bar(range(len(variants)), seconds, color=colors, alpha=0.75)
        axis.set_xticks(range(len(variants)), [name.replace(", n*=", "\n") for name in variants], fontsize=8)
        axis.set_xlabel("d-nodes per window; activity thresholds of users/items")
        style_axes(axis, f"{log}: edge-paper-small", ylabel="seconds per epoch (bars)")
        right = axis.twinx()
        for position, seeds in enumerate(recalls):
            right.plot([position] * len(seeds), seeds, "o", color=ORANGE, markersize=4)
        right.plot(range(len(variants)), [np.mean(seeds) for seeds in recalls], "D", color=ORANGE)
        right.set(ylabel="test Recall@10 (seeds and their mean)", ylim=(0, None))
        right.spines[["top"]].set_visible(False)
    save(fig, args.out / "dnode-ablation.png")
    print(f"wrote {args.out / 'dnode-ablation.png'}")


if __name__ == "__main__":
    main()
