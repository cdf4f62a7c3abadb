"""Training speed on one GPU: seconds per epoch, the lower bound set by the hardware, and GPU time by phase.

    python benchmarks/gpu.py                       # every case
    python benchmarks/gpu.py --log ml-25m-like     # the cases of one log
    python benchmarks/gpu.py --peers               # and PyG's TGN and a JODIE-style model on the small logs
    python benchmarks/gpu.py --cases "ml-25m-like (200" --dim 32,64,128 --csv gpu.csv    # a sweep over widths

Logs are generated on this machine. An epoch is the complete training step of all windows: forward, loss, backward,
clipping, optimizer, and reading the loss. The first epoch plans the windows, copies them to the GPU, where they stay
if they fit, and compiles kernels; the second captures CUDA graphs, unless windows are too large for that to pay; the
fastest of the later epochs counts. Evaluation is not included. GPU time by phase is the time of all kernels on a
sample of windows.

The lower bound ("floor") is the largest of bytes over this GPU's copy bandwidth, products over its bfloat16 rate, and
levels times the time of a level of one event, forward and backward; all three are measured first.
"""

from __future__ import annotations

import argparse
import csv
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gpu_limits import Limits, gpu_time
from machine_info import describe_machine, peak_memory_mib
from paper_setting import PAPER
from torch.profiler import ProfilerActivity, profile

from dynedge.data.log import EventLog, read_log
from dynedge.data.synthetic import synthesize
from dynedge.evaluation.metrics import mean
from dynedge.evaluation.protocol import GPU_CHUNK, chunks, rank_events
from dynedge.models.base import Model, State, Step
from dynedge.models.edge.config import PAPER_LARGE, EdgeConfig, RecurrenceConfig
from dynedge.models.edge.model import Edge
from dynedge.models.edge.recurrence import Recurrence
from dynedge.training.config import TrainingConfig
from dynedge.training.optimizer import Adam
from dynedge.training.precision import autocast, deterministic_algorithms
from dynedge.training.step import TrainingStep

NO_ACTIVE = {"active_users": None, "active_items": None}
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "taobao-like (200, 100) K = 160": ("taobao-like", {}),
    "ml-25m-like (200, 100) K = 20": ("ml-25m-like", {"dnodes": 20}),
    "ml-25m-like n* = inf K = 0": ("ml-25m-like", {**NO_ACTIVE, "dnodes": None}),
    "reddit-like n* = inf K = 160": ("reddit-like", {**NO_ACTIVE}),
    "lastfm-like n* = inf K = 0": ("lastfm-like", {**NO_ACTIVE, "dnodes": None}),
    "billion (200, 100) K = 160": ("billion", {}),
}
RANKED = 4 * GPU_CHUNK  # test events whose ranking is profiled
PHASES = "forward and loss", "backward", "optimizer"

