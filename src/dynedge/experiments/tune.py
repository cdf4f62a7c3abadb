"""A small search for a model's settings by validation MRR: so many trials, each in a process of its own.

OUT/search.json says what is searched, trials.jsonl has a line for every trial that has ended, config.toml the best
settings so far. A trial's proposal follows from its number and the trials before it, so that a search that was
killed anywhere proposes what it would have, goes on with the run folder it had begun, and ends as one that was not.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from dynedge.config import to_toml
from dynedge.data.log import EventLog, read_log
from dynedge.errors import DataError, UsageError
from dynedge.experiments.sampler import Trial, proposer
from dynedge.experiments.search_space import Settings, Space, space_of
from dynedge.models.registry import Entry, entries, find_entry, use_only
from dynedge.runs.folder import CONFIG, Run
from dynedge.runs.run_config import RunConfig, resolve_config
from dynedge.runs.train_run import train_run
from dynedge.training.logging import METRICS
from dynedge.utils.atomic_io import write_text
from dynedge.utils.progress import clock
from dynedge.utils.signals import Stop
from dynedge.utils.subprocess_worker import Failed, apart

SEARCH, TRIALS, RUNS, LOCK = "search.json", "trials.jsonl", "runs", ".lock"


def tune(
    log: EventLog,
    recipe: RunConfig,
    out: Path,
    *,
    trials: int,
    minutes: float | None = None,
) -> list[Trial]:
    """Search until there are so many trials, or they have taken so many minutes; the trials, the best first.

    The first one, which is always tried, is the recipe as it is. A proposal that was tried before costs nothing and
    tells the same again.
    """
    entry = find_entry(recipe.name)
    space = space_of(entry, recipe, log.num_items)
    if entry.heuristic:
        raise UsageError(f"{recipe.name} learns nothing: there is nothing to tune.")
    if not recipe.training.ranges(log)[1]:
        raise DataError(f"{log.path}: split {recipe.training.split_of(log)} leaves no validation events to tune on.")
    propose = proposer(space)
    with _alone(out), Stop():
        _check_same_search(out, log, space)
        done = _read(out)
        while len(done) < trials and (not done or minutes is None or _spent(done) < 60 * minutes):
            settings = propose(done)
            print(_announced(done, settings, space, trials, minutes), file=sys.stderr, flush=True)
            done.append(_try(settings, done, space, log, out / RUNS / f"{len(done):03}"))
            best = _ranked(done)[0]
            if best["error"] is None:
                write_text(out / CONFIG, to_toml(space.config(best["settings"])))
            write_text(out / TRIALS, "".join(json.dumps(trial) + "\n" for trial in done))
        shutil.rmtree(out / RUNS, ignore_errors=True)
    return _ranked(done)


def _try(settings: Settings, done: list[Trial], space: Space, log: EventLog, run: Path) -> Trial:
    trial = {"trial": len(done), "settings": settings, "changed": space.changed(settings)}
    for before in done:
        if before["settings"] == settings:
            return {**before, **trial, "seconds": 0.0}
    config = space.config(settings)
    run.parent.mkdir(exist_ok=True)
    began = time.monotonic()
    try:
        apart(_train, entries(), config, run, log.path)
        found = _outcome(run)
    except Failed as why:
        print(f"failed: {why}", file=sys.stderr, flush=True)
        found = {"valid_mrr": None, "valid_recall@10": None, "epochs": None, "error": str(why)}
    shutil.rmtree(run, ignore_errors=True)  # what it took is told; the numbers are kept
    return {**trial, **found, "seconds": round(time.monotonic() - began, 3)}


def _train(models: Mapping[str, Entry], config: RunConfig, folder: Path, path: Path) -> None:
    use_only(models)
    log = read_log(path)
    with Stop() as stop, Run(folder, resume=True) as run:
        train_run(run, resolve_config(config, log), log, stop=stop)


def _outcome(run: Path) -> Trial:
    history = [json.loads(line) for line in (run / METRICS).read_text(encoding="utf-8").splitlines()]
    best = max(history, key=lambda record: record["valid_mrr"] or 0.0)
    return {name: best[name] for name in ("valid_mrr", "valid_recall@10")} | {"epochs": len(history), "error": None}


@contextmanager
def _alone(out: Path) -> Iterator[None]:
    """The folder, made if need be and locked: two searches would lose each other's trials."""
    if out.exists() and not ((out / SEARCH).is_file() or (out.is_dir() and {*os.listdir(out)} <= {LOCK})):
        raise DataError(f"{out} exists and is not the folder of a search; choose another --out.")
    if not out.absolute().parent.is_dir():
        raise DataError(f"{out.parent} is not a folder; create it first, or choose another --out.")
    out.mkdir(exist_ok=True)
    lock = os.open(out / LOCK, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    except BlockingIOError:
        raise DataError(f"{out} is in use by another process; wait for it, or stop it.") from None
    finally:
        os.close(lock)


def _check_same_search(out: Path, log: EventLog, space: Space) -> None:
    """Write down what is searched, or refuse a folder where something else was."""
    config = to_toml(space.recipe).splitlines()
    now = {"model": space.recipe.name, "log": log.fingerprint, "space": _plain(space.values), "config": config}
    try:
        before = json.loads((out / SEARCH).read_bytes())
    except FileNotFoundError:
        write_text(out / SEARCH, json.dumps(now, indent=1) + "\n")
        return
    except ValueError:
        raise DataError(f"{out / SEARCH} is damaged; choose another --out.") from None
    for name, value in now.items():
        if before.get(name) != value:
            what = f"{before.get(name)}, not {value}" if name == "model" else "another one"
            raise UsageError(f"{out} is a search with another {name} ({what}): choose another --out.")


def _plain(values: Mapping[str, Any]) -> Any:
    return json.loads(json.dumps(values))


def _read(out: Path) -> list[Trial]:
    try:
        return [json.loads(line) for line in (out / TRIALS).read_text(encoding="utf-8").splitlines()]
    except FileNotFoundError:
        return []
    except ValueError:
        raise DataError(f"{out / TRIALS} is damaged; choose another --out.") from None


def _ranked(trials: list[Trial]) -> list[Trial]:
    """The best first; of equal ones the earlier; those that failed last."""
    return sorted(trials, key=lambda trial: (trial["valid_mrr"] is None, -(trial["valid_mrr"] or 0.0)))


def _spent(trials: list[Trial]) -> float:
    return float(sum(trial["seconds"] for trial in trials))


def _announced(done: list[Trial], settings: Settings, space: Space, trials: int, minutes: float | None) -> str:
    told = ", ".join(f"{key} = {value}" for key, value in space.changed(settings).items()) or "the recipe as it is"
    if not done:
        return f"trial 1 of {trials}: {told}"
    left = _spent(done) / len(done) * (trials - len(done))
    if minutes is not None:
        left = min(left, 60 * minutes - _spent(done))
    return f"trial {len(done) + 1} of {trials}, about {clock(left)} left: {told}"
