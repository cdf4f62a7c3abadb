"""How fast an epoch is on one GPU, how far from what the hardware allows, and where the time goes.

    python benchmarks/gpu.py                       # every row
    python benchmarks/gpu.py --log ml-25m-like     # the rows of one log
    python benchmarks/gpu.py --peers               # and PyG's TGN at batch 200 on the small logs

Each log is made on this machine. An epoch is the full training step of all windows: forward, loss, backward,
clipping, optimiser, numbers read. In the first epoch what each window needs is planned and copied over, to stay on
the GPU if it fits, and kernels are compiled; in the second the steps are recorded; the best of the later ones counts.
Evaluation is not in it. What the GPU does in it is the time of all kernels of a sample of windows, by phase.

floor: the largest of bytes over this GPU's copy bandwidth, products over its bfloat16 rate, and levels times the time
of a level of one event, forward and backward; all three are measured here.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import islice, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from machine import machine, peak_mib

from dynedge.events.log import EventLog
from dynedge.events.synthetic import synthesize
from dynedge.models import recurrence
from dynedge.models.contract import Step
from dynedge.models.recurrence import PAPER, Recurrence, RecurrenceConfig
from dynedge.ranking.protocol import PROTOCOLS, walk
from dynedge.training.optim import Adam
from dynedge.training.precision import bit_for_bit, precision
from dynedge.training.settings import TrainingConfig
from dynedge.training.steps import Steps

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
    parser.add_argument("--events", type=int, default=None, help="logs of so many events instead of full ones")
    parser.add_argument("--epochs", type=int, default=4, help="of which the first two warm up")
    parser.add_argument("--dim", type=int, default=64)
    parser.add_argument("--windows", type=int, default=300)
    parser.add_argument("--dnodes", type=int, default=None, help="so many a window, instead of each row's own number")
    parser.add_argument("--evaluate", choices=tuple(PROTOCOLS), help="also time the ranking of the test events")
    parser.add_argument("--evaluate-events", type=int, default=None, help="of the first so many test events")
    parser.add_argument("--precision", default="bfloat16")
    parser.add_argument("--deterministic", action="store_true")
    parser.add_argument("--recipe", choices=("edge-paper", "recurrence"), default="edge-paper")
    parser.add_argument("--peers", action="store_true")
    parser.add_argument("--folder", type=Path, default=None, help="where logs are kept; else in a temporary folder")
    args = parser.parse_args()
    print(f"{torch.cuda.get_device_name()}, {machine()}; torch {torch.__version__}, d = {args.dim}, {args.precision}")
    limits = Limits.measure(args.dim)
    rates = f"copy {limits.bandwidth / 1e12:.2f} TB/s, bf16 {limits.rate / 1e12:.0f} TFLOP/s"
    print(f"{rates}, a level {limits.level * 1e6:.2f} µs")
    with tempfile.TemporaryDirectory(prefix="gpu-") as folder:
        wanted = args.log.split(",") if args.log else [recipe for recipe, _ in ROWS.values()]
        for recipe in dict.fromkeys(wanted):
            log = load(recipe, args.folder or Path(folder), args.events)
            for name, (of, settings) in ROWS.items():
                if of == recipe:
                    run(name, log, settings, args, limits)
            if args.peers and recipe in ("reddit-like", "lastfm-like"):
                print(f"  PyG TGN, batch 200: {tgn(log, args.dim):,.0f} events/s")


def load(recipe: str, folder: Path, events: int | None) -> EventLog:
    from dynedge.events.log import read_log

    began, path = time.perf_counter(), folder / f"{recipe}-{events or 'full'}"
    log = read_log(path) if path.exists() else synthesize(recipe, path, events=events, quiet=True)
    print(f"\n{recipe}: {len(log):,} events, made in {time.perf_counter() - began:.1f} s", flush=True)
    return log


def run(name: str, log: EventLog, settings: dict[str, Any], args: argparse.Namespace, limits: Limits) -> None:
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    base = PAPER if args.recipe == "edge-paper" else replace(RecurrenceConfig(), **_of_paper())
    told = settings if args.dnodes is None else settings | {"dnodes": args.dnodes}
    config = replace(base, dim=args.dim, windows=args.windows, **told)
    trainer = Trainer(config, log, args.precision, args.deterministic)
    epochs = [trainer.epoch(number) for number in range(args.epochs)]
    best = min(epochs[2:] or epochs, key=lambda epoch: epoch.seconds)
    terms = limits.floor(trainer.model, best)
    floor = max(terms.values())
    print(f"{name}  [{args.recipe}]")
    rate, first = best.events / best.seconds / 1e6, ", ".join(f"{epoch.seconds:.1f}" for epoch in epochs[:2])
    print(f"  {best.seconds:.2f} s an epoch, {rate:.2f} M events/s; the first two {first} s")
    print(f"  {torch.cuda.max_memory_allocated() / 2**30:.1f} GiB of the GPU, host peak {peak_mib() / 1024:.1f} GiB")
    print(
        f"  {best.levels:,} levels, {best.rows:,} states written; loss {epochs[0].loss:.4f} -> {epochs[-1].loss:.4f}"
    )
    shown = ", ".join(f"{what} {seconds:.2f}" for what, seconds in terms.items())
    print(f"  floor {floor:.2f} s ({shown}); time over floor {best.seconds / floor:.1f}")
    took = trainer.phases()
    parts = ", ".join(f"{phase} {took[phase]:.2f}" for phase in PHASES)
    print(f"  the GPU is busy {sum(took.values()):.2f} s: {parts}; the CPU {best.busy:.2f} s", flush=True)
    if args.evaluate:
        count, seconds = trainer.evaluate(args.evaluate, args.evaluate_events)
        print(f"  {args.evaluate}: {count:,} test events ranked in {seconds:.2f} s", flush=True)


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

    def __init__(self, config: RecurrenceConfig, log: EventLog, kind: str, deterministic: bool) -> None:
        self.log, self.train_end = log, log.split.bounds(len(log))[0]
        self.config = TrainingConfig(device="cuda", precision=kind, deterministic=deterministic)
        self.model: Recurrence = recurrence.create(config, log, self.train_end, seed=0).to("cuda")
        self.optimiser = Adam(self.model.named_parameters(), 1e-3, 1e-2)
        self.steps = Steps(self.model, self.optimiser, self.config)

    def epoch(self, number: int) -> Epoch:
        state, model, unread, losses = self.model.start(), self.model.train(), None, []
        torch.cuda.synchronize()
        began, waited = time.perf_counter(), 0.0
        with bit_for_bit(self.config.deterministic):
            prepared = model.windows(self.log, self.train_end)
            for window in range(model.config.windows):
                loss, norm = self.steps.take(next(prepared), state, Step(0, number, window))
                if unread is not None:
                    start = time.perf_counter()
                    losses.append(float(unread[0]) + 0 * float(unread[1]))
                    waited += time.perf_counter() - start
                unread = loss.log["loss"], norm
        torch.cuda.synchronize()
        seconds, stats = time.perf_counter() - began, model.plan.stats
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
        every = max(1, self.model.config.windows // sample)
        state, took = self.model.start(), dict.fromkeys(PHASES, 0.0)
        prepared = islice(self.model.windows(self.log, self.train_end), every // 2, None, every)
        for number, ready in enumerate(prepared):
            for phase, seconds in self._profile(ready, state, Step(0, 0, number)).items():
                took[phase] += seconds * every
        return took

    def evaluate(self, protocol: str, most: int | None) -> tuple[int, float]:
        """(test events ranked, seconds), from a fresh state: what is timed is the same."""
        events = self.log.split.ranges(len(self.log))["test"][:most]
        began = time.perf_counter()
        with precision(self.config):
            walk(self.model.eval(), self.log, events, self.model.start(), protocol=protocol)
        return len(events), time.perf_counter() - began

    def _profile(self, prepared: Any, state: Any, step: Step) -> dict[str, float]:
        def forward() -> Any:
            with precision(self.config):
                return self.model.loss(prepared, state, step)

        loss, ahead = gpu_time(forward)
        self.optimiser.zero_grad()
        _, back = gpu_time(loss.total.backward)

        def move() -> None:
            self.optimiser.clip(1.0)
            self.optimiser.step()

        return dict(zip(PHASES, (ahead, back, gpu_time(move)[1]), strict=True))


def gpu_time(work: Callable[[], Any]) -> tuple[Any, float]:
    """What comes out, and the seconds of all kernels it launched."""
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CUDA], acc_events=True) as found:
        out = work()
        torch.cuda.synchronize()
    return out, sum(event.self_device_time_total for event in found.key_averages()) / 1e6


def _mark() -> torch.cuda.Event:
    event = torch.cuda.Event(enable_timing=True)
    event.record()
    return event


@dataclass(frozen=True)
class Limits:
    """What this GPU can do, measured."""

    bandwidth: float  # bytes/s, read and written
    rate: float  # bfloat16 operations/s
    level: float  # seconds of a level of one event, forward and backward

    @classmethod
    def measure(cls, dim: int) -> Limits:
        source = torch.randn(2**28, device="cuda")
        target = torch.empty_like(source)
        copy = timed(lambda: target.copy_(source))
        a, b = (torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16) for _ in range(2))
        product = timed(lambda: a @ b)
        return cls(2 * source.nbytes / copy, 2 * 8192**3 / product, _level(dim))

    def floor(self, model: Recurrence, epoch: Epoch) -> dict[str, float]:
        """Seconds an epoch takes at least, by what limits it.

        A written state: two states in, one out, the product of its features in; four gates kept and read again; its
        gradient and what two children send in, four gradients and what goes to two parents out; gates' gradients and
        operands in again for the weights. An event: the head's inputs, its hidden layer and its output, each way.
        """
        d, width = model.config.dim, model.items.width
        state = 4 * (3 + 1 + 2 + 2) * d + 2 * (3 + 4 + 4 + 4 + 4 + 2 + 2) * d
        event = 2 * (4 * (2 * d + width) + 2 * 3 * d)
        moved = state * epoch.rows + event * epoch.events
        products = 36 * d * d * epoch.rows + 6 * (2 * d * (d + width) + 2 * d * d) * epoch.events
        return {
            "bytes": moved / self.bandwidth,
            "products": products / self.rate,
            "levels": epoch.levels * self.level,
        }


def _level(dim: int, levels: int = 2000) -> float:
    from dynedge.ops.level_gru.triton import Levels, level_gru
    from dynedge.plan.links import Linker
    from dynedge.plan.schedule import build

    one = np.zeros(levels, np.int32)
    schedule = build(one, one, Linker(np.zeros(1, bool), np.zeros(1, bool))(one, one), np.zeros(0, np.int64))
    chain = Levels.of(schedule, "cuda")
    shapes = (2, dim), (4, 3 * dim), (2, 3 * dim, dim), (2, 3 * dim, dim), (2, 3 * dim)
    roots, pre, *weights = (0.1 * torch.randn(shape, device="cuda") for shape in shapes)
    source = torch.zeros(2 * levels, dtype=torch.int32, device="cuda")
    roots.requires_grad_()

    def both() -> None:
        with torch.autocast("cuda", torch.bfloat16):
            arena = level_gru(roots, pre, source, *weights, chain)
        torch.autograd.grad(arena.sum(), roots)

    return timed(both) / levels


def timed(work: Callable[[], object], times: int = 5) -> float:
    work()
    marks = [_mark()]
    for _ in range(times):
        work()
        marks.append(_mark())
    torch.cuda.synchronize()
    return float(np.median([a.elapsed_time(b) for a, b in pairwise(marks)])) / 1e3


def tgn(log: EventLog, dim: int, events: int = 10_000) -> float:
    """Events a second of PyG's TGN on this GPU, the same as in train_cpu.py."""
    from train_cpu import TGN

    with torch.device("cuda"):
        peer = TGN(log, events, dim)
        for name in ("source", "target", "times"):
            setattr(peer, name, getattr(peer, name).cuda())
        peer.turn(torch.get_num_threads())
        torch.cuda.synchronize()
        return peer.turn(torch.get_num_threads()).rate


if __name__ == "__main__":
    main()
