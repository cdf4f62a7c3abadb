"""Segments of an epoch, shared by the processes of a torchrun.

    python benchmarks/segments.py speed --world 1,2,4,8      # events/s and traffic by number of processes
    python benchmarks/segments.py accuracy LOG... --jobs 15  # test MRR by number of segments
    python benchmarks/segments.py table                      # predictions for up to 1,024 GPUs

`speed` trains `edge` for --epochs epochs on a log like ml-25m, with windows of equal work, one thread per process.
It reports the fastest epoch after the first, validation left out. With --cores process r runs on the r-th of these
cores alone, also the threads that prepare its batches; without, one process has those of the whole machine. --apart
then starts as many processes as the largest --world side by side that have nothing to do with each other, each
training all segments: that is what the machine's cores lose by computing at the same time. Shares of the epoch are
means over the processes: batches (preparing them, as far as a step waits for it), compute, wait (for the slowest
process), exchange, optimizer, borders (rows and states, exchanged after the last step). The traffic that was
counted stands beside the prediction of plan/scaling.py.

`accuracy` trains for the same number of epochs by each setting SxF@R: S segments (8b: with windows of equal work),
windows times F (x8 with 8 segments: as many steps as one segment has), learning rates times R; one thread per run,
--jobs runs at once. The first setting is the one that the others are compared with.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import torch
from machine_info import describe_machine
from torch import Tensor

from dynedge.config import set_key
from dynedge.data.log import read_log
from dynedge.data.synthetic import synthesize
from dynedge.models.base import Loss, State, Step
from dynedge.models.edge.model_size import model_size
from dynedge.plan.cost_model import CostModel
from dynedge.plan.scaling import INFINIBAND, ModelSize, predict, step_bytes
from dynedge.runs.folder import is_finished
from dynedge.runs.run_config import build_model, recipe_config, resolve_config
from dynedge.training import loop
from dynedge.training.logging import TrainingLogger
from dynedge.training.segmented_step import SegmentedStep
from dynedge.training.segments import Segments
from dynedge.utils.process_group import ProcessGroup, process_group
from dynedge.utils.tensor_io import Tensors

PHASES = "batches", "compute", "wait", "exchange", "optimizer", "borders"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    speed = commands.add_parser("speed")
    speed.add_argument("--events", type=float, default=400_000, help="Number of events of the log.")
    speed.add_argument("--windows", type=int, default=32, help="Number of windows per epoch.")
    speed.add_argument("--segments", type=int, default=8)
    speed.add_argument("--world", default="1,2,4,8", help="Numbers of processes, separated by commas.")
    speed.add_argument("--epochs", type=int, default=3)
    speed.add_argument("--cores", type=parse_cores, help="Cores of the processes, one each: 0-7 or 0,2,4.")
    speed.add_argument("--equal-sizes", action="store_true", help="Windows of equal size instead of equal work.")
    speed.add_argument("--apart", action="store_true", help="Also as many processes that share nothing.")
    speed.add_argument("--on", type=Path, help="A log to train on, instead of a synthetic one.")
    accuracy = commands.add_parser("accuracy")
    accuracy.add_argument("logs", type=Path, nargs="+")
    accuracy.add_argument("--settings", default="1,2,4,8,16,4x4,8x8,16x16", help="SxF@R, separated by commas.")
    accuracy.add_argument("--model", default="edge")
    accuracy.add_argument("--runs", type=Path, help="Folder of the runs, of which finished ones are used again.")
    accuracy.add_argument("--seeds", type=int, default=3)
    accuracy.add_argument("--epochs", type=int, default=8)
    accuracy.add_argument("--windows", type=int, default=304)
    accuracy.add_argument("--device", default="cpu")
    accuracy.add_argument("--jobs", type=int, default=1, help="Runs at a time.")
    commands.add_parser("table")
    args = parser.parse_args()
    {"speed": measure_speed, "accuracy": measure_accuracy, "table": print_table}[args.command](args)


# ---- speed


def parse_cores(text: str) -> list[int]:
    """The numbers in a list of numbers and ranges, such as 0-3,8."""
    parts = [[int(end) for end in part.split("-")] for part in text.split(",")]
    return [core for part in parts for core in range(part[0], part[-1] + 1)]


def measure_speed(args: argparse.Namespace) -> None:
    if "RANK" in os.environ:
        train_timed(args)
        return
    worlds = [int(world) for world in args.world.split(",")]
    if args.cores and len(args.cores) < max(worlds):
        sys.exit(f"--cores has {len(args.cores)} cores for {max(worlds)} processes")
    threads = "one core per process" if args.cores else "one thread per process"
    print(f"{describe_machine()}; torch {torch.__version__}, gloo, {threads}, edge, d = 64, float32")
    with tempfile.TemporaryDirectory(prefix="segments-") as folder:
        if args.on is None:
            args.on = Path(folder) / "log"
            synthesize("ml-25m-like", args.on, events=int(args.events), quiet=True)
        first = launch(args, worlds[0])
        print_head(first, args.segments)
        print_speed(first, first)
        for world in worlds[1:]:
            print_speed(launch(args, world), first)
        if args.apart:
            alone = launch(args, 1)["rate"]
            processes = [start(args, 1, core) for core in range(max(worlds))]
            try:
                rates = [finish(process)["rate"] for process in processes]
            finally:
                for process in processes:
                    process.terminate()
            shares = " ".join(f"{rate / alone:.2f}" for rate in rates)
            print(f"{len(rates)} processes apart, events/s of each over {alone:,.0f} of one alone: {shares}")
            print(
                f"together {sum(rates):,.0f} events/s, efficiency {sum(rates) / alone / len(rates):.2f}", flush=True
            )


def print_head(first: dict[str, Any], segments: int) -> None:
    print(
        f"{first['events']:,} events, {first['window_events']:,} per window, S = {segments}, {first['steps']} steps"
    )
    phases = "   ".join(f"{name:>9}" for name in PHASES)
    print(f"W   events/s   efficiency   {phases}   MB/step: sent  predicted   MB/epoch")


def print_speed(result: dict[str, Any], first: dict[str, Any]) -> None:
    """Prints a row; its efficiency is relative to the first one."""
    efficiency = result["rate"] / first["rate"] * first["world"] / result["world"]
    shares = "   ".join(f"{100 * result[name]:8.1f}%" for name in PHASES)
    sent, predicted, epoch = (result[name] / 1e6 for name in ("step_bytes", "predicted", "epoch_bytes"))
    print(
        f"{result['world']:<3} {result['rate']:9,.0f}   {efficiency:10.2f}   {shares}   "
        f"{sent:13.2f}  {predicted:9.2f}   {epoch:8.1f}"
    )
    for name, values in result["details"].items():
        print(f"    {name}: {' '.join(f'{one:.2f}' for one in values)}", flush=True)


def launch(args: argparse.Namespace, world: int) -> dict[str, Any]:
    """Trains by so many processes; returns what the first one measured."""
    return finish(start(args, world))


def start(args: argparse.Namespace, world: int, core: int = 0) -> subprocess.Popen[str]:
    """Starts to train in a torchrun of so many processes, on the cores from number `core` on."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={world}", __file__]
    command += ["speed", "--on", str(args.on), "--windows", str(args.windows), "--segments", str(args.segments)]
    command += ["--epochs", str(args.epochs), *(["--equal-sizes"] if args.equal_sizes else [])]
    command += ["--cores", ",".join(map(str, args.cores[core:]))] if args.cores else []
    environment = os.environ | {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "passive"}
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)


