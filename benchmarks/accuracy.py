"""How good the models are, on real logs: every heuristic, their learned mixture, both experts and their fusion.

    python benchmarks/accuracy.py run --logs DIR --runs DIR --what main,switches,cuts --seeds 3 --jobs 2
    python benchmarks/accuracy.py table --logs DIR --runs DIR
    python benchmarks/accuracy.py picture --logs DIR --runs DIR --out docs/pictures

DIR of --logs has one prepared log per folder (dynedge prepare). Each run is trained on 80 % of a log, tuned on the
next 10 % and judged on the last 10 % by full ranking, and appends one row to RUNS/results.csv: run again, it goes on
with what is missing. Runs of `main` and `heuristics` lie where `dynedge compare` looks for them (baselines.py).
`table` prints docs/results.md's tables from the rows and the stored ranks: means over seeds, and paired differences
of the seeds' mean reciprocal ranks and hits, clustered by user. `picture` draws what d-nodes and thresholds do
(`--what cuts`): time per epoch as bars, Recall@10 as points.
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
from dynedge.runs.evaluate_run import evaluate_run
from dynedge.runs.folder import RunFolder
from dynedge.runs.run_config import recipe_config
from dynedge.runs.train_run import train_run

COLUMNS = (
    *("log", "what", "variant", "seed", "valid_mrr", "valid_recall@10", "test_mrr", "test_recall@10"),
    *("epochs", "best_epoch", "seconds_per_epoch", "longest_path", "weight", "parameters"),
)

# what -> variant -> (model, settings)
Variant = tuple[str, list[str]]
HEURISTICS: dict[str, Variant] = {name: (name, []) for name in RECIPES}
MAIN: dict[str, Variant] = {name: (name, []) for name in ("edge", "memory", "counts", "recurrence", "edge-paper")}

# The paper's model with nothing cut and nobody active, so that each addition is seen alone; then the memory's parts.
EXACT = [f"model.{name}" for name in ("active_users=none", "active_items=none", "dnodes=none")]
STEPS = {
    "paper, nothing cut": EXACT,
    "+ all items or 512 as negatives": ["model.negatives=512", "model.full_softmax_up_to=4096"],
    "+ candidates by id and bias": ["model.candidate_id=true"],
    "+ time gaps": ["model.time_gaps=true"],
    "+ what the user has had": ["model.history=true"],
    "+ dropout": ["model.dropout=0.3"],
}
SWITCHES: dict[str, Variant] = {}
for _name, _more in STEPS.items():
    _before = next(reversed(SWITCHES.values()))[1] if SWITCHES else []
    SWITCHES[_name] = ("edge-paper", [*_before, *_more])
SWITCHES |= {
    "memory, constant weights": ("memory", ["model.gating_hidden=0"]),
    "memory, no rescaling network": ("memory", ["model.rescaling_hidden=0"]),
    "memory without last_two": ("memory", ["model.contexts=user,last,user_last,near"]),
    "memory without user_last": ("memory", ["model.contexts=user,last,last_two,near"]),
    "memory without near": ("memory", ["model.contexts=user,last,last_two,user_last"]),
}
SWITCHES["edge without what the user has had"] = ("edge", ["model.recurrence.history=false"])
CUTS: dict[str, Variant] = {
    f"K={k}, n*={users or '∞'}/{items or '∞'}": (
        "edge-paper",
        [f"model.dnodes={k}", f"model.active_users={users or 'none'}", f"model.active_items={items or 'none'}"],
    )
    for users, items in ((0, 0), (200, 100))
    for k in (0, 20, 160, 640)
}
SOLVERS: dict[str, Variant] = {"nothing cut": ("recurrence", [])}
SOLVERS |= {
    f"a quarter of the depth, {name}": ("recurrence", [f"model.solver={solver}", f"model.alpha={alpha}"])
    for name, solver, alpha in (
        ("refresh", "refresh", 1),
        ("penalty, α = 1", "penalty", 1),
        ("penalty, α = 0.1", "penalty", 0.1),
        ("augmented", "augmented", 1),
    )
}
WHAT = {"heuristics": HEURISTICS, "main": MAIN, "switches": SWITCHES, "cuts": CUTS, "solvers": SOLVERS}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("do", choices=("run", "one", "table", "picture"))
    parser.add_argument("--logs", type=Path, required=True)
    parser.add_argument("--runs", type=Path, required=True)
    parser.add_argument("--names", default="wikipedia,ml-100k,online_retail", help="which of the logs")
    parser.add_argument("--what", default="main,heuristics")
    parser.add_argument("--only", help="these variants alone, by name, with ; between them")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--seed", type=int, default=0, help="of `one`")
    parser.add_argument("--out", type=Path, help="folder of `picture`")
    args = parser.parse_args()
    {"run": run, "one": one, "table": table, "picture": picture}[args.do](args)


def run(args: argparse.Namespace) -> None:
    """Whatever has no row yet, each in a process of its own."""
    args.runs.mkdir(parents=True, exist_ok=True)
    done = {(row["log"], row["what"], row["variant"], int(row["seed"])) for row in rows(args.runs)}
    tasks = [
        (log, what, variant, seed)
        for what in args.what.split(",")
        for log in args.names.split(",")
        for variant in WHAT[what]
        for seed in range(args.seeds)
        if (not args.only or variant in args.only.split(";"))
        and not (what == "heuristics" and seed)
        and (log, what, variant, seed) not in done
    ]
    print(f"{describe_machine()}; torch {torch.__version__}; {len(tasks)} runs to do", flush=True)
    began = time.monotonic()

    def start(task: tuple[str, str, str, int]) -> None:
        log, what, variant, seed = task
        command = [sys.executable, __file__, "one", "--logs", args.logs, "--runs", args.runs, "--names", log]
        command += ["--what", what, "--only", variant, "--seed", seed]
        command += ["--epochs", args.epochs]
        ended = subprocess.run([str(word) for word in command], check=False, capture_output=True, text=True)
        said = ended.stdout.strip() if ended.returncode == 0 else f"{task} failed: {ended.stderr[-500:]}"
        print(f"{time.monotonic() - began:6.0f} s  {said}", flush=True)

    with ThreadPoolExecutor(args.jobs) as pool:
        list(pool.map(start, tasks))


def one(args: argparse.Namespace) -> None:
    torch.set_num_threads(1)
    name, settings = WHAT[args.what][args.only]
    log = read_log(args.logs / args.names)
    config = recipe_config(name)
    if args.what == "solvers" and settings:
        settings = [*settings, f"model.depth={quarter(args.logs / args.names)}"]
    told = [f"training.seed={args.seed}"]
    if name not in RECIPES:
        told.append(f"training.epochs={args.epochs}")
    config = override(config, [*told, *settings])
    folder = folder_of(args.runs, args.names, args.what, args.only, args.seed)
    folder.parent.mkdir(parents=True, exist_ok=True)
    with RunFolder(folder, force=folder.exists()) as whole:
        _, course = train_run(whole, config, log, quiet=True)
    ranked = evaluate_run(folder, quiet=True)
    shutil.rmtree(folder / "checkpoints")
    verdicts = {part: ranked.summary(part) for part in ("valid", "test")}
    facts = json.loads((folder / "run_info.json").read_text())
    best = course.history[course.best.epoch] if course.best else {}
    row = {
        "log": args.names,
        "what": args.what,
        "variant": args.only,
        "seed": args.seed,
        **{f"{part}_{m}": round(verdicts[part][m], 5) for part in verdicts for m in ("mrr", "recall@10")},
        "epochs": len(course.history),
        "best_epoch": best.get("epoch", ""),
        "seconds_per_epoch": round(float(np.median([record["seconds"] for record in course.history])), 2),
        "longest_path": round(float(np.mean(facts["longest_path"])), 1) if "longest_path" in facts else "",
        "weight": best.get("weight", ""),
        "parameters": sum(p.numel() for p in course.model.parameters() if p.requires_grad),
    }
    append(args.runs, row)
    print(" ".join(f"{key}={value}" for key, value in row.items()))


def quarter(path: Path) -> int:
    """A fourth of the mean longest path of the log's windows, uncut."""
    from dynedge.models.edge.config import RecurrenceConfig
    from dynedge.models.edge.recurrence import make_plan

    log = read_log(path)
    plan = make_plan(RecurrenceConfig(), log, log.split.bounds(len(log))[0])
    return max(1, round(float(np.mean([window.longest_path for window in plan.stats])) / 4))


