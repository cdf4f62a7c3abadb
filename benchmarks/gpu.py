"""How fast an epoch is on one GPU, how far from what the hardware allows, and where the time goes.

    python benchmarks/gpu.py                       # every row
    python benchmarks/gpu.py --log ml-25m-like     # the rows of one log
    python benchmarks/gpu.py --peers               # and PyG's TGN and JODIE on the small logs
    python benchmarks/gpu.py --rows "ml-25m-like (200" --dim 32,64,128 --csv gpu.csv    # how cost grows

Each log is made on this machine. An epoch is the full training step of all windows: forward, loss, backward,
clipping, optimiser, numbers read. In the first epoch what each window needs is planned and copied over, to stay on
the GPU if it fits, and kernels are compiled; in the second the steps are recorded, unless windows are so large that
it does not pay; the best of the later ones counts. Evaluation is not in it. What the GPU does in it is the time of
all kernels of a sample of windows, by phase.

floor: the largest of bytes over this GPU's copy bandwidth, products over its bfloat16 rate, and levels times the time
of a level of one event, forward and backward; all three are measured here.
"""

from __future__ import annotations

import argparse
import csv
import sys
import tempfile
import time
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gpu_limits import Limits, gpu_time
from machine_info import machine, peak_mib

from dynedge.data.log import EventLog, read_log
from dynedge.data.synthetic import synthesize
from dynedge.evaluation.metrics import mean
from dynedge.evaluation.protocol import rank_events
from dynedge.models.base import Model, State, Step
from dynedge.models.edge.config import PAPER, EdgeConfig, RecurrenceConfig
from dynedge.models.edge.model import Edge
from dynedge.models.edge.recurrence import Recurrence
from dynedge.training.config import TrainingConfig
from dynedge.training.optimizer import Adam
from dynedge.training.precision import autocast, deterministic_algorithms
from dynedge.training.step import TrainingStep

NO_ACTIVE = {"active_users": None, "active_items": None}
ROWS: dict[str, tuple[str, dict[str, Any]]] = {
    "taobao-like (200, 100) K = 160": ("taobao-like", {}),
    "ml-25m-like (200, 100) K = 20": ("ml-25m-like", {"dnodes": 20}),
    "ml-25m-like n* = inf K = 0": ("ml-25m-like", {**NO_ACTIVE, "dnodes": None}),
    "reddit-like n* = inf K = 160": ("reddit-like", {**NO_ACTIVE}),
    "lastfm-like n* = inf K = 0": ("lastfm-like", {**NO_ACTIVE, "dnodes": None}),
    "billion (200, 100) K = 160": ("billion", {}),
}
PHASES = "forward and loss", "backward", "optimiser"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--log", default="", help="only the rows of this log; several with commas")
    parser.add_argument("--rows", default="", help="only the rows whose names have this in them")
    parser.add_argument(
        "--events", default="", help="logs of so many events instead of full ones; several with commas"
    )
    parser.add_argument("--dim", default="64", help="several with commas")
    parser.add_argument(
        "--dnodes", default="", help="so many a window, instead of each row's own; several with commas"
    )
    parser.add_argument("--negatives", type=int, default=0, help="so many a chunk, instead of the recipe's own")
    parser.add_argument("--epochs", type=int, default=4, help="of which the first two warm up")
    parser.add_argument("--windows", type=int, default=300)
    parser.add_argument(
        "--evaluate", default="", help="also time the ranking of test events by this protocol, or these"
    )
    parser.add_argument("--evaluate-events", type=int, default=None, help="of the first so many")
    parser.add_argument("--recall", type=int, default=0, help="Recall@10 of so many events after the training events")
    parser.add_argument("--precision", default="bfloat16")
    parser.add_argument("--deterministic", action="store_true")
    parser.add_argument(
        "--stream", action="store_true", help="keep no window on the GPU: plan and copy it every epoch"
    )
    parser.add_argument("--recipe", choices=("edge-paper", "recurrence", "edge"), default="edge-paper")
    parser.add_argument("--peers", action="store_true")
    parser.add_argument("--csv", type=Path, default=None, help="append a line for each row, for gpu_plot.py")
    parser.add_argument("--folder", type=Path, default=None, help="where logs are kept; else in a temporary folder")
    args = parser.parse_args()
    print(f"{torch.cuda.get_device_name()}, {machine()}; torch {torch.__version__}, {args.precision}")
    sizes = [int(size) if size else None for size in args.events.split(",")]
    dims = [int(dim) for dim in args.dim.split(",")]
    counts = [int(count) if count else None for count in args.dnodes.split(",")]
    limits = {dim: Limits.measure(dim) for dim in dims}
    for dim in dims:
        print(f"d = {dim}: {limits[dim]}")
    args.sweep = "events" if len(sizes) > 1 else "dim" if len(dims) > 1 else "dnodes" if len(counts) > 1 else ""
    wanted = {
        name: row
        for name, row in ROWS.items()
        if args.rows in name and (not args.log or row[0] in args.log.split(","))
    }
    if args.folder:
        args.folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="gpu-") as folder:
        for made_by, size in product(dict.fromkeys(of for of, _ in wanted.values()), sizes):
            log = load(made_by, args.folder or Path(folder), size)
            for (name, (of, settings)), dim, count in product(wanted.items(), dims, counts):
                if of == made_by:
                    told = settings if count is None else settings | {"dnodes": count}
                    run(name, log, {**told, "dim": dim, "windows": args.windows}, args, limits[dim])
            if args.peers and made_by in ("reddit-like", "lastfm-like"):
                from gpu_peers import rates

                for who, rate in rates(log, dims[0]).items():
                    print(f"  PyG {who}: {rate:,.0f} events/s", flush=True)


