"""Time and memory of planning a whole log, including schedules.

    python benchmarks/plan.py                                   # taobao-like logs of 1 M, 10 M and 100 M events
    python benchmarks/plan.py --recipe taobao-like --sizes full # the size of the paper's: 67.7 M training events
    python benchmarks/plan.py --recipe ml-25m-like --sizes full --active-users inf --active-items inf --k 640
    python benchmarks/plan.py --log LOG --k 160

Each log is planned in a separate process, so that peak memory is measured per log (it includes the log's pages that
were read). `second pass` is what every later epoch does: d-nodes are cached, links, levels and schedules are rebuilt.
`naive` is Algorithm 2 in plain Python, with every longest path recomputed for each d-node. It is measured on a few
rounds of a small window and extrapolated in proportion to events times d-nodes, as it would take too long.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from machine_info import describe_machine, peak_memory_mib

from dynedge.data.log import EventLog, read_log
from dynedge.data.synthetic import RECIPES, synthesize
from dynedge.plan.dnodes import METHODS
from dynedge.plan.planner import Plan, PlannedWindow, plan_log
from dynedge.utils.progress import clock

NAIVE_EVENTS, NAIVE_ROUNDS = 2000, 5


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--log", type=Path, help="Log folder, instead of synthetic logs.")
    parser.add_argument("--recipe", default="taobao-like", choices=RECIPES, help="Recipe of the synthetic logs.")
    parser.add_argument(
        "--sizes",
        default="1e6,1e7,1e8",
        help="Numbers of events of the synthetic logs, separated by commas, or full.",
    )
    parser.add_argument("--windows", type=int, default=300, help="Number of windows.")
    parser.add_argument("--active-users", default="200", help="Activity threshold of users, or inf.")
    parser.add_argument("--active-items", default="100", help="Activity threshold of items, or inf.")
    parser.add_argument("--method", default="best", choices=METHODS, help="Method that chooses the d-nodes.")
    parser.add_argument("--k", type=int, default=160, help="Number of d-nodes per window.")
    parser.add_argument("--threads", type=int, default=None, help="Number of threads.")
    parser.add_argument("--keep", action="store_true", help="All schedules stored in memory until the end.")
    parser.add_argument("--folder", default=None, help="Folder for temporary logs.")
    parser.add_argument("--one", action="store_true", help=argparse.SUPPRESS)  # plan --log in this process
    args = parser.parse_args()
    if args.one:
        print(json.dumps(measure(read_log(args.log), args)))
        return
    options = f"{args.method}, K = {args.k}, ({args.active_users}, {args.active_items}), {args.windows} windows"
    print(f"{describe_machine()}; {options}")
    titles = f"{'training events':>16} {'seconds':>8} {'M events/s':>11} {'peak MiB':>9}"
    print(f"{titles} {'second pass':>12} {'longest path':>13} {'naive':>10}")
    if args.log:
        show(args.log)
        return
    for size in args.sizes.split(","):
        with tempfile.TemporaryDirectory(prefix="plan-", dir=args.folder) as folder:
            events = None if size == "full" else int(float(size))
            show(Path(synthesize(args.recipe, Path(folder) / "log", events=events).path or ""))


def show(log: Path) -> None:
    command = [sys.executable, __file__, *sys.argv[1:], "--one", "--log", str(log)]
    one = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)
    print(
        f"{one['events']:>16,} {one['seconds']:>8.2f} {one['events'] / one['seconds'] / 1e6:>11.2f} "
        f"{one['peak_mib']:>9.0f} {one['second_pass']:>12.2f} {one['longest_path']:>13.2f} {clock(one['naive']):>10}",
        flush=True,
    )


def measure(log: EventLog, args: argparse.Namespace) -> dict[str, Any]:
    def make_plan(source: EventLog, windows: int) -> Plan:
        thresholds = [None if n == "inf" else int(n) for n in (args.active_users, args.active_items)]
        return plan_log(
            source,
            windows=windows,
            active_users=thresholds[0],
            active_items=thresholds[1],
            method=args.method,
            max_dnodes=args.k,
            threads=args.threads,
            cache=False,
        )

    few = EventLog.from_arrays(log.user[:5000], log.item[:5000], log.time[:5000])
    list(make_plan(few, 2))  # compile before timing

    start = time.perf_counter()
    plan = make_plan(log, args.windows)
    stored: list[PlannedWindow] = []
    for window in plan:
        if args.keep:
            stored.append(window)
    first = time.perf_counter()
    for _ in plan:
        pass
    end = time.perf_counter()
    events = plan.config.train_end
    return {
        "events": events,
        "seconds": first - start,
        "second_pass": end - first,
        "peak_mib": peak_memory_mib(),
        "longest_path": float(np.mean([window.longest_path for window in plan.stats])),
        "naive": naive_seconds(log) * events * args.k,
    }


def naive_seconds(log: EventLog) -> float:
    """Seconds per event and d-node of Algorithm 2 in plain Python, by the fastest round."""
    pairs = list(zip(log.user[:NAIVE_EVENTS].tolist(), log.item[:NAIVE_EVENTS].tolist(), strict=True))
    dnodes: set[tuple[int, int]] = set()
    rounds = []
    for _ in range(NAIVE_ROUNDS):
        start = time.perf_counter()
        path = naive_longest_path(pairs, dnodes)
        dnodes.add(path[len(path) // 2])
        rounds.append(time.perf_counter() - start)
    return min(rounds) / max(len(pairs), 1)


def naive_longest_path(pairs: list[tuple[int, int]], dnodes: set[tuple[int, int]]) -> list[tuple[int, int]]:
    """The states (event, side) along a longest path, computed from the events."""
    last: dict[tuple[int, int], int] = {}
    level: list[int] = []
    parent: list[tuple[int, int] | None] = []
    for k, pair in enumerate(pairs):
        deepest, through = 0, None
        for side, entity in enumerate(pair):
            p = last.get((side, entity))
            if p is not None and (p, side) not in dnodes and level[p] > deepest:
                deepest, through = level[p], (p, side)
            last[side, entity] = k
        level.append(deepest + 1)
        parent.append(through)
    path = [(max(range(len(level)), key=level.__getitem__), 0)]
    while (before := parent[path[-1][0]]) is not None:
        path.append(before)
    return path


if __name__ == "__main__":
    main()
