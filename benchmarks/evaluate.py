"""Time and memory of a full evaluation, compared with the time of training.

    python benchmarks/evaluate.py                    # wikipedia and globo, `edge`
    python benchmarks/evaluate.py --logs wikipedia --model edge-paper-small
    python benchmarks/evaluate.py --operators        # only the two operators that take most of the time

A run is trained for one epoch by `dynedge train`. Its validation and test events are ranked in this process,
--repeats times, of which the fastest counts, and then once by the command `dynedge evaluate`, including start-up,
confidence intervals and breakdowns, with its peak memory. Logs are read from --data if available, else generated.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch
from load_log import DATA, DATA_HELP, load_log
from machine_info import describe_machine

from dynedge.data.log import EventLog
from dynedge.evaluation.protocol import rank_events
from dynedge.ops.all_scores import all_scores
from dynedge.ops.item_ranks import ranks, reference_ranks
from dynedge.runs.folder import load_run


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=DATA, help=DATA_HELP)
    parser.add_argument("--logs", default="wikipedia,globo", help="Names of logs, separated by commas.")
    parser.add_argument("--model", default="edge", help="Model or recipe.")
    parser.add_argument("--repeats", type=int, default=3, help="Number of measurements, of which the fastest counts.")
    parser.add_argument("--events", type=int, default=20_000, help="Maximum number of events per measurement.")
    parser.add_argument(
        "--operators", action="store_true", help="Only the operators for scores and ranks, at the size of globo."
    )
    args = parser.parse_args()
    print(f"{describe_machine()}; torch {torch.__version__}, {torch.get_num_threads()} threads")
    if args.operators:
        measure_operators(args.repeats)
        return
    with tempfile.TemporaryDirectory(prefix="evaluate-") as folder:
        for name in args.logs.split(","):
            measure(name, load_log(name, Path(folder), args.data), Path(folder) / f"{name}-run", args)


def measure_operators(repeats: int, n: int = 512, items: int = 46_033, d: int = 64) -> None:
    """Times `all_scores`, the same as one product in torch (with fixed item states), and the ranks of the scores."""
    generator = torch.Generator().manual_seed(0)
    query, states, ids = (
        torch.randn(*shape, generator=generator) for shape in ((n, 2 * d), (items, d), (items, d + 1))
    )
    item, arena = torch.randint(items, (n,), generator=generator), torch.randn(n, d, generator=generator)
    table, bias = torch.cat([states, ids[:, :d]], 1), ids[:, d]
    scores = all_scores(query, states, ids, item, torch.arange(n), arena)
    timed = {
        "all_scores": lambda: all_scores(query, states, ids, item, torch.arange(n), arena),
        "torch.addmm, fixed states": lambda: torch.addmm(bias, query, table.T),
        "ranks": lambda: ranks(scores, item),
        "ranks, reference in torch": lambda: reference_ranks(scores, item),
    }
    best = dict.fromkeys(timed, float("inf"))
    for _ in range(repeats + 1):  # the first compiles
        for name, work in timed.items():
            began = time.perf_counter()
            work()
            best[name] = min(best[name], time.perf_counter() - began)
    for name, seconds in best.items():
        print(f"  {name:28} {1e6 * seconds / n:8.1f} µs per event ({items:,} items, d = {d}, {n} events)")


def measure(name: str, log: EventLog, run: Path, args: argparse.Namespace) -> None:
    run_command("train", log.path, "--out", run, "--model", args.model, "--epochs", 1)
    epoch = json.loads((run / "metrics.jsonl").read_text())
    training = epoch["seconds"] / epoch["events"]
    ranking = min(ranking_seconds(run, log, args.events) for _ in range(args.repeats))
    seconds, peak = run_command("evaluate", run, "--json")
    parts = log.split.ranges(len(log))
    events = len(parts["valid"]) + len(parts["test"])
    print(
        f"\n{name}, {args.model}: {log.num_items:,} items, {len(parts['test']):,} test events\n"
        f"  training          {1e6 * training:8.1f} µs per event\n"
        f"  full ranking      {1e6 * ranking:8.1f} µs per event, {ranking / training:.2f} × training\n"
        f"  test events       {ranking * len(parts['test']):8.1f} s at that rate\n"
        f"  dynedge evaluate  {seconds:8.1f} s for {events:,} validation and test events, peak {peak} MiB",
        flush=True,
    )


def ranking_seconds(run: Path, log: EventLog, max_events: int) -> float:
    """Returns the seconds per event of ranking among all items, after a warm-up."""
    trained = load_run(run)
    start = log.split.ranges(len(log))["valid"].start
    rank_events(trained.model, log, range(start, start + 500), trained.state)
    events = range(start + 500, min(start + 500 + max_events, len(log)))
    began = time.perf_counter()
    rank_events(trained.model, log, events, trained.state)
    return (time.perf_counter() - began) / len(events)


def run_command(*arguments: object) -> tuple[float, int]:
    """Runs `dynedge ARGUMENTS`; returns its seconds and its peak memory in MiB."""
    began = time.perf_counter()
    process = subprocess.Popen(
        [sys.executable, "-m", "dynedge", *map(str, arguments)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        sys.exit(f"dynedge {arguments[0]} failed with exit code {process.returncode}")
    return time.perf_counter() - began, used.ru_maxrss // 1024


if __name__ == "__main__":
    main()