def finish(process: subprocess.Popen[str]) -> dict[str, Any]:
    """What the first process of a torchrun measured."""
    output, _ = process.communicate()
    if process.returncode:
        sys.exit(f"training failed with exit code {process.returncode}")
    result: dict[str, Any] = json.loads(output.splitlines()[-1])
    return result


class TimedStep(SegmentedStep):
    """Measures the phases of every step, and the CPU seconds of each segment's window.

    Waiting for the slowest process is apart from the exchange itself.
    """

    seconds: list[list[float]] = []  # noqa: RUF012
    sent: list[int] = []  # noqa: RUF012
    by_segment: list[list[float]] = []  # noqa: RUF012

    def run(self, batches: list[Any], states: list[State], positions: list[Step | None]) -> tuple[Loss, Tensor]:
        arrived, sent = time.perf_counter(), self.group.bytes_sent
        self._wait()  # for the batches of all processes
        start = time.perf_counter()
        self.by_segment.append([0.0] * len(positions))
        self._trained = (k for k, position in enumerate(positions) if position is not None)
        result = super().run(batches, states, positions)
        total, (wait, exchange) = time.perf_counter() - start, self._spent
        compute = self._before_sum - start - self._fetching
        exchange, wait, total = exchange + self._fetching, wait + start - arrived, total + start - arrived
        self.seconds.append([compute, wait, exchange, total - compute - wait - exchange])
        self.sent.append(self.group.bytes_sent - sent)
        return result

    def _fetch_rows(self, batches: list[Any], states: list[State]) -> None:
        start = time.perf_counter()
        super()._fetch_rows(batches, states)
        self._fetching = time.perf_counter() - start

    def _loss(self, batch: Any, state: State, position: Step) -> Loss:
        start = time.thread_time()
        loss = super()._loss(batch, state, position)
        self.by_segment[-1][next(self._trained)] = time.thread_time() - start
        return loss

    def _sum(self, losses: list[Loss | None], gradients: list[dict[str, Tensor]]) -> Tensor:
        self._before_sum = time.perf_counter()
        self._wait()
        waited = time.perf_counter()
        numbers = super()._sum(losses, gradients)
        self._spent = [waited - self._before_sum, time.perf_counter() - waited]
        return numbers

    def _wait(self) -> None:
        if self.group.size > 1:
            torch.distributed.barrier()