# `edge-paper` is the setting of paper_setting.py, `edge-paper-large` has negatives per event.
BASES = {"edge-paper": PAPER, "edge-paper-large": replace(PAPER_LARGE, dnodes=160, dnodes_share=None)}
RECIPES = *BASES, "recurrence", "edge"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--log", default="", help="Recipes of logs to run, separated by commas; empty: all.")
    parser.add_argument("--cases", default="", help="Part of the names of the cases to run.")
    parser.add_argument(
        "--events", default="", help="Numbers of events of the logs, separated by commas; empty: full size."
    )
    parser.add_argument("--dim", default="64", help="Widths of states, separated by commas.")
    parser.add_argument(
        "--dnodes", default="", help="Numbers of d-nodes per window, separated by commas; empty: those of each case."
    )
    parser.add_argument(
        "--negatives", type=int, default=0, help="Number of negatives per chunk; 0: that of the recipe."
    )
    parser.add_argument("--epochs", type=int, default=4, help="Number of epochs; the first two are a warm-up.")
    parser.add_argument("--windows", type=int, default=300, help="Number of windows per epoch.")
    parser.add_argument(
        "--evaluate", default="", help="Evaluation protocols to time on test events, separated by commas."
    )
    parser.add_argument(
        "--evaluate-events", type=int, default=None, help="Maximum number of test events for --evaluate."
    )
    parser.add_argument(
        "--recall", type=int, default=0, help="Number of events after training for Recall@10; 0: none."
    )
    parser.add_argument("--precision", default="bfloat16", help="Precision of training.")
    parser.add_argument("--deterministic", action="store_true", help="Deterministic algorithms only.")
    parser.add_argument(
        "--stream",
        action="store_true",
        help="No window cache on the GPU: windows are copied from host memory in every epoch.",
    )
    parser.add_argument("--recipe", choices=RECIPES, default="edge-paper", help="Model.")
    parser.add_argument("--peers", action="store_true", help="Comparison with PyG's TGN and JODIE.")
    parser.add_argument(
        "--kernels",
        type=int,
        default=0,
        help="Number of kernels to list, by GPU time in the middle window's step and in ranking.",
    )
    parser.add_argument(
        "--csv", type=Path, default=None, help="CSV file to append a row per case to, for gpu_plot.py."
    )
    parser.add_argument("--folder", type=Path, default=None, help="Folder to cache generated logs in.")
    args = parser.parse_args()
    print(f"{torch.cuda.get_device_name()}, {describe_machine()}; torch {torch.__version__}, {args.precision}")
    sizes = [int(size) if size else None for size in args.events.split(",")]
    dims = [int(dim) for dim in args.dim.split(",")]
    counts = [int(count) if count else None for count in args.dnodes.split(",")]
    limits = {dim: Limits.measure(dim) for dim in dims}
    for dim in dims:
        print(f"d = {dim}: {limits[dim]}")
    args.sweep = "events" if len(sizes) > 1 else "dim" if len(dims) > 1 else "dnodes" if len(counts) > 1 else ""
    cases = {
        name: case
        for name, case in CASES.items()
        if args.cases in name and (not args.log or case[0] in args.log.split(","))
    }
    if args.folder:
        args.folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="gpu-") as folder:
        for recipe, size in product(dict.fromkeys(of for of, _ in cases.values()), sizes):
            log = load(recipe, args.folder or Path(folder), size)
            for (name, (of, settings)), dim, count in product(cases.items(), dims, counts):
                if of == recipe:
                    changed = settings if count is None else settings | {"dnodes": count}
                    run(name, log, {**changed, "dim": dim, "windows": args.windows}, args, limits[dim])
            if args.peers and recipe in ("reddit-like", "lastfm-like"):
                from gpu_peers import rates

                for peer, rate in rates(log, dims[0]).items():
                    print(f"  PyG {peer}: {rate:,.0f} events/s", flush=True)


def load(recipe: str, folder: Path, events: int | None) -> EventLog:
    began, path = time.perf_counter(), folder / f"{recipe}-{events or 'full'}"
    log = read_log(path) if path.exists() else synthesize(recipe, path, events=events, quiet=True)
    print(f"\n{recipe}: {len(log):,} events, generated or read in {time.perf_counter() - began:.1f} s", flush=True)
    return log