def load(recipe: str, folder: Path, events: int | None) -> EventLog:
    began, path = time.perf_counter(), folder / f"{recipe}-{events or 'full'}"
    log = read_log(path) if path.exists() else synthesize(recipe, path, events=events, quiet=True)
    print(f"\n{recipe}: {len(log):,} events, made in {time.perf_counter() - began:.1f} s", flush=True)
    return log


def run(name: str, log: EventLog, settings: dict[str, Any], args: argparse.Namespace, limits: Limits) -> None:
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    base = PAPER if args.recipe == "edge-paper" else replace(RecurrenceConfig(), **_of_paper())
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
    rate, first = best.events / best.seconds / 1e6, ", ".join(f"{epoch.seconds:.1f}" for epoch in epochs)
    print(f"  {best.seconds:.3f} s an epoch, {rate:.2f} M events/s; d-nodes chosen in {planned:.1f} s; all {first} s")
    memory, host = torch.cuda.max_memory_reserved() / 2**30, peak_mib() / 1024
    print(f"  {memory:.1f} GiB of the GPU, host peak {host:.1f} GiB")
    losses = ", ".join(f"{epoch.loss:.6f}" for epoch in epochs)
    print(f"  {best.levels:,} levels, {best.rows:,} states written; losses {losses}")
    shown = ", ".join(f"{what} {seconds:.2f}" for what, seconds in terms.items())
    print(f"  floor {floor:.2f} s ({shown}); time over floor {best.seconds / floor:.1f}")
    recall = trainer.recall(args.recall) if args.recall else float("nan")
    if args.recall:
        print(f"  Recall@10 of the {args.recall:,} events after the training events: {recall:.4f}", flush=True)
    took = trainer.phases()
    parts = ", ".join(f"{phase} {took[phase]:.2f}" for phase in PHASES)
    print(f"  the GPU is busy {sum(took.values()):.2f} s: {parts}; the CPU {best.busy:.2f} s", flush=True)
    for protocol in filter(None, args.evaluate.split(",")):
        for turn in ("first", "again"):  # the first compiles
            count, seconds = trainer.evaluate(protocol, args.evaluate_events)
            print(f"  {protocol}, {turn}: {count:,} test events ranked in {seconds:.2f} s", flush=True)
    if args.csv:
        line = {"sweep": args.sweep, "log": name, "training": best.events, "dim": config.dim, "dnodes": config.dnodes}
        line |= {"seconds": best.seconds, "floor": floor, "levels": best.levels, "rows": best.rows}
        line |= {"gpu_gib": memory, "host_gib": host, "recall@10": recall, "recipe": args.recipe}
        new = not args.csv.exists()
        with open(args.csv, "a", newline="") as file:
            writer = csv.DictWriter(file, list(line))
            if new:
                writer.writeheader()
            writer.writerow(line)


