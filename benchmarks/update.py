"""Accuracy and time of `dynedge update` against a full retraining, after a log has gained 20 % more events.

    python benchmarks/update.py --logs DIR --names wikipedia,online_retail --work DIR [--epochs 8] [--options E/R/F,…]
    python benchmarks/update.py … --only full & python benchmarks/update.py … --only parent     # then as above

The first five sixths of each log's events are a log of their own, on which the parent is trained. Then a model is
trained on the whole log from nothing, and the parent is updated. All are ranked on the test events of the whole log;
the frozen row is the parent, whose states go on and whose parameters do not. An option is epochs/replay/rate of
`dynedge update`. Times are CPU seconds, which depend little on what else the machine does. With --only one of both is
trained, for a later call with the same --work, which trains nothing twice.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from machine_info import describe_machine

from dynedge.config import set_key
from dynedge.data.id_index import IdIndex
from dynedge.data.log import EventLog, read_log
from dynedge.data.log_writer import LogWriter
from dynedge.evaluation.metrics import mean
from dynedge.evaluation.summary import difference
from dynedge.runs.folder import RunFolder
from dynedge.runs.run_config import RunConfig, recipe_config
from dynedge.runs.train_run import train_run
from dynedge.runs.update_run import UpdateConfig, ranks_without_training, update_run
from dynedge.utils.array_type import Array
from dynedge.utils.jsonl import read_jsonl

COMPILED_EVENTS = 3000


def first_events(log: EventLog, count: int, out: Path) -> EventLog:
    """The first events of a log as a log of their own, with the ids that occur in them."""
    user, item = np.asarray(log.user[:count]), np.asarray(log.item[:count])
    users, items = int(user.max()) + 1, int(item.max()) + 1
    if not out.exists():
        with LogWriter(out) as writer:
            writer.column("user", np.int32).append(user)
            writer.column("item", np.int32).append(item)
            writer.column("time", np.float64).append(log.time[:count])
            writer.ids("user_ids", IdIndex.from_ids(log.user_ids.take(range(users))))
            writer.ids("item_ids", IdIndex.from_ids(log.item_ids.take(range(items))))
            writer.finish(events=count, users=users, items=items, item_features=[])
    return read_log(out)


def timed_run(out: Path, work: Callable[[RunFolder], object]) -> float:
    """CPU seconds of `work(run)`, which makes a run folder; those of an earlier call if the folder exists."""
    stored = out.parent / f"{out.name}.seconds"
    if not stored.exists():
        start = time.process_time()
        with RunFolder(out, force=True) as run:
            work(run)
        stored.write_text(str(time.process_time() - start))
    return float(stored.read_text())


def compile_kernels(log: EventLog, config: RunConfig) -> None:
    """Trains on a few events, so that no measured time includes compiling."""
    with tempfile.TemporaryDirectory() as folder, RunFolder(Path(folder) / "run") as run:
        first = first_events(log, COMPILED_EVENTS, Path(folder) / "log")
        train_run(run, set_key(config, "training.epochs", 1), first, quiet=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--logs", type=Path, required=True)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--names", required=True)
    parser.add_argument("--model", default="edge")
    parser.add_argument("--only", choices=("full", "parent"), help="Train this run, and stop.")
    parser.add_argument("--epochs", type=int, default=8)
    defaults = UpdateConfig()
    parser.add_argument("--options", default=f"{defaults.epochs}/{defaults.replay:g}/{defaults.rate:g}")
    arguments = parser.parse_args()
    arguments.work.mkdir(exist_ok=True, parents=True)
    config = set_key(recipe_config(arguments.model), "training.epochs", arguments.epochs)
    print(describe_machine(), flush=True)
    for name in arguments.names.split(","):
        compare(name, arguments, config)


def compare(name: str, arguments: argparse.Namespace, config: RunConfig) -> None:
    """Prints a row for the full retraining, the frozen parent and each option."""
    log, at = read_log(arguments.logs / name), f"{arguments.work / arguments.model}-{name}"
    parent, full = Path(f"{at}-parent"), Path(f"{at}-full")
    compile_kernels(log, config)
    if arguments.only != "parent":
        whole = timed_run(full, lambda run: train_run(run, config, log, quiet=True))
    if arguments.only != "full":
        old = first_events(log, len(log) * 5 // 6, arguments.work / f"{name}-first")
        timed_run(parent, lambda run: train_run(run, config, old, quiet=True))
    if arguments.only:
        return
    test = config.training.resolve_split(log).ranges(len(log))["test"]
    best, users = ranks_without_training(full, log, test), np.asarray(log.user[test.start : test.stop])

    def show(option: str, seconds: float, ranks: Array, valid: float | None = None) -> None:
        low, high = difference(ranks, best, users)["ci95"]
        mrr, change = mean("mrr", ranks), 100 * (mean("mrr", ranks) / mean("mrr", best) - 1)
        validated = "" if valid is None else f", validation MRR {valid:.4f}"
        print(
            f"{name:20} {option:10} test MRR {mrr:.4f}, {change:+.2f} % of full [{low:+.4f}, {high:+.4f}], "
            f"{seconds:.0f} s of CPU, {100 * seconds / whole:.1f} % of its time{validated}",
            flush=True,
        )

    show("full", whole, best)
    show("frozen", 0.0, ranks_without_training(parent, log, test))
    for option in arguments.options.split(","):
        epochs, replay, rate = option.split("/")
        settings = UpdateConfig(int(epochs), float(replay), float(rate))
        out = Path(f"{at}-{option.replace('/', '-')}")
        seconds = timed_run(out, lambda run, settings=settings: update_run(parent, log, run, settings, quiet=True))
        show(
            option,
            seconds,
            ranks_without_training(out, log, test),
            read_jsonl(out / "metrics.jsonl")[-1]["valid_mrr"],
        )


if __name__ == "__main__":
    main()