class TimedSegments(Segments):
    """Measures each epoch: what its steps used (`used`), and seconds of what follows the last one."""

    epochs: list[Tensor] = []  # noqa: RUF012
    borders: list[float] = []  # noqa: RUF012

    def batches(self, first: int) -> Iterator[list[Any]]:
        self.epochs.append(-used())
        self.borders.append(0.0)
        yield from super().batches(first)

    def share_rows(self, *others: Tensors) -> None:
        self.epochs[-1] += used()
        with self._at_border():
            super().share_rows(*others)

    def end_state(self) -> State:
        with self._at_border():
            return super().end_state()

    def next_epoch(self) -> None:
        with self._at_border():
            super().next_epoch()

    @contextmanager
    def _at_border(self) -> Iterator[None]:
        start = time.perf_counter()
        yield
        self.borders[-1] += time.perf_counter() - start


def used() -> Tensor:
    """What this process has used: seconds, CPU seconds, of which for the system, and thousands of page faults."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    values = time.perf_counter(), time.process_time(), usage.ru_stime, usage.ru_minflt / 1000
    return torch.tensor(values, dtype=torch.float64)


class EpochLogger(TrainingLogger):
    """Records the bytes sent and the training time of each epoch."""

    def __init__(self, group: ProcessGroup) -> None:
        super().__init__(quiet=True)
        self.group, self.sent = group, [0]

    def log_epoch(self, record: dict[str, Any]) -> None:
        self.sent.append(self.group.bytes_sent)


def train_timed(args: argparse.Namespace) -> None:
    torch.set_num_threads(1)
    if args.cores:
        os.sched_setaffinity(0, {args.cores[int(os.environ["RANK"])]})
    settings = {
        "training.segments": args.segments,
        "training.epochs": args.epochs,
        "training.validation_events": 200,
        "training.split": "0.98,0.01,0.01",
        "training.device": "cpu",
        "model.recurrence.windows": args.windows,
        "model.recurrence.balanced_windows": not args.equal_sizes,
        "model.memory.training_examples": 2000,
    }
    with process_group() as group:
        log, config = read_log(args.on), recipe_config("edge")
        for key, value in settings.items():
            config = set_key(config, key, value)
        config = resolve_config(config, log)
        model = build_model(config, log)
        loop.SegmentedStep, loop.Segments = TimedStep, TimedSegments  # type: ignore[misc]
        logger = EpochLogger(group)
        history = loop.fit(model, log, config.training, logger=logger, group=group).history
        steps = len(TimedStep.seconds) // args.epochs
        fastest = min(range(1, args.epochs), key=lambda epoch: TimedSegments.epochs[epoch][0])
        fastest = group.gather_json(fastest)[0]
        seconds, *work = TimedSegments.epochs[fastest].tolist()
        of_epoch = slice(fastest * steps, (fastest + 1) * steps)
        phases = torch.tensor(TimedStep.seconds[of_epoch]).sum(0).tolist()
        by_segment = group.all_gather(torch.tensor(TimedStep.by_segment[of_epoch]).sum(0))
        times = [seconds - sum(phases), *phases, TimedSegments.borders[fastest]]
        by_process = group.all_gather(torch.tensor([*times, *work], dtype=torch.float64))
        phases = by_process[:, : len(times)].mean(0)
        size = model_size(model.recurrence.plan, config.model.recurrence)  # type: ignore[union-attr]
        own, events = args.segments // group.size, history[fastest]["events"]
        result = {
            "world": group.size,
            "events": events,
            "window_events": events // args.windows,
            "steps": steps,
            "rate": events / float(phases.sum()),
            "step_bytes": mean(TimedStep.sent[of_epoch]),
            "predicted": step_bytes(size, own, group.size),
            "epoch_bytes": logger.sent[fastest + 1] - logger.sent[fastest],
            "details": {
                "seconds of compute by process": by_process[:, PHASES.index("compute")].tolist(),
                "CPU seconds of the steps and their batches by process": by_process[:, -3].tolist(),
                "of which for the system": by_process[:, -2].tolist(),
                "thousands of page faults by process": by_process[:, -1].tolist(),
                "CPU seconds of compute by segment": by_segment.flatten().tolist(),
            },
            **dict(zip(PHASES, (phases / phases.sum()).tolist(), strict=True)),
        }
        if group.is_first:
            print(json.dumps(result), flush=True)


# ---- accuracy


def measure_accuracy(args: argparse.Namespace) -> None:
    print(
        f"{describe_machine()}; torch {torch.__version__}; {args.model}, {args.epochs} epochs, {args.seeds} seeds, "
        f"{args.device}"
    )
    settings = args.settings.split(",")
    if args.runs is not None:
        args.runs.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="segments-") as folder, ThreadPoolExecutor(args.jobs) as pool:
        for log in args.logs:
            runs = list(itertools.product(settings, range(args.seeds)))
            jobs = [pool.submit(train_one, log, args.runs or Path(folder), *run, args) for run in runs]
            found: dict[str, list[dict[str, float]]] = {}
            for (setting, _), job in zip(runs, jobs, strict=True):
                found.setdefault(setting, []).append(job.result())
            print(f"\n{log.name}\n{'SxF@R':8}   steps   {'validation MRR':23}   {'test MRR':23}   test, by seed")
            for setting, values in found.items():
                cells = [compared(values, found[settings[0]], part) for part in ("valid", "test")]
                segments, windows, _ = parse_setting(setting, args.windows)
                seeds = " ".join(f"{value['test']:.4f}" for value in values)
                print(f"{setting:8} {-(-windows // segments):7,}   {'   '.join(cells)}   {seeds}", flush=True)


def parse_setting(setting: str, windows: int) -> tuple[int, int, float]:
    """Segments, windows, and the factor of the learning rates of SxF@R."""
    rest, _, rate = setting.partition("@")
    segments, _, factor = rest.partition("x")
    return int(segments.removesuffix("b")), windows * int(factor or 1), float(rate or 1)


def compared(values: list[dict[str, float]], alone: list[dict[str, float]], part: str) -> str:
    """Mean and standard deviation over seeds, and the mean's relative difference to that of another setting."""
    numbers = [value[part] for value in values]
    deviation = stdev(numbers) if len(numbers) > 1 else 0.0
    return f"{mean(numbers):.4f} ± {deviation:.4f} {mean(numbers) / mean(one[part] for one in alone) - 1:+7.2%}"


