"""Benchmark: trains and evaluates several models on one log, each run in a subprocess, and ranks them.

RUNS/MODEL-SEED is an ordinary run folder. Runs that are trained and evaluated are not repeated, so an interrupted
benchmark resumes, and another protocol or a further model costs only what is new.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from dynedge.config import flatten
from dynedge.data.log import EventLog
from dynedge.data.splits import BY_TIME
from dynedge.data.stored_negatives import negatives_checksum
from dynedge.errors import DataError, UsageError
from dynedge.evaluation.board import TGB, TGB_SPLIT
from dynedge.experiments.compared_models import TOML, BenchmarkEntry, benchmark_entries
from dynedge.experiments.leaderboard import EntryRanks, leaderboard
from dynedge.experiments.subprocess_training import announce, is_trained, train_in_subprocess
from dynedge.runs.evaluate_run import RunRanks, cached_ranks, check_protocol
from dynedge.runs.folder import RunFolder, check_version, is_finished, is_run_folder, read_config
from dynedge.runs.list_evaluation import with_lists
from dynedge.runs.run_config import RunConfig, resolve_config
from dynedge.utils.process_group import ALONE, ProcessGroup
from dynedge.utils.signals import StopSignal

EPOCHS = "training.epochs"


@dataclass(frozen=True)
class BenchmarkRun:
    """One run of the benchmark: a recipe with a seed, and its run folder."""

    recipe: str
    seed: int
    config: RunConfig
    folder: Path


def run_benchmark(
    log: EventLog,
    names: Sequence[str],
    folder: Path,
    *,
    seeds: int = 3,
    epochs: int | None = None,
    protocol: str = "full",
    lists: bool | None = None,
    group: ProcessGroup = ALONE,
) -> dict[str, Any]:
    """Trains and evaluates the runs missing in `folder`; returns the leaderboard as plain values, as `--json` prints.

    `names` are models, recipes or config files; see `benchmark_entries`. The processes of a `group` share the runs.
    """
    with group.together():
        entries = benchmark_entries(names, epochs)
    if protocol == TGB and negatives_checksum(log) is None:
        entries = [_split_by_time(entry) for entry in entries]
    lists = with_lists(lists, protocol)
    ranks, errors = rank_entries(log, entries, folder, seeds=seeds, protocol=protocol, lists=lists, group=group)
    return {
        "log": str(log.path),
        "protocol": protocol,
        "items": log.num_items,
        "runs": str(folder),
        **leaderboard(ranks, errors, lists=lists),
    }


def rank_entries(
    log: EventLog,
    entries: Sequence[BenchmarkEntry],
    folder: Path,
    *,
    seeds: int,
    protocol: str,
    lists: bool = False,
    group: ProcessGroup = ALONE,
) -> tuple[dict[str, EntryRanks], dict[str, str | None]]:
    """Trains and evaluates the runs missing in `folder`; returns ranks and errors by the name of the entry."""
    with group.together():
        check_protocol(protocol)
        runs = {entry.name: _runs(entry, log, folder, seeds) for entry in entries}
        for run in itertools.chain(*runs.values()):
            check_reusable(run, log)
        folder.mkdir(parents=True, exist_ok=True)
    errors = _run_missing(runs, log, protocol, lists, group)
    ranks: dict[str, EntryRanks] = {
        name: {(run.recipe, run.seed): done for run in of_entry if (done := _ranks(run, log, protocol))}
        for name, of_entry in runs.items()
    }
    return ranks, {entry.name: _error(entry, errors) for entry in entries}


def _split_by_time(entry: BenchmarkEntry) -> BenchmarkEntry:
    """The entry with the split of the Temporal Graph Benchmark, where it has no other split by time."""
    configs = {
        recipe: config
        if config.training.split.startswith(BY_TIME)
        else replace(config, training=replace(config.training, split=TGB_SPLIT))
        for recipe, config in entry.configs.items()
    }
    return replace(entry, configs=configs)


def _runs(entry: BenchmarkEntry, log: EventLog, folder: Path, seeds: int) -> list[BenchmarkRun]:
    runs = []
    for seed in range(1 if entry.single_seed else seeds):
        for recipe, config in entry.configs.items():
            seeded = replace(config, training=replace(config.training, seed=seed))
            name = re.sub(r"[^\w.-]+", "_", recipe.removesuffix(TOML))
            path = folder / f"{name}-{seed}"
            runs.append(BenchmarkRun(recipe, seed, resolve_for(seeded, log, path), path))
    return runs


def resolve_for(config: RunConfig, log: EventLog, folder: Path) -> RunConfig:
    """Resolves the config. Device auto accepts a finished run's device, which may be that of another machine."""
    resolved = resolve_config(config, log).training
    if config.training.device == "auto" and is_finished(folder):
        existing = read_config(folder).training
        if existing.epochs >= resolved.epochs:
            precision = existing.precision if config.training.precision == "auto" else resolved.precision
            resolved = replace(resolved, device=existing.device, precision=precision)
    return replace(config, training=resolved)


