"""Hyper-parameter search by validation MRR; each trial trains in a subprocess.

OUT/search.json describes the search, trials.jsonl has one line per finished trial, config.toml the best settings so
far. A trial that is worse after EARLY epochs than half of the trials before it is not trained further. A trial's
settings depend only on the trials before it, so a search that was killed proposes the same settings again, resumes
the run folder of the interrupted trial, and ends with the same result as without the interruption.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

from dynedge.config import from_toml, to_toml
from dynedge.data.log import EventLog
from dynedge.errors import DataError, DynedgeError, UsageError
from dynedge.experiments.hyperparameter_sampler import Trial, tpe_sampler
from dynedge.experiments.search_space import SearchSpace, Settings, search_space
from dynedge.experiments.subprocess_training import TrainingResult, announce, train_in_subprocess
from dynedge.models.registry import find_entry
from dynedge.runs.folder import CONFIG, is_run_folder, read_config
from dynedge.runs.run_config import RunConfig, recipe_config
from dynedge.training.logging import METRICS
from dynedge.utils.atomic_io import write_text
from dynedge.utils.file_lock import LOCK, FileLock
from dynedge.utils.jsonl import read_jsonl
from dynedge.utils.process_group import ALONE, ProcessGroup
from dynedge.utils.signals import StopSignal

SEARCH, TRIALS, RUNS = "search.json", "trials.jsonl", "runs"
EARLY = 2  # epochs after which a hopeless trial ends
MIN_TRIALS = 5  # before any is compared with


def tune(
    log: EventLog,
    recipe: RunConfig,
    out: Path,
    *,
    trials: int,
    minutes: float | None = None,
    group: ProcessGroup = ALONE,
) -> list[Trial]:
    """Searches until there are `trials` trials or they took `minutes` minutes; returns all trials, the best first.

    The first trial, which is always run, is the recipe itself. Settings that were tried before are not trained again:
    their result is copied. The processes of a `group` train a trial each at a time.
    """
    entry = find_entry(recipe.name)
    space = search_space(entry, recipe, log.num_items)
    if entry.heuristic:
        raise UsageError(f"{recipe.name} has no trainable parameters: there is nothing to tune.")
    if not recipe.training.train_valid_ranges(log)[1]:
        split = recipe.training.resolve_split(log)
        raise DataError(f"{log.path}: split {split} leaves no validation events to tune on.")
    next_settings = tpe_sampler(space)
    with ExitStack() as stack:
        with group.together():
            if group.is_first:
                stack.enter_context(_locked(out))
                _check_same_search(out, log, space)
        stack.enter_context(StopSignal())
        done: list[Trial] = group.gather_json(_read_trials(out))[0]
        while len(done) < trials and (not done or minutes is None or _spent(done) / group.size < 60 * minutes):
            proposed = _proposals(next_settings, done, min(group.size, trials - len(done)))
            trial = None
            if group.rank < len(proposed):
                settings, number = proposed[group.rank], len(done) + group.rank
                if group.is_first:
                    title = f"trial {number + 1} of {trials}: {_describe(space.changed(settings))}"
                    announce(title, _seconds_left(done, trials, minutes))
                run = out / RUNS / f"{number:03}"
                trial = _run_trial(number, settings, done, space, log, run, quiet=not group.is_first)
            done += [one for one in group.gather_json(trial) if one is not None]
            if group.is_first:
                _write(out, done, space)
        if group.is_first:
            shutil.rmtree(out / RUNS, ignore_errors=True)
    return _sorted(done)


def _proposals(next_settings: Callable[[list[Trial]], Settings], done: list[Trial], count: int) -> list[Settings]:
    """Settings of trials that run at the same time: to those after it, one that runs counts as the worst so far."""
    worst = min((trial["valid_mrr"] or 0.0 for trial in done), default=0.0)
    proposed: list[Settings] = []
    for _ in range(count):
        proposed.append(next_settings(done + [{"settings": one, "valid_mrr": worst} for one in proposed]))
    return proposed


def _write(out: Path, done: list[Trial], space: SearchSpace) -> None:
    best = _sorted(done)[0]
    if best["error"] is None:
        write_text(out / CONFIG, to_toml(space.config(best["settings"])))
    write_text(out / TRIALS, "".join(json.dumps(trial) + "\n" for trial in done))


def _run_trial(
    number: int, settings: Settings, done: list[Trial], space: SearchSpace, log: EventLog, run: Path, *, quiet: bool
) -> Trial:
    trial = {"trial": number, "settings": settings, "changed": space.changed(settings)}
    for earlier in done:
        if earlier["settings"] == settings:
            return {**earlier, **trial, "seconds": 0.0}
    run.parent.mkdir(exist_ok=True)
    assert log.path is not None
    config, title = space.config(settings), f"trial {number + 1}"
    stages = [config]
    if config.training.epochs > EARLY and len(done) >= MIN_TRIALS and not _is_past_early(run):
        stages.insert(0, replace(config, training=replace(config.training, epochs=EARLY)))
    seconds, result = 0.0, TrainingResult(0.0, None)
    for stage in stages:
        result = train_in_subprocess(title, stage, run, log.path, quiet=quiet)
        seconds += result.seconds
        if result.error is not None or (stage is not config and _is_hopeless(_outcome(run), done)):
            break
    if result.error is None:
        outcome = _outcome(run)
    else:
        outcome = {
            "valid_mrr": None,
            "valid_recall@10": None,
            "early_mrr": None,
            "epochs": None,
            "error": result.error,
        }
    shutil.rmtree(run, ignore_errors=True)  # only the metrics are needed
    return {**trial, **outcome, "seconds": round(seconds, 3)}


def _is_past_early(run: Path) -> bool:
    """Whether the run of an interrupted search was already found to be worth all its epochs."""
    return is_run_folder(run) and read_config(run).training.epochs > EARLY


def _is_hopeless(outcome: Trial, done: list[Trial]) -> bool:
    earlier = [trial["early_mrr"] for trial in done if trial.get("early_mrr") is not None]
    return len(earlier) >= MIN_TRIALS and outcome["early_mrr"] < median(earlier)


def _outcome(run: Path) -> Trial:
    history = read_jsonl(run / METRICS)
    best = max(history, key=lambda record: record["valid_mrr"] or 0.0)
    early = max(record["valid_mrr"] or 0.0 for record in history[:EARLY])
    return {name: best[name] for name in ("valid_mrr", "valid_recall@10")} | {
        "early_mrr": early,
        "epochs": len(history),
        "error": None,
    }


@contextmanager
def _locked(out: Path) -> Iterator[None]:
    """Creates the folder if necessary and locks it: two searches would overwrite each other's trials."""
    if out.exists() and not ((out / SEARCH).is_file() or (out.is_dir() and {*os.listdir(out)} <= {LOCK})):
        raise DataError(f"{out} exists and is not the folder of a search; choose another --out.")
    if not out.absolute().parent.is_dir():
        raise DataError(f"{out.parent} is not a folder; create it first, or choose another --out.")
    out.mkdir(exist_ok=True)
    with FileLock(out):
        yield