def run(name: str, log: EventLog, settings: dict[str, Any], args: argparse.Namespace, limits: Limits) -> None:
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    base = BASES.get(args.recipe) or replace(RecurrenceConfig(), **_paper_windows())
    config = replace(base, **settings, negatives=args.negatives or base.negatives)
    began = time.perf_counter()
    trainer = Trainer(config, log, args)
    planned = time.perf_counter() - began
    epochs = []
    for number in range(args.epochs):
        epochs.append(trainer.epoch(number))
        print(
            f"{name}: epoch {number + 1} of {args.epochs} in {epochs[-1].seconds:.1f} s", file=sys.stderr, flush=True
        )
    best = min(epochs[2:] or epochs[1:] or epochs, key=lambda epoch: epoch.seconds)
    terms = limits.floor(trainer.core, best.events, best.rows, best.levels)
    floor = max(terms.values())
    print(f"{name}, d = {config.dim}, K = {config.dnodes}, {config.negatives} negatives  [{args.recipe}]")
    rate, times = best.events / best.seconds / 1e6, ", ".join(f"{epoch.seconds:.1f}" for epoch in epochs)
    print(f"  {best.seconds:.3f} s per epoch, {rate:.2f} M events/s; d-nodes in {planned:.1f} s; epochs {times} s")
    memory, host = torch.cuda.max_memory_reserved() / 2**30, peak_memory_mib() / 1024
    print(f"  {memory:.1f} GiB of GPU memory, host peak {host:.1f} GiB")
    losses = ", ".join(f"{epoch.loss:.6f}" for epoch in epochs)
    print(f"  {best.levels:,} levels, {best.rows:,} states written; losses {losses}")
    shown = ", ".join(f"{what} {seconds:.2f}" for what, seconds in terms.items())
    print(f"  floor {floor:.2f} s ({shown}); time / floor {best.seconds / floor:.1f}")
    recall = trainer.recall(args.recall) if args.recall else float("nan")
    if args.recall:
        print(f"  Recall@10 of the {args.recall:,} events after the training events: {recall:.4f}", flush=True)
    phases = trainer.phases()
    parts = ", ".join(f"{phase} {phases[phase]:.2f}" for phase in PHASES)
    print(f"  GPU busy {sum(phases.values()):.2f} s: {parts}; CPU {best.busy:.2f} s", flush=True)
    if args.kernels:
        trainer.print_kernels(args.kernels)
    for protocol in filter(None, args.evaluate.split(",")):
        for repeat in ("first", "second"):  # the first compiles
            count, seconds = trainer.evaluate(protocol, args.evaluate_events)
            print(f"  {protocol}, {repeat}: {count:,} test events ranked in {seconds:.2f} s", flush=True)
        prepared = trainer.prepare(protocol, args.evaluate_events)
        print(f"  {protocol}: chunks and negatives alone {prepared:.2f} s", flush=True)
        if args.kernels:
            print(f"  ranking {RANKED:,} events:")
            print_kernels(lambda protocol=protocol: trainer.evaluate(protocol, RANKED), args.kernels)
    if args.csv:
        row = {"sweep": args.sweep, "log": name, "training": best.events, "dim": config.dim, "dnodes": config.dnodes}
        row |= {"seconds": best.seconds, "floor": floor, "levels": best.levels, "rows": best.rows}
        row |= {"gpu_gib": memory, "host_gib": host, "recall@10": recall, "recipe": args.recipe}
        new = not args.csv.exists()
        with open(args.csv, "a", newline="") as file:
            writer = csv.DictWriter(file, list(row))
            if new:
                writer.writeheader()
            writer.writerow(row)


def _paper_windows() -> dict[str, Any]:
    """The paper's thresholds and d-nodes, so that the default recurrence has the same windows."""
    return {name: getattr(PAPER, name) for name in ("active_users", "active_items", "dnodes", "method")}


@dataclass
class Epoch:
    """Measurements of an epoch."""

    seconds: float
    busy: float  # seconds of the CPU without waiting for the GPU
    events: int
    levels: int
    rows: int
    loss: float


