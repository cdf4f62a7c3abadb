"""EDGE, its experts, the plain rules and the paper's thirteen systems on real logs: docs/results.md's tables.

    python benchmarks/thirteen.py --logs DIR --runs DIR --seeds 3

DIR of --logs has one prepared log per folder (dynedge prepare). For each log this is `dynedge compare LOG`, ranked
among all items and among 499 drawn ones, from the same runs: RUNS/LOG has the run folders, RUNS/LOG-PROTOCOL.json the
rows and RUNS/LOG-PROTOCOL/index.html the page. Run again, it goes on with what is missing.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch
from machine import machine

LOGS = "wikipedia,online_retail,ml-100k,globo"
PROTOCOLS = "full", "sampled-499"
HEAD = ("model", "seeds", "MRR", "less the best", "Recall@10", "s/epoch", "peak MiB", "parameters")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--logs", type=Path, required=True)
    parser.add_argument("--runs", type=Path, required=True)
    parser.add_argument("--names", default=LOGS, help="which of the logs")
    parser.add_argument("--models", default="all")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=20)
    args = parser.parse_args()
    args.runs.mkdir(parents=True, exist_ok=True)
    print(f"{machine()}; torch {torch.__version__}; {args.seeds} seeds, at most {args.epochs} epochs")
    for name in args.names.split(","):
        for protocol in PROTOCOLS:
            found = compared(args, name, protocol)
            print(f"\n### {name}, {protocol}: {found['events']:,} test events of {found['users']:,} users\n")
            print("\n".join(markdown(found["rows"])), flush=True)


def compared(args: argparse.Namespace, name: str, protocol: str) -> dict[str, Any]:
    """What `dynedge compare LOG --json` says; its progress goes to our stderr."""
    kept = args.runs / f"{name}-{protocol}"
    command = [sys.executable, "-m", "dynedge", "compare", args.logs / name, "--models", args.models]
    command += ["--seeds", args.seeds, "--epochs", args.epochs, "--runs", args.runs / name]
    command += ["--protocol", protocol, "--report", kept, "--json"]
    told = subprocess.run([str(word) for word in command], check=True, stdout=subprocess.PIPE, text=True).stdout
    kept.with_suffix(".json").write_text(told)
    return json.loads(told)


def markdown(rows: list[dict[str, Any]]) -> list[str]:
    """A table for the docs; the best bold, the second best in italics, a failure in words."""
    order = {name: sorted((row[name] for row in rows if row["seeds"]), reverse=True) for name in ("mrr", "recall@10")}
    lines = [f"| {' | '.join(HEAD)} |", f"|{'---|' * len(HEAD)}"]
    for row in rows:
        if not row["seeds"]:
            lines.append(f"| {row['model']} | – | {row['error']} |{' |' * (len(HEAD) - 3)}")
            continue
        metrics = [marked(row, name, order[name]) for name in order]
        less = signed(row["less_best"]) if row["less_best"] else ""
        costs = [f"{row['seconds_per_epoch']:.3g}", f"{row['peak_mib']:,.0f}", f"{row['parameters']:,}"]
        cells = [row["model"], str(len(row["seeds"])), metrics[0], less, metrics[1], *costs]
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def marked(row: dict[str, Any], name: str, order: list[float]) -> str:
    low, high = row["intervals"][name]
    mark = {0: "**", 1: "*"}.get(order.index(row[name]), "")
    return f"{mark}{row[name]:.4f}{mark} [{low:.4f}, {high:.4f}]"


def signed(less: dict[str, Any]) -> str:
    low, high = less["intervals"]["mrr"]
    return f"{less['mrr']:+.4f} [{low:+.4f}, {high:+.4f}]"


if __name__ == "__main__":
    main()
