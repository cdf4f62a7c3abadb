"""Speed of the count memory: appending events to its index, collecting training examples, ranking, one query.

    python benchmarks/count_memory.py                              # globo, or a synthetic log where it is missing
    python benchmarks/count_memory.py --log ml-25m-like --last 10000000
    python benchmarks/count_memory.py --log taobao-like
    python benchmarks/count_memory.py --model edge                 # ranking and queries by `edge`, weight .05
    python benchmarks/count_memory.py --model edge --run RUN       # by a run that was trained on 80 % of this log

A name that ends in -like is a synthetic log (`dynedge synthesize`). The first 80 % of the events are training events,
appended in 300 windows and sampled for examples as `dynedge train` does; the next --events are ranked among all items
(among 499 negatives where there are more than 200,000 items). Each is measured --repeats times, of which the fastest
counts, with the CPU time of all threads beside it; kernels are compiled before. Nothing is trained, which changes no
time but that of `edge`: how many scores of its recurrence a rank needs depends on the weights. --run measures a run.
Its ranks from rows of all scores (the reference) are measured in turns with the others.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from load_log import DATA, DATA_HELP, load_log
from machine_info import describe_machine, peak_memory_mib

from dynedge.data.log import EventLog, read_log
from dynedge.data.synthetic import synthesize
from dynedge.data.windows import Window
from dynedge.evaluation.protocol import CHUNK_SCORES, rank_events
from dynedge.models.base import Model, State
from dynedge.models.count_memory.config import StandaloneMemoryConfig
from dynedge.models.count_memory.model import LARGE_WINDOW, CountMemory
from dynedge.models.edge.config import EdgeConfig
from dynedge.models.edge.model import Edge
from dynedge.ops.all_scores.by_block import given_scores
from dynedge.runs.folder import load_run

MAX_RANKED_ITEMS = 200_000  # above, ranking is among sampled items, as in validation


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=DATA, help=DATA_HELP)
    parser.add_argument("--log", default="globo", help="Name of a real or a synthetic log.")
    parser.add_argument("--size", type=int, default=None, help="Events of a synthetic log; by default its full size.")
    parser.add_argument("--folder", type=Path, default=None, help="Folder to cache synthetic logs in, as of gpu.py.")
    parser.add_argument("--model", default="memory", choices=("memory", "edge"))
    parser.add_argument("--weight", type=float, default=0.05, help="Fusion weight of the recurrence in `edge`.")
    parser.add_argument("--run", type=Path, help="Run folder of `edge`, instead of an untrained model.")
    parser.add_argument("--device", default="cpu", help="Where the recurrence of `edge` computes.")
    parser.add_argument("--last", type=int, default=0, help="Number of last training events appended; 0: all.")
    parser.add_argument("--events", type=int, default=20_000, help="Maximum number of events ranked.")
    parser.add_argument("--no-examples", action="store_true", help="Without collecting training examples.")
    parser.add_argument("--repeats", type=int, default=3, help="Number of measurements, of which the fastest counts.")
    args = parser.parse_args()
    print(f"{describe_machine()}; torch {torch.__version__}, {torch.get_num_threads()} threads, float32")
    with tempfile.TemporaryDirectory(prefix="count-memory-") as folder:
        if "-like" in args.log and not (args.data / f"{args.log}.parquet").exists():
            path = (args.folder or Path(folder)) / f"{args.log}-{args.size or 'full'}"
            log = read_log(path) if path.exists() else synthesize(args.log, path, events=args.size)
        else:
            log = load_log(args.log, Path(folder), args.data)
        measure(args.log, log, args)


def make_model(log: EventLog, train_end: int, args: argparse.Namespace) -> Model:
    if args.model == "memory":
        return CountMemory.create(StandaloneMemoryConfig(), log, train_end, 0)
    model = Edge.create(EdgeConfig(), log, train_end, 0).eval() if args.run is None else load_run(args.run).model
    model.weight.fill_(args.weight)
    return model.to(args.device)


@torch.no_grad()
def measure(name: str, log: EventLog, args: argparse.Namespace) -> None:
    train_end = int(0.8 * len(log))
    begin = max(train_end - args.last, 0) if args.last else 0
    print(
        f"{name}: {len(log):,} events, {log.num_users:,} users, {log.num_items:,} items; "
        f"{train_end - begin:,} events are appended"
    )
    model = make_model(log, train_end, args)
    windows = [range(begin + r.start, begin + r.stop) for r in model.training_windows(train_end - begin)]
    warm_up(model, log)

    def append() -> State:
        state = model.start()
        for events in windows:
            model.observe(Window(log, events), state)
        return state

    timed, state = fastest(append, args.repeats if args.model == "memory" else 1)
    report("append", timed, train_end - begin, "event")
    if args.run is not None:
        state = load_run(args.run, args.device).state

    def collect() -> None:
        fresh = CountMemory.create(StandaloneMemoryConfig(), log, train_end, 0)
        for _ in fresh.batches(log, windows):
            pass

    if args.model == "memory" and not args.no_examples:
        report("append and collect examples", fastest(collect, args.repeats)[0], train_end - begin, "event")
    protocol = "full" if log.num_items <= MAX_RANKED_ITEMS else "sampled-499"
    ranked = range(train_end, min(train_end + args.events, len(log)))
    ways: dict[str, Callable[[State], Any]] = {
        f"rank, {protocol}": lambda start: rank_events(model, log, ranked, start, protocol=protocol)
    }
    if isinstance(model, Edge) and protocol == "full" and args.device == "cpu":
        ways["the same from rows of scores"] = lambda start: rank_by_rows(model, log, ranked, start)
    rounds = [
        {way: fastest(partial(rank, state.clone()), 1)[0] for way, rank in ways.items()} for _ in range(args.repeats)
    ]
    for way in ways:
        least = min(one[way][0] for one in rounds), min(one[way][1] for one in rounds)
        report(way, least, len(ranked), "event")
    users = torch.tensor(log.user[train_end : train_end + 200]).long()
    times = torch.tensor(log.time[train_end : train_end + 200])

    def ask() -> None:
        for k in range(200):
            model.score_query(users[k : k + 1], times[k : k + 1], None, state)

    report("one query, all items", fastest(ask, args.repeats)[0], 200, "query")
    print(
        f"  state {sum(tensor.nbytes for tensor in state.values()) / 2**30:.2f} GiB, peak {peak_memory_mib():,} MiB"
    )


def rank_by_rows(model: Edge, log: EventLog, events: range, state: State) -> None:
    """The reference: the scores of all items by the recurrence are computed before any event is ranked."""
    recurrence = model.recurrence
    recurrence.scores_by_block = lambda batch, of_items: given_scores(recurrence.score(batch, None, of_items))
    try:
        rank_events(model, log, events, state, protocol="full", max_events=CHUNK_SCORES // log.num_items)
    finally:
        del recurrence.scores_by_block


def warm_up(model: Model, log: EventLog) -> None:
    """Compiles all kernels."""
    state, window = model.start(), Window(log, range(100))
    if isinstance(model, CountMemory):
        model._collect(window, 0, 10, state)
    protocol = "full" if log.num_items <= MAX_RANKED_ITEMS else "sampled-499"
    rank_events(model, log, range(100), state, protocol=protocol)
    model.score_query(torch.zeros(1).long(), torch.zeros(1).double(), None, state)
    model.observe(window, state)
    model.observe(Window(log, range(min(len(log), LARGE_WINDOW))), model.start())


def fastest(work: Callable[[], Any], repeats: int) -> tuple[tuple[float, float], Any]:
    """Returns the least seconds of several calls, and of CPU time, and the last result."""
    best = cpu = float("inf")
    for _ in range(repeats):
        start, cpu_start = time.perf_counter(), time.process_time()
        result = work()
        best, cpu = min(best, time.perf_counter() - start), min(cpu, time.process_time() - cpu_start)
    return (best, cpu), result


def report(what: str, timed: tuple[float, float], count: int, unit: str) -> None:
    seconds, cpu = timed
    print(
        f"  {what}: {seconds:.2f} s, {1e6 * seconds / count:.2f} µs per {unit} ({1e6 * cpu / count:.2f} of CPU)",
        flush=True,
    )


if __name__ == "__main__":
    main()