def check_reusable(run: BenchmarkRun, log: EventLog) -> None:
    """Raises an error if the run's folder holds another run. A run with fewer epochs is fine: it is resumed."""
    if not run.folder.exists():
        return
    if not is_run_folder(run.folder):
        raise DataError(f"{run.folder} exists and is not a run folder of dynedge; choose another folder.")
    check_version(run.folder)
    RunFolder(run.folder).check_log(log)
    existing, requested = flatten(read_config(run.folder)), flatten(run.config)
    for key in existing.keys() | requested.keys():
        resumable = key == EPOCHS and existing[key] < requested[key]
        if existing.get(key) != requested.get(key) and not resumable:
            raise UsageError(
                f"{run.folder} was trained with {key} = {existing.get(key)}, not {requested.get(key)}: "
                "choose another folder for the runs, or delete that one."
            )


def _ranks(run: BenchmarkRun, log: EventLog, protocol: str) -> RunRanks | None:
    return cached_ranks(run.folder, run.config, log, protocol) if is_trained(run.folder, run.config) else None


def _run_missing(
    runs: Mapping[str, Sequence[BenchmarkRun]], log: EventLog, protocol: str, lists: bool, group: ProcessGroup
) -> dict[str, str]:
    """Trains and evaluates what is missing, the first seed of every recipe first; returns errors by recipe.

    Process r of the group has every W-th run, from number r on.
    """
    ordered = sorted(itertools.chain(*runs.values()), key=lambda run: run.seed)
    missing = [run for run in ordered if _ranks(run, log, protocol) is None]
    group.wait_for_all()  # no run is trained before all know what is missing
    missing = missing[group.rank :: group.size]
    total, errors = len(missing), dict[str, str]()
    seconds: dict[str, float] = {}  # by recipe
    assert log.path is not None
    with StopSignal():
        while missing:
            run, *rest = missing
            number = total - len(missing) + 1
            if group.is_first:
                announce(f"run {number} of {total}: {run.recipe}, seed {run.seed}", _seconds_left(missing, seconds))
            output = {"lists": lists, "quiet": not group.is_first}
            result = train_in_subprocess(run.recipe, run.config, run.folder, log.path, protocol, **output)
            if result.error is None:
                seconds[run.recipe] = result.seconds
            else:
                errors[run.recipe] = f"seed {run.seed}: {result.error}" if run.seed else result.error
            missing = [other for other in rest if other.recipe not in errors]
    return {recipe: error for found in group.gather_json(errors) for recipe, error in found.items()}


def _seconds_left(missing: Sequence[BenchmarkRun], seconds: Mapping[str, float]) -> float | None:
    """Estimates from the runs so far; None before the first has finished."""
    if not seconds:
        return None
    typical = sum(seconds.values()) / len(seconds)
    return sum(seconds.get(run.recipe, typical) for run in missing)


def _error(entry: BenchmarkEntry, errors: Mapping[str, str]) -> str | None:
    """Returns the entry's error; with several recipes, each failed recipe with its error."""
    failed = {recipe: errors[recipe] for recipe in entry.configs if recipe in errors}
    if len(entry.configs) == 1:
        return next(iter(failed.values()), None)
    return "; ".join(f"{recipe}: {error}" for recipe, error in failed.items()) or None