def _check_same_search(out: Path, log: EventLog, space: SearchSpace) -> None:
    """Writes search.json, or raises an error if the folder holds a different search."""
    config = to_toml(space.recipe).splitlines()
    search = {"model": space.recipe.name, "log": log.fingerprint, "space": _as_json(space.values), "config": config}
    try:
        existing = json.loads((out / SEARCH).read_bytes())
    except FileNotFoundError:
        write_text(out / SEARCH, json.dumps(search, indent=1) + "\n")
        return
    except ValueError:
        raise DataError(f"{out / SEARCH} is damaged; choose another --out.") from None
    for name, value in search.items():
        same = _are_same_settings(existing, space.recipe) if name == "config" else existing.get(name) == value
        if not same:
            detail = f" ({existing.get(name)}, not {value})" if name == "model" else ""
            raise UsageError(f"{out} is a search with another {name}{detail}: choose another --out.")


def _are_same_settings(existing: dict[str, Any], config: RunConfig) -> bool:
    """Whether a stored search has the settings of `config`; an option that it lacks counts as the default."""
    try:
        stored = from_toml(recipe_config(config.name), "\n".join(existing["config"]), SEARCH)
    except (KeyError, TypeError, DynedgeError):
        return False
    return bool(stored == config)


def _as_json(values: Mapping[str, Any]) -> Any:
    return json.loads(json.dumps(values))


def _read_trials(out: Path) -> list[Trial]:
    try:
        return read_jsonl(out / TRIALS)
    except FileNotFoundError:
        return []


def _sorted(trials: list[Trial]) -> list[Trial]:
    """Returns the trials by descending validation MRR, failed ones last; of equal ones the earlier first."""
    return sorted(trials, key=lambda trial: (trial["valid_mrr"] is None, -(trial["valid_mrr"] or 0.0)))


def _spent(trials: list[Trial]) -> float:
    return float(sum(trial["seconds"] for trial in trials))


def _describe(changed: Settings) -> str:
    return ", ".join(f"{key} = {value}" for key, value in changed.items()) or "the recipe's settings"


def _seconds_left(done: list[Trial], trials: int, minutes: float | None) -> float | None:
    if not done:
        return None
    left = _spent(done) / len(done) * (trials - len(done))
    return left if minutes is None else min(left, 60 * minutes - _spent(done))