class Trainer:
    """The training loop of `dynedge train` with timers: the loss is read one window late."""

    def __init__(self, config: RecurrenceConfig, log: EventLog, args: argparse.Namespace) -> None:
        self.log, self.train_end = log, log.split.bounds(len(log))[0]
        self.config = TrainingConfig(device="cuda", precision=args.precision, deterministic=args.deterministic)
        self.model: Model
        self.core: Recurrence
        if args.recipe == "edge":
            fused = Edge.create(EdgeConfig(recurrence=config), log, self.train_end, seed=0).to("cuda")
            self.model, self.core = fused, fused.recurrence
        else:
            self.model = self.core = Recurrence.create(config, log, self.train_end, seed=0).to("cuda")
        self.optimizer = Adam(self.model.named_parameters(), 1e-3, 1e-2)
        self.step = TrainingStep(self.model, self.optimizer, self.config)
        self.state: State | None = None  # at the end of the last epoch
        self.core._window_cache._full = args.stream

    def epoch(self, number: int) -> Epoch:
        state, model, pending, losses = self.model.start(), self.model.train(), None, []
        torch.cuda.synchronize()
        began, waited = time.perf_counter(), 0.0
        with deterministic_algorithms(self.config.deterministic):
            batches = model.batches(self.log, model.training_windows(self.train_end))
            for window, batch in enumerate(batches):
                loss, norm = self.step.run(batch, state, Step(0, number, window))
                model.after_step(batch, state)
                if pending is not None:
                    start = time.perf_counter()
                    losses.append(float(pending[0]) + 0 * float(pending[1]))
                    waited += time.perf_counter() - start
                pending = loss.log["loss"], norm
        self.state = state
        torch.cuda.synchronize()
        seconds, stats = time.perf_counter() - began, self.core.plan.stats
        return Epoch(
            seconds,
            seconds - waited,
            sum(window.events for window in stats),
            sum(window.longest_path for window in stats),
            sum(window.rows for window in stats),
            float(np.mean(losses)),
        )

    def phases(self, sample: int = 4) -> dict[str, float]:
        """Returns the seconds of GPU time of each phase of an epoch, extrapolated from a sample of windows."""
        every = max(1, self.core.config.windows // sample)
        state, took = self.model.start(), dict.fromkeys(PHASES, 0.0)
        for number in range(every // 2, self.core.config.windows, every):
            batch = next(self.model.batches(self.log, self.model.training_windows(self.train_end), number))
            for phase, seconds in self._profile(batch, state, Step(0, 0, number)).items():
                took[phase] += seconds * every
        return took

    def print_kernels(self, most: int) -> None:
        """Prints which kernels take the longest in the step of the middle window."""
        number, state = self.core.config.windows // 2, self.model.start()
        batch = next(self.model.batches(self.log, self.model.training_windows(self.train_end), number))
        step = TrainingStep(self.model, self.optimizer, self.config)
        print(f"  window {number}, {len(batch.window):,} events:")
        print_kernels(lambda: step._run(lambda: self.model.loss(batch, state, Step(0, 0, number))), most)

    def recall(self, max_events: int) -> float:
        """Returns Recall@10 among all items on the events right after the training events."""
        assert self.state is not None
        events = range(self.train_end, min(self.train_end + max_events, len(self.log)))
        with autocast(self.config):
            ranks = rank_events(self.model.eval(), self.log, events, self.state.clone())
        return mean("recall@10", ranks) or 0.0

    def evaluate(self, protocol: str, max_events: int | None) -> tuple[int, float]:
        """Returns (number of test events ranked, seconds). The state is a fresh one, which takes the same time."""
        events = self.log.split.ranges(len(self.log))["test"][:max_events]
        began = time.perf_counter()
        with autocast(self.config):
            rank_events(self.model.eval(), self.log, events, self.model.start(), protocol=protocol)
        return len(events), time.perf_counter() - began

    def prepare(self, protocol: str, max_events: int | None) -> float:
        """Returns the seconds that preparing the chunks of the test events takes, without ranking them."""
        events = self.log.split.ranges(len(self.log))["test"][:max_events]
        began = time.perf_counter()
        for _ in chunks(self.model, self.log, events, protocol):
            pass
        torch.cuda.synchronize()
        return time.perf_counter() - began

    def _profile(self, batch: Any, state: Any, step: Step) -> dict[str, float]:
        def forward() -> Any:
            with autocast(self.config):
                return self.model.loss(batch, state, step)

        loss, forward_seconds = gpu_time(forward)
        self.optimizer.zero_grad()
        _, backward_seconds = gpu_time(loss.total.backward)

        def update() -> None:
            self.optimizer.clip(1.0)
            self.optimizer.step()

        return dict(zip(PHASES, (forward_seconds, backward_seconds, gpu_time(update)[1]), strict=True))


def print_kernels(work: Callable[[], Any], most: int) -> None:
    """Prints which kernels take the longest in some work on the GPU."""
    for _ in range(2):  # the first compiles
        with profile(activities=[ProfilerActivity.CUDA], acc_events=True) as profiled:
            work()
            torch.cuda.synchronize()
    events = sorted(profiled.key_averages(), key=lambda event: -event.self_device_time_total)
    total, launches = sum(event.self_device_time_total for event in events), sum(event.count for event in events)
    print(f"    {total / 1e3:.3f} ms in {launches} launches")
    for event in events[:most]:
        print(f"    {event.self_device_time_total:9.1f} µs {event.count:4} × {event.key[:140]}", flush=True)


if __name__ == "__main__":
    main()