def folder_of(runs: Path, log: str, what: str, variant: str, seed: int) -> Path:
    plain = "".join(letter if letter.isalnum() or letter in "-." else "_" for letter in variant)
    return runs / log / (f"{plain}-{seed}" if what in ("main", "heuristics") else f"{what}-{plain}-{seed}")


def append(runs: Path, row: dict[str, Any]) -> None:
    with open(runs / "results.csv", "a+", newline="", encoding="utf-8") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.seek(0, 2)
        writer = csv.DictWriter(file, COLUMNS)
        if not file.tell():
            writer.writeheader()
        writer.writerow(row)


def rows(runs: Path) -> list[dict[str, str]]:
    path = runs / "results.csv"
    return list(csv.DictReader(path.open(encoding="utf-8"))) if path.exists() else []


def table(args: argparse.Namespace) -> None:
    found = rows(args.runs)
    for log in args.names.split(","):
        for what in args.what.split(","):
            mine = [row for row in found if row["log"] == log and row["what"] == what]
            if mine:
                print(f"\n### {log}: {what}\n")
                show(args, log, mine)


def show(args: argparse.Namespace, log: str, found: list[dict[str, str]]) -> None:
    """A row for each variant; with the fused model's paired difference, where there is one."""
    ours = ranks_of(args.runs, log, "main", "edge")
    opened = read_log(args.logs / log)
    user = np.asarray(opened.user)[opened.split.ranges(len(opened))["test"].start :]
    columns = "seeds | valid MRR | test MRR | test Recall@10 | s/epoch | longest path"
    print(f"| | {columns} | `edge` MRR − this | `edge` Recall@10 − this |")
    print("|---|---|---|---|---|---|---|---|---|")
    what, there = found[0]["what"], {row["variant"] for row in found}
    order = [variant for variant in WHAT[what] if variant in there]
    if what in ("heuristics", "main"):
        means = {v: np.mean([float(row["test_mrr"]) for row in found if row["variant"] == v]) for v in order}
        order.sort(key=lambda variant: -means[variant])
    for variant in order:
        mine = [row for row in found if row["variant"] == variant]
        cells = [variant, str(len(mine))]
        for column in ("valid_mrr", "test_mrr", "test_recall@10"):
            values = [float(row[column]) for row in mine]
            spread = f" ± {np.std(values):.4f}" if len(values) > 1 else ""
            cells.append(f"{np.mean(values):.4f}{spread}")
        cells.append(f"{np.mean([float(row['seconds_per_epoch']) for row in mine]):.1f}")
        cells.append(mine[0]["longest_path"] or "–")
        theirs = ranks_of(args.runs, log, mine[0]["what"], variant)
        cells += less(ours, theirs, user) if variant != "edge" else ("", "")
        print(f"| {' | '.join(cells)} |")