def _of_paper() -> dict[str, Any]:
    """The default recurrence with the paper's thresholds and d-nodes, so that windows are the same."""
    return {name: getattr(PAPER, name) for name in ("active_users", "active_items", "dnodes", "method")}


@dataclass
class Epoch:
    seconds: float
    busy: float  # seconds the CPU spent launching, without waiting for numbers
    events: int
    levels: int
    rows: int
    loss: float


class Trainer:
    """The training loop of `dynedge train`, timed: numbers are read a window late."""

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
        self.optimiser = Adam(self.model.named_parameters(), 1e-3, 1e-2)
        self.steps = TrainingStep(self.model, self.optimiser, self.config)
        self.state: State | None = None  # at the end of the last epoch
        self.core._window_cache._full = args.stream

    def epoch(self, number: int) -> Epoch:
        state, model, unread, losses = self.model.start(), self.model.train(), None, []
        torch.cuda.synchronize()
        began, waited = time.perf_counter(), 0.0
        with deterministic_algorithms(self.config.deterministic):
            prepared = model.batches(self.log, model.training_windows(self.train_end))
            for window, ready in enumerate(prepared):
                loss, norm = self.steps.run(ready, state, Step(0, number, window))
                model.after_step(ready, state)
                if unread is not None:
                    start = time.perf_counter()
                    losses.append(float(unread[0]) + 0 * float(unread[1]))
                    waited += time.perf_counter() - start
                unread = loss.log["loss"], norm
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
        """Seconds an epoch keeps the GPU busy with each phase, from a sample of windows, launched one by one."""
        every = max(1, self.core.config.windows // sample)
        state, took = self.model.start(), dict.fromkeys(PHASES, 0.0)
        for number in range(every // 2, self.core.config.windows, every):
            ready = next(self.model.batches(self.log, self.model.training_windows(self.train_end), number))
            for phase, seconds in self._profile(ready, state, Step(0, 0, number)).items():
                took[phase] += seconds * every
        return took

    def recall(self, most: int) -> float:
        """Recall@10 among all items of the events right after the training events, from the state at their end."""
        assert self.state is not None
        events = range(self.train_end, min(self.train_end + most, len(self.log)))
        with autocast(self.config):
            return mean("recall@10", rank_events(self.model.eval(), self.log, events, self.state.clone()))

    def evaluate(self, protocol: str, most: int | None) -> tuple[int, float]:
        """(test events ranked, seconds), from a fresh state: what is timed is the same."""
        events = self.log.split.ranges(len(self.log))["test"][:most]
        began = time.perf_counter()
        with autocast(self.config):
            rank_events(self.model.eval(), self.log, events, self.model.start(), protocol=protocol)
        return len(events), time.perf_counter() - began

    def _profile(self, prepared: Any, state: Any, step: Step) -> dict[str, float]:
        def forward() -> Any:
            with autocast(self.config):
                return self.model.loss(prepared, state, step)

        loss, ahead = gpu_time(forward)
        self.optimiser.zero_grad()
        _, back = gpu_time(loss.total.backward)

        def move() -> None:
            self.optimiser.clip(1.0)
            self.optimiser.step()

        return dict(zip(PHASES, (ahead, back, gpu_time(move)[1]), strict=True))


if __name__ == "__main__":
    main()