def train_one(log: Path, runs: Path, setting: str, seed: int, args: argparse.Namespace) -> dict[str, float]:
    """Trains a run if it is not there, and evaluates it; returns its MRR on validation and test events."""
    segments, windows, rate = parse_setting(setting, args.windows)
    run, training = runs / f"{log.name}-{args.model}-{setting}-{seed}", recipe_config(args.model).training
    flags = f"--segments {segments} --windows {windows} --seed {seed} --epochs {args.epochs} --device {args.device}"
    flags += f" --model {args.model} --lr {training.lr * rate} --row-lr {training.row_lr * rate}"
    flags += " --balanced-windows" if "b" in setting else ""
    environment = os.environ | {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "passive"}
    dynedge = [sys.executable, "-m", "dynedge"]
    train = [*dynedge, "train", str(log), "--out", str(run), "--json", *flags.split()]
    if not is_finished(run):
        subprocess.run(train, env=environment, check=True, capture_output=True)
    evaluate = [*dynedge, "evaluate", str(run), str(log), "--json"]
    done = subprocess.run(evaluate, env=environment, check=True, capture_output=True, text=True)
    parts = json.loads(done.stdout)
    found = {part: float(parts[part]["mrr"]) for part in ("valid", "test")}
    print(f"  {run.name}: validation {found['valid']:.4f}, test {found['test']:.4f}", flush=True)
    return found


