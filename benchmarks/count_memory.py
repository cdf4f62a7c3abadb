"""Speed of the count memory: appending events to its index, collecting training examples, ranking, one query.

    python benchmarks/count_memory.py                              # globo, or a synthetic log where it is missing
    python benchmarks/count_memory.py --log ml-25m-like --last 10000000
    python benchmarks/count_memory.py --log taobao-like

A name that ends in -like is a synthetic log (`dynedge synthesize`). The first 80 % of the events are training events,
appended in 300 windows and sampled for examples as `dynedge train` does; the next --events are ranked among all items
(among 499 negatives where there are more than 200,000 items). Each is measured --repeats times, of which the fastest
counts; kernels are compiled before. The networks are not trained: the values of their weights do not change the time.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from load_log import DATA, DATA_HELP, load_log
from machine_info import describe_machine, peak_memory_mib

from dynedge.data.log import EventLog
from dynedge.data.synthetic import synthesize
from dynedge.data.windows import Window
from dynedge.evaluation.protocol import rank_events
from dynedge.models.base import State
from dynedge.models.count_memory.config import StandaloneMemoryConfig
from dynedge.models.count_memory.model import CountMemory

MAX_RANKED_ITEMS = 200_000  # above, ranking is among sampled items, as in validation


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=DATA, help=DATA_HELP)
    parser.add_argument("--log", default="globo", help="Name of a real or a synthetic log.")
    parser.add_argument("--last", type=int, default=0, help="Number of last training events appended; 0: all.")
    parser.add_argument("--events", type=int, default=20_000, help="Maximum number of events ranked.")
    parser.add_argument("--repeats", type=int, default=3, help="Number of measurements, of which the fastest counts.")
    args = parser.parse_args()
    print(f"{describe_machine()}; torch {torch.__version__}, {torch.get_num_threads()} threads, float32")
    with tempfile.TemporaryDirectory(prefix="count-memory-") as folder:
        if "-like" in args.log and not (args.data / f"{args.log}.parquet").exists():
            log = synthesize(args.log, Path(folder) / args.log)
        else:
            log = load_log(args.log, Path(folder), args.data)
        measure(args.log, log, args)


def measure(name: str, log: EventLog, args: argparse.Namespace) -> None:
    train_end = int(0.8 * len(log))
    begin = max(train_end - args.last, 0) if args.last else 0
    print(
        f"{name}: {len(log):,} events, {log.num_users:,} users, {log.num_items:,} items; "
        f"{train_end - begin:,} events are appended"
    )
    model = CountMemory.create(StandaloneMemoryConfig(), log, train_end, 0)
    windows = [range(begin + r.start, begin + r.stop) for r in model.training_windows(train_end - begin)]
    warm_up(model, log)

    def append() -> State:
        state = model.start()
        for events in windows:
            model.observe(Window(log, events), state)
        return state

    seconds, state = fastest(append, args.repeats)
    report("append", seconds, train_end - begin, "event")

    def collect() -> None:
        fresh = CountMemory.create(StandaloneMemoryConfig(), log, train_end, 0)
        for _ in fresh.batches(log, windows):
            pass

    seconds, _ = fastest(collect, args.repeats)
    report("append and collect examples", seconds, train_end - begin, "event")
    protocol = "full" if log.num_items <= MAX_RANKED_ITEMS else "sampled-499"
    ranked = range(train_end, min(train_end + args.events, len(log)))
    seconds, _ = fastest(lambda: rank_events(model, log, ranked, state.clone(), protocol=protocol), args.repeats)
    report(f"rank, {protocol}", seconds, len(ranked), "event")
    users = torch.tensor(log.user[train_end : train_end + 200]).long()
    times = torch.tensor(log.time[train_end : train_end + 200])

    def ask() -> None:
        for k in range(200):
            model.score_query(users[k : k + 1], times[k : k + 1], None, state)

    report("one query, all items", fastest(ask, args.repeats)[0], 200, "query")
    print(
        f"  state {sum(tensor.nbytes for tensor in state.values()) / 2**30:.2f} GiB, peak {peak_memory_mib():,} MiB"
    )


def warm_up(model: CountMemory, log: EventLog) -> None:
    """Compiles all kernels."""
    state, window = model.start(), Window(log, range(100))
    model._collect(window, 0, 10, state)
    model.score(window, None if log.num_items <= MAX_RANKED_ITEMS else torch.zeros(100, 3).long(), state)
    model.score_query(torch.zeros(1).long(), torch.zeros(1).double(), None, state)
    model.observe(window, state)


def fastest(work: Callable[[], Any], repeats: int) -> tuple[float, Any]:
    """Returns the least seconds of several calls, and the last result."""
    best = float("inf")
    for _ in range(repeats):
        start = time.perf_counter()
        result = work()
        best = min(best, time.perf_counter() - start)
    return best, result


def report(what: str, seconds: float, count: int, unit: str) -> None:
    print(f"  {what}: {seconds:.2f} s, {1e6 * seconds / count:.2f} µs per {unit}", flush=True)


if __name__ == "__main__":
    main()
