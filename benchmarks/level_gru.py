"""Speed of the operator level_gru on a CPU, compared with plain torch on the same windows in the same process.

    python benchmarks/level_gru.py                    # logs of ../shared/data if available, else synthetic ones
    python benchmarks/level_gru.py --dim 32 --rounds 9

Each round runs every implementation once over some windows of each log; the median over the rounds is reported.
"Reads that wait" are reads of states written in the same window, not of entry states or ψ. GFLOP/s count the
products in the equations (four of 3d × d per event and direction, and their weight gradients in the backward pass),
whatever an implementation saves of them.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from load_log import DATA, load_log
from machine_info import describe_machine
from torch import Tensor

from dynedge.data.log import EventLog
from dynedge.data.synthetic import synthesize
from dynedge.ops.level_gru import level_gru, reference
from dynedge.plan.planner import plan_log
from dynedge.plan.schedule import Schedule

REAL = {"ml-100k": None, "wikipedia": (200, 100), "globo": (200, 100)}  # activity thresholds n*; None: ∞
SYNTHETIC = {"lastfm-like": None, "ml-25m-like": None, "taobao-like": (200, 100)}
SYNTHETIC_EVENTS = 300_000
SEQUENTIAL_EVENTS = 100  # of the first window; a loop over single events is slow


class WindowInputs(NamedTuple):
    """A window's schedule and random inputs for it."""

    events: int
    schedule: Schedule
    inputs: list[Tensor]
    run_sequentially: Callable[[], Tensor]  # the first events of the window, one at a time


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dim", type=int, default=64, help="Width of states.")
    parser.add_argument("--events", type=int, default=20_000, help="Approximate number of events measured per log.")
    parser.add_argument("--windows", type=int, default=300, help="Number of windows per log.")
    parser.add_argument("--rounds", type=int, default=5, help="Number of measurements of each.")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)), help="Number of threads.")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    print(f"{describe_machine()}, {args.threads} threads; torch {torch.__version__}, float32, d = {args.dim}")
    with tempfile.TemporaryDirectory(prefix="level-gru-") as folder:
        real = (DATA / "globo.parquet").exists()
        for name, thresholds in (REAL if real else SYNTHETIC).items():
            if real:
                log = load_log(name, Path(folder))
            else:
                log = synthesize(name, Path(folder) / name, events=SYNTHETIC_EVENTS)
            windows = sample_windows(log, thresholds, args)
            report(name, thresholds, windows, args)


def sample_windows(log: EventLog, thresholds: tuple[int, int] | None, args: argparse.Namespace) -> list[WindowInputs]:
    """Windows spread evenly over the log, with about args.events events in total."""
    users, items = thresholds or (None, None)
    plan = plan_log(log, windows=args.windows, active_users=users, active_items=items, cache=False)
    count = max(1, min(args.windows, round(args.events * args.windows / plan.config.train_end)))
    chosen = {args.windows * (2 * i + 1) // (2 * count) for i in range(count)}
    return [
        window_inputs(
            log, plan.linker.active_user, plan.linker.active_item, planned.events, planned.schedule, args.dim
        )
        for w, planned in enumerate(plan)
        if w in chosen
    ]


def window_inputs(
    log: EventLog, active_user: np.ndarray, active_item: np.ndarray, events: range, schedule: Schedule, d: int
) -> WindowInputs:
    written = len(schedule.event)
    shapes = (schedule.first_written, d), (written, 3 * d), (2, 3 * d, d), (2, 3 * d, d), (2, 3 * d)
    inputs = [(torch.randn(shape) / d**0.5).requires_grad_() for shape in shapes]
    few = slice(events.start, min(events.stop, events.start + SEQUENTIAL_EVENTS))
    pairs = np.stack((log.user[few], log.item[few]), 1)
    start = torch.zeros(max(log.num_users, log.num_items), d)
    pre = torch.zeros(len(pairs), 2, 3 * d)

    def run_sequentially() -> Tensor:
        states = reference.event_by_event(pairs, (active_user, active_item), (start, start), {}, pre, *inputs[2:])
        return torch.stack([start[0], *states.values()])  # not empty if all entities are active

    return WindowInputs(len(events), schedule, inputs, run_sequentially)


def report(
    name: str, thresholds: tuple[int, int] | None, windows: list[WindowInputs], args: argparse.Namespace
) -> None:
    """Prints events per second of each implementation, forward only and with the backward pass."""
    events = sum(window.events for window in windows)
    rows = sum(len(one.schedule.event) for one in windows)
    levels = sum(one.schedule.depth for one in windows)
    waits = sum(int((one.schedule.parents >= one.schedule.first_phi).sum()) for one in windows)
    print(
        f"\n{name}, n* = {thresholds or '∞'}: {len(windows)} windows of {args.windows}, {events:,} events, "
        f"{rows:,} states written, {rows / max(levels, 1):.1f} per level, "
        f"{waits / max(2 * rows, 1):.0%} of reads wait"
    )
    first = windows[0]
    few = min(SEQUENTIAL_EVENTS, first.events)
    implementations = {
        "one event at a time": (few, few * rows / events, [first.run_sequentially]),
        "torch, level by level": (events, rows, [run_torch(one) for one in windows]),
        "level_gru": (events, rows, [run_operator(one) for one in windows]),
    }
    seconds: dict[tuple[str, bool], list[float]] = {}
    for _ in range(args.rounds + 1):
        for title, (_, _, runs) in implementations.items():
            for back in (False, True):
                seconds.setdefault((title, back), []).append(sum(timed(run, back) for run in runs))
    rates = {
        (title, back): implementations[title][0] / statistics.median(times[1:])  # the first round compiles
        for (title, back), times in seconds.items()
    }
    print(f"{'':24} {'forward':>12} {'ratio':>6} {'GFLOP/s':>8} {'with backward':>14} {'ratio':>6} {'GFLOP/s':>8}")
    for title, (count, written, _) in implementations.items():
        line = f"{title:24}"
        for back, width in ((False, 12), (True, 14)):
            rate, base = rates[title, back], rates["torch, level by level", back]
            flops = rate / count * written * 2 * 6 * args.dim**2 * (3 if back else 1)
            line += f" {rate:>{width},.0f} {rate / base:>6.1f} {flops / 1e9:>8.1f}"
        print(line)


def run_torch(one: WindowInputs) -> Callable[[], Tensor]:
    return lambda: reference.level_gru(*one.inputs, one.schedule)


def run_operator(one: WindowInputs) -> Callable[[], Tensor]:
    return lambda: level_gru(*one.inputs, one.schedule)


def timed(run: Callable[[], Tensor], back: bool) -> float:
    start = time.perf_counter()
    if back:
        run().sum().backward()
    else:
        with torch.no_grad():
            run()
    return time.perf_counter() - start


if __name__ == "__main__":
    main()
