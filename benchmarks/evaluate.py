"""How long a verdict takes: full evaluation of a run beside its training, and what memory it needs.

    python benchmarks/evaluate.py                    # wikipedia and globo, `edge`
    python benchmarks/evaluate.py --logs wikipedia --model edge-paper
    python benchmarks/evaluate.py --operators        # the two that most of it is spent in, alone

A run is trained for one epoch by `dynedge train`. Then its validation and test events are walked in this process,
`--turns` times, the best of which counts, and once by `dynedge evaluate` as a process of its own: start-up,
intervals, breakdown and all, with its peak memory. Logs are read from --data, else made.
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
from machine_info import machine

from dynedge.data.ingest.pipeline import prepare
from dynedge.data.ingest.schema import Schema
from dynedge.data.log import EventLog
from dynedge.data.synthetic import synthesize
from dynedge.evaluation.protocol import rank_events
from dynedge.ops.all_scores import all_scores
from dynedge.ops.ranks import ranks, reference_ranks
from dynedge.runs.folder import load_run

DATA = Path(__file__).parents[2] / "shared" / "data"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=DATA, help="a folder of NAME.parquet with user, item, timestamp")
    parser.add_argument("--logs", default="wikipedia,globo")
    parser.add_argument("--model", default="edge")
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--events", type=int, default=20_000, help="test events of a turn, at most")
    parser.add_argument("--operators", action="store_true", help="scores and ranks alone, at globo's size")
    args = parser.parse_args()
    print(f"{machine()}; torch {torch.__version__}, {torch.get_num_threads()} threads")
    if args.operators:
        operators(args.turns)
        return
    with tempfile.TemporaryDirectory(prefix="evaluate-") as folder:
        for name in args.logs.split(","):
            measure(name, load(name, args.data, Path(folder)), Path(folder) / f"{name}-run", args)


def operators(turns: int, n: int = 512, items: int = 46_033, d: int = 64) -> None:
    """Scores of all items as `all_scores` and as one product in torch (which sees no item move), then ranks."""
    generator = torch.Generator().manual_seed(0)
    wanted, states, ids = (
        torch.randn(*shape, generator=generator) for shape in ((n, 2 * d), (items, d), (items, d + 1))
    )
    item, arena = torch.randint(items, (n,), generator=generator), torch.randn(n, d, generator=generator)
    table, bias = torch.cat([states, ids[:, :d]], 1), ids[:, d]
    found = all_scores(wanted, states, ids, item, torch.arange(n), arena)
    timed = {
        "all_scores": lambda: all_scores(wanted, states, ids, item, torch.arange(n), arena),
        "torch.addmm, no item moves": lambda: torch.addmm(bias, wanted, table.T),
        "ranks": lambda: ranks(found, item),
        "ranks, reference in torch": lambda: reference_ranks(found, item),
    }
    best = dict.fromkeys(timed, float("inf"))
    for _ in range(turns + 1):  # the first compiles
        for name, work in timed.items():
            began = time.perf_counter()
            work()
            best[name] = min(best[name], time.perf_counter() - began)
    for name, seconds in best.items():
        print(f"  {name:28} {1e6 * seconds / n:8.1f} µs an event ({items:,} items, d = {d}, {n} events)")


def load(name: str, data: Path, folder: Path) -> EventLog:
    if (data / f"{name}.parquet").exists():
        return prepare(data / f"{name}.parquet", folder / name, Schema(user="user", item="item"))
    return synthesize("lastfm-like", folder / name, events=200_000)


def measure(name: str, log: EventLog, run: Path, args: argparse.Namespace) -> None:
    verb("train", log.path, "--out", run, "--model", args.model, "--epochs", 1)
    epoch = json.loads((run / "metrics.jsonl").read_text())
    training = epoch["seconds"] / epoch["events"]
    walking = min(turn(run, log, args.events) for _ in range(args.turns))
    seconds, peak = verb("evaluate", run, "--json")
    tested = log.split.ranges(len(log))
    events = len(tested["valid"]) + len(tested["test"])
    print(
        f"\n{name}, {args.model}: {log.num_items:,} items, {len(tested['test']):,} test events\n"
        f"  training       {1e6 * training:8.1f} µs an event\n"
        f"  full ranking   {1e6 * walking:8.1f} µs an event, {walking / training:.2f} of training\n"
        f"  the test part  {walking * len(tested['test']):8.1f} s at that rate\n"
        f"  the whole verb {seconds:8.1f} s for {events:,} events of validation and test, peak {peak} MiB",
        flush=True,
    )


def turn(run: Path, log: EventLog, most: int) -> float:
    """Seconds an event, after a warm-up."""
    trained = load_run(run)
    start = log.split.ranges(len(log))["valid"].start
    rank_events(trained.model, log, range(start, start + 500), trained.state)
    events = range(start + 500, min(start + 500 + most, len(log)))
    began = time.perf_counter()
    rank_events(trained.model, log, events, trained.state)
    return (time.perf_counter() - began) / len(events)


def verb(*arguments: object) -> tuple[float, int]:
    """Run `dynedge …`: its seconds, and its peak memory in MiB."""
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
