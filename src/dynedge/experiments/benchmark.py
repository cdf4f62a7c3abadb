"""Models trained and judged side by side on one log: every training in a process of its own, all runs kept.

RUNS/MODEL-SEED is an ordinary run folder. What is trained and ranked there is not done again, so that a tournament
goes on where it stopped, and another protocol or a further model costs only what is new about it.
"""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from dynedge.config import flatten
from dynedge.data.log import EventLog, read_log
from dynedge.errors import DataError, UsageError
from dynedge.experiments.entries import TOML, Entrant, entrants
from dynedge.experiments.leaderboard import standings
from dynedge.models.registry import Entry, entries, find_entry, use_only
from dynedge.runs.evaluate_run import Ranked, check_protocol, kept_ranks, rank_run
from dynedge.runs.folder import STATE, Run, is_run, read_config
from dynedge.runs.run_config import RunConfig, resolve_config
from dynedge.runs.train_run import train_run
from dynedge.utils.progress import clock
from dynedge.utils.signals import Stop
from dynedge.utils.subprocess_worker import Failed, apart

EPOCHS = "training.epochs"


@dataclass(frozen=True)
class Match:
    """One training: a recipe with a seed, and its run folder."""

    recipe: str
    seed: int
    config: RunConfig
    folder: Path


def compare_log(
    log: EventLog,
    names: Sequence[str],
    runs: Path,
    *,
    seeds: int = 3,
    epochs: int | None = None,
    protocol: str = "full",
) -> dict[str, Any]:
    """Train and rank whatever is missing in `runs`, and tell of all: plain values, as `--json` prints them."""
    check_protocol(protocol)
    entered = entrants(names, epochs)
    matches = {one.name: _matches(one, log, runs, seeds) for one in entered}
    for match in (match for some in matches.values() for match in some):
        _check_same(match, log)
    runs.mkdir(parents=True, exist_ok=True)
    failed = _play(matches, log, protocol)
    played = {
        name: {(match.recipe, match.seed): ranked for match in some if (ranked := _done(match, log, protocol))}
        for name, some in matches.items()
    }
    return {
        "log": str(log.path),
        "protocol": protocol,
        "items": log.num_items,
        "runs": str(runs),
        **standings(played, {one.name: _why(one, failed) for one in entered}),
    }


def _matches(entrant: Entrant, log: EventLog, runs: Path, seeds: int) -> list[Match]:
    found = []
    for seed in range(1 if entrant.plain else seeds):
        for recipe, config in entrant.configs.items():
            entry = find_entry(config.name)
            seeded = replace(config, training=replace(config.training, seed=seed))
            name = re.sub(r"[^\w.-]+", "_", recipe.removesuffix(TOML))
            folder = runs / f"{name}-{seed}"
            found.append(Match(recipe, seed, _settled(seeded, log, entry, folder), folder))
    return found


def _settled(config: RunConfig, log: EventLog, entry: Entry, folder: Path) -> RunConfig:
    """If any device will do, so does the one a finished run was trained on, be it on another machine."""
    now = resolve_config(config, log).training
    if config.training.device == "auto" and _finished(folder):
        then = read_config(folder).training
        if then.epochs >= now.epochs:
            precision = then.precision if config.training.precision == "auto" else now.precision
            now = replace(now, device=then.device, precision=precision)
    return replace(config, training=now)


def _check_same(match: Match, log: EventLog) -> None:
    """Refuse, before any work, a folder that is something else. More epochs than it had are fine: it goes on."""
    if not match.folder.exists():
        return
    if not is_run(match.folder):
        raise DataError(f"{match.folder} exists and is not a run folder of dynedge; choose another --runs.")
    Run(match.folder).check_log(log)
    before, now = flatten(read_config(match.folder)), flatten(match.config)
    for key in before.keys() | now.keys():
        more = key == EPOCHS and before[key] < now[key]
        if before.get(key) != now.get(key) and not more:
            raise UsageError(
                f"{match.folder} was trained with {key} = {before.get(key)}, not {now.get(key)}: "
                "choose another --runs, or delete that folder."
            )


def _trained(match: Match) -> bool:
    return _finished(match.folder) and read_config(match.folder) == match.config


def _finished(folder: Path) -> bool:
    return is_run(folder) and (folder / STATE).is_file()


def _done(match: Match, log: EventLog, protocol: str) -> Ranked | None:
    return kept_ranks(match.folder, match.config, log, protocol) if _trained(match) else None


def _play(matches: Mapping[str, Sequence[Match]], log: EventLog, protocol: str) -> dict[str, str]:
    """All that is due, one seed of everyone before the next one: {recipe: why it failed}."""
    every = sorted((match for some in matches.values() for match in some), key=lambda match: match.seed)
    due = [match for match in every if _done(match, log, protocol) is None]
    failed: dict[str, str] = {}
    took: dict[str, float] = {}
    with Stop():
        while due:
            match, *rest = due
            left = _left(due, took)
            print(f"{match.recipe}, seed {match.seed}: {len(due)} to go{left}", file=sys.stderr, flush=True)
            began = time.monotonic()
            try:
                apart(_train_and_rank, entries(), match, log.path, protocol)
                took[match.recipe] = time.monotonic() - began
            except Failed as why:
                failed[match.recipe] = f"seed {match.seed}: {why}" if match.seed else str(why)
                print(f"{match.recipe} failed: {why}", file=sys.stderr, flush=True)
            due = [one for one in rest if one.recipe not in failed]
    return failed


def _left(due: Sequence[Match], took: Mapping[str, float]) -> str:
    """Of the time, as far as what was played tells."""
    if not took:
        return ""
    typical = sum(took.values()) / len(took)
    return f", about {clock(sum(took.get(match.recipe, typical) for match in due))} left"


def _train_and_rank(models: Mapping[str, Entry], match: Match, log: Path, protocol: str) -> None:
    use_only(models)
    with Stop() as stop:
        if not _trained(match):
            with Run(match.folder, resume=True) as run:
                train_run(run, match.config, read_log(log), stop=stop)
        rank_run(match.folder, log, protocol=protocol)


def _why(entrant: Entrant, failed: Mapping[str, str]) -> str | None:
    """Of several recipes: who failed, each with its reason."""
    reasons = {recipe: failed[recipe] for recipe in entrant.configs if recipe in failed}
    if len(entrant.configs) == 1:
        return next(iter(reasons.values()), None)
    return "; ".join(f"{recipe}: {why}" for recipe, why in reasons.items()) or None