def ranks_of(runs: Path, log: str, what: str, variant: str) -> list[np.ndarray]:
    paths = (folder_of(runs, log, what, variant, seed) / "ranks" / "full.npy" for seed in range(20))
    return [np.load(path) for path in paths if path.exists()]


def less(ours: list[np.ndarray], theirs: list[np.ndarray], user: np.ndarray) -> tuple[str, str]:
    """The mean over seeds of our reciprocal ranks, and of our hits, less theirs, on the test events."""
    if not ours or not theirs:
        return "–", "–"
    found = []
    for score in (lambda ranks: 1 / ranks, lambda ranks: (ranks <= 10).astype(float)):
        both = [np.mean([score(ranks[-len(user) :]) for ranks in some], 0) for some in (ours, theirs)]
        values = (both[0] - both[1])[:, None]
        low, high = confidence_intervals(values, user)[0]
        found.append(f"{values.mean():+.4f} [{low:+.4f}, {high:+.4f}]")
    return found[0], found[1]


def picture(args: argparse.Namespace) -> None:
    """The paper's ablation figure for these logs."""
    from dynedge.report.style import BLUE, GREY, ORANGE, figure, save, style_axes

    found = [row for row in rows(args.runs) if row["what"] == "cuts" and row["log"] in args.names.split(",")]
    logs = list(dict.fromkeys(row["log"] for row in found))
    fig = figure(6.5 * len(logs), 4.2)
    for axis, log in zip(fig.subplots(1, len(logs), squeeze=False)[0], logs, strict=True):
        of = {name: [row for row in found if row["log"] == log and row["variant"] == name] for name in CUTS}
        of = {name: some for name, some in of.items() if some}
        seconds = [np.mean([float(row["seconds_per_epoch"]) for row in some]) for some in of.values()]
        hits = [[float(row["test_recall@10"]) for row in some] for some in of.values()]
        colors = [BLUE if "∞" in name else GREY for name in of]
        axis.bar(range(len(of)), seconds, color=colors, alpha=0.75)
        axis.set_xticks(range(len(of)), [name.replace(", n*=", "\n") for name in of], fontsize=8)
        axis.set_xlabel("d-nodes a window; events from which users/items are active")
        style_axes(axis, f"{log}: edge-paper", ylabel="seconds an epoch (bars)")
        right = axis.twinx()
        for place, some in enumerate(hits):
            right.plot([place] * len(some), some, "o", color=ORANGE, markersize=4)
        right.plot(range(len(of)), [np.mean(some) for some in hits], "D", color=ORANGE)
        right.set(ylabel="test Recall@10 (points: seeds, and their mean)", ylim=(0, None))
        right.spines[["top"]].set_visible(False)
    save(fig, args.out / "cuts.png")
    print(f"drew {args.out / 'cuts.png'}")


if __name__ == "__main__":
    main()