# ---- predictions

# Measured on one H200 (benchmarks.md): 700 million events in 9 s. The planner's model has 3 · 2 ns per event of it.
H200_EVENT = CostModel("NVIDIA H200", 4.2, 12.9 / 6)
STEPS, PATH = 256, 100  # steps per epoch, and longest path of a window with d-nodes


def print_table(args: argparse.Namespace) -> None:
    print("events   GPUs   events/window   compute   exchange   borders   epoch   efficiency   GB/GPU   first sweep")
    for events, users, items in ((1e9, 1e7, 1e6), (1e10, 5e7, 5e6), (1e11, 1e8, 1e7)):
        for world in (1, 8, 64, 256, 1024):
            count = STEPS * world
            window = events / count
            touched = min(items, 0.5 * window)
            size = ModelSize(64, 150_000, int(users), int(items), touched)
            arguments = [PATH] * count, [2 * window] * count, size, world
            one = predict(*arguments, world, H200_EVENT, INFINIBAND)
            alone = H200_EVENT.epoch_seconds(PATH * STEPS, 2 * events)
            sweep = H200_EVENT.epoch_seconds(PATH * count, 2 * events) / 3
            times = f"{one.compute:8,.1f}s {one.exchange:9,.1f}s {one.borders:8,.2f}s {one.seconds:6,.1f}s"
            rest = f"{alone / world / one.seconds:11.2f} {one.memory / 1e9:9,.1f} {sweep:11,.0f}s"
            print(f"{events:6.0e} {world:6} {window:15,.0f} {times} {rest}")


if __name__ == "__main__":
    main()
