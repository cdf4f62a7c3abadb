"""How quick level_gru is: the CPU path against plain torch, on the same windows, in turn, in one run.

    python benchmarks/level_gru.py                    # ../shared/data if it is there, else made logs
    python benchmarks/level_gru.py --dim 32 --rounds 9

Each round runs every contender once over some windows of each log; a figure is the median over the rounds. `reads`
are those a level has to wait for: not of entry states or ψ. GFLOP/s count four products of 3d × d an event and
direction, and their weight gradients backward, as the equations have them, whatever a contender saves of it.
"""

from __future__ import annotations

import argparse
import os
import platform
import re
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from dynedge.data.ingest.pipeline import prepare
from dynedge.data.ingest.schema import Schema
from dynedge.data.log import EventLog
from dynedge.data.synthetic import synthesize
from dynedge.ops.level_gru import level_gru, reference
from dynedge.plan.planner import plan_log
from dynedge.plan.schedule import Schedule

SHARED = Path(__file__).resolve().parents[2] / "shared" / "data"
REAL = {"ml-100k": None, "wikipedia": (200, 100), "globo": (200, 100)}  # thresholds n*, None: ∞
MADE = {"lastfm-like": None, "ml-25m-like": None, "taobao-like": (200, 100)}
MADE_EVENTS = 300_000
SEQUENTIAL_EVENTS = 100  # one by one is slow: so many events of the first window


class Piece(NamedTuple):
    """One window and random inputs for it."""

    events: int
    schedule: Schedule
    inputs: list[Tensor]
    alone: Callable[[], Tensor]  # the first events of the window, one by one


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dim", type=int, default=64)
    parser.add_argument("--events", type=int, default=20_000, help="about so many events of each log")
    parser.add_argument("--windows", type=int, default=300, help="windows a log is cut into")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    print(f"{machine()}, {args.threads} threads; torch {torch.__version__}, float32, d = {args.dim}")
    with tempfile.TemporaryDirectory(prefix="level-gru-") as folder:
        real = (SHARED / "globo.parquet").exists()
        for name, thresholds in (REAL if real else MADE).items():
            log = read(name, Path(folder)) if real else synthesize(name, Path(folder) / name, events=MADE_EVENTS)
            show(name, thresholds, pieces(log, thresholds, args), args)


def read(name: str, folder: Path) -> EventLog:
    return prepare(SHARED / f"{name}.parquet", folder / name, Schema(user="user", item="item", time="timestamp"))


def pieces(log: EventLog, thresholds: tuple[int, int] | None, args: argparse.Namespace) -> list[Piece]:
    """Windows spread evenly over the log, about args.events events of it together."""
    users, items = thresholds or (None, None)
    whole = plan_log(log, windows=args.windows, active_users=users, active_items=items, cache=False)
    count = max(1, min(args.windows, round(args.events * args.windows / whole.config.train_end)))
    chosen = {args.windows * (2 * i + 1) // (2 * count) for i in range(count)}
    return [
        piece(log, whole.linker.active_user, whole.linker.active_item, planned.events, planned.schedule, args.dim)
        for w, planned in enumerate(whole)
        if w in chosen
    ]


def piece(
    log: EventLog, active_user: np.ndarray, active_item: np.ndarray, events: range, schedule: Schedule, d: int
) -> Piece:
    written = len(schedule.event)
    shapes = (schedule.first_written, d), (written, 3 * d), (2, 3 * d, d), (2, 3 * d, d), (2, 3 * d)
    inputs = [(torch.randn(shape) / d**0.5).requires_grad_() for shape in shapes]
    few = slice(events.start, min(events.stop, events.start + SEQUENTIAL_EVENTS))
    pairs = np.stack((log.user[few], log.item[few]), 1)
    start = torch.zeros(max(log.num_users, log.num_items), d)
    pre = torch.zeros(len(pairs), 2, 3 * d)

    def alone() -> Tensor:
        states = reference.event_by_event(pairs, (active_user, active_item), (start, start), {}, pre, *inputs[2:])
        return torch.stack([start[0], *states.values()])  # all may be active

    return Piece(len(events), schedule, inputs, alone)


def show(name: str, thresholds: tuple[int, int] | None, some: list[Piece], args: argparse.Namespace) -> None:
    events = sum(one.events for one in some)
    rows = sum(len(one.schedule.event) for one in some)
    levels = sum(one.schedule.depth for one in some)
    waits = sum(int((one.schedule.parents >= one.schedule.first_phi).sum()) for one in some)
    print(
        f"\n{name}, n* = {thresholds or '∞'}: {len(some)} windows of {args.windows}, {events:,} events, "
        f"{rows:,} states written, {rows / max(levels, 1):.1f} a level, {waits / max(2 * rows, 1):.0%} of reads wait"
    )
    first = some[0]
    few = min(SEQUENTIAL_EVENTS, first.events)
    contenders = {
        "one event at a time": (few, few * rows / events, [first.alone]),
        "torch, level by level": (events, rows, [torch_levels(one) for one in some]),
        "level_gru": (events, rows, [operator(one) for one in some]),
    }
    seconds: dict[tuple[str, bool], list[float]] = {}
    for _ in range(args.rounds + 1):
        for title, (_, _, runs) in contenders.items():
            for back in (False, True):
                seconds.setdefault((title, back), []).append(sum(timed(run, back) for run in runs))
    rates = {
        (title, back): contenders[title][0] / statistics.median(times[1:])  # the first round compiles
        for (title, back), times in seconds.items()
    }
    print(f"{'':24} {'forward':>12} {'ratio':>6} {'GFLOP/s':>8} {'and backward':>14} {'ratio':>6} {'GFLOP/s':>8}")
    for title, (count, written, _) in contenders.items():
        line = f"{title:24}"
        for back, width in ((False, 12), (True, 14)):
            rate, base = rates[title, back], rates["torch, level by level", back]
            flops = rate / count * written * 2 * 6 * args.dim**2 * (3 if back else 1)
            line += f" {rate:>{width},.0f} {rate / base:>6.1f} {flops / 1e9:>8.1f}"
        print(line)


def torch_levels(one: Piece) -> Callable[[], Tensor]:
    return lambda: reference.level_gru(*one.inputs, one.schedule)


def operator(one: Piece) -> Callable[[], Tensor]:
    return lambda: level_gru(*one.inputs, one.schedule)


def timed(run: Callable[[], Tensor], back: bool) -> float:
    start = time.perf_counter()
    if back:
        run().sum().backward()
    else:
        with torch.no_grad():
            run()
    return time.perf_counter() - start


def machine() -> str:
    found = re.search(r"model name\s*: (.*)", Path("/proc/cpuinfo").read_text())
    return f"{found[1] if found else platform.machine()}, {len(os.sched_getaffinity(0))} cores"


if __name__ == "__main__":
    main()
