"""Evaluates a run: the ranks of its validation and test events, cached in the run folder.

RUN/ranks/PROTOCOL.npy holds the ranks (evaluation_cache.py).
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np

from dynedge import __version__
from dynedge.config import flatten
from dynedge.data.id_index import GrowableIdIndex
from dynedge.data.log import EventLog, read_log
from dynedge.data.run_rows import RunIds, encode_log
from dynedge.data.splits import BY_TIME
from dynedge.data.stored_negatives import negatives_checksum
from dynedge.errors import DataError, UsageError
from dynedge.evaluation.board import TGB, TGB_SPLIT
from dynedge.evaluation.breakdown import breakdown
from dynedge.evaluation.negatives import SEED
from dynedge.evaluation.protocol import ONLINE, PROTOCOLS, rank_events
from dynedge.evaluation.summary import summarize
from dynedge.models.capabilities import Growable, capable
from dynedge.models.registry import find_entry
from dynedge.runs.evaluation_cache import FOLDER, read_cached, write_cached
from dynedge.runs.folder import IDS, MODEL, STATE, LoadedRun, check_finished, load_run, read_config
from dynedge.runs.online_evaluation import online_key, rank_run_online
from dynedge.runs.run_config import RunConfig, usable_device
from dynedge.runs.trained_log import as_trained
from dynedge.training.precision import autocast
from dynedge.utils.array_type import Array
from dynedge.utils.file_checks import remembered_sha256
from dynedge.utils.process_group import ALONE, ProcessGroup, local_device
from dynedge.utils.progress import Progress

PARTS = "valid", "test"
FROM_ITS_SPLIT = "evaluation starts at the end of its training part"


@dataclass(frozen=True, eq=False)
class RunRanks:
    """The ranks of a run's validation and test events."""

    run: Path
    config: RunConfig
    log: EventLog
    protocol: str
    ranks: Array  # float64: of the validation events, then of the test events
    rate: float | None = None  # protocol `online`: the factor of the learning rates chosen on validation events

    @cached_property
    def ranges(self) -> dict[str, range]:
        """Positions of the events of each part of the split."""
        return self.config.training.resolve_split(self.log).ranges(len(self.log))

    def part(self, name: str) -> tuple[Array, Array]:
        """Returns (ranks, users) of the events of `valid` or `test`."""
        events, start = self.ranges[name], self.ranges["valid"].start
        ranks = self.ranks[events.start - start : events.stop - start]
        return ranks, np.asarray(self.log.user[events.start : events.stop])

    def summary(self, part: str) -> dict[str, Any]:
        """Returns the metrics of `valid` or `test` with confidence intervals and a breakdown by groups of events."""
        groups = breakdown(self.log, self.ranges[part], self.ranges["train"].stop)
        return summarize(*self.part(part), groups)


def evaluate_run(
    folder: Path,
    log: Path | EventLog | None = None,
    *,
    protocol: str = "full",
    quiet: bool = False,
    group: ProcessGroup = ALONE,
) -> RunRanks:
    """Returns a run's ranks on `log`, by default the log it was trained on; cached ranks are used if they are valid.

    The processes of a `group` share the events to rank; the first one writes the cache.

    Evaluation starts from the state at the end of training and replays the validation and test events: each is
    ranked, then the state is updated with it; under protocol `online` the parameters too.
    """
    with group.together():
        check_protocol(protocol)
        if protocol == ONLINE and group.size > 1:
            raise UsageError(f"--protocol {ONLINE} runs in one process; start it without torchrun.")
        check_finished(folder)
        config = read_config(folder)
        opened = _open_log(folder, config, log)
        if protocol == TGB:
            check_board_split(config, opened, folder)
    key = cache_key(folder, config, opened, protocol)
    group.check_same({"log": opened.fingerprint, "run": key["model"]})
    cached = _read_ranks(folder, protocol, key, len(_ranked_events(config, opened)))
    if cached is None or not all(group.gather_json(cached is not None)):
        cached = _rank_events(folder, opened, protocol, quiet or not group.is_first, group)
        if group.is_first:
            _write_ranks(folder, protocol, key, *cached)
    return RunRanks(folder, config, opened, protocol, *cached)


def cached_ranks(folder: Path, config: RunConfig, log: EventLog, protocol: str) -> RunRanks | None:
    """Returns the cached ranks of a finished run, or None if it has to be evaluated."""
    key = cache_key(folder, config, log, protocol)
    cached = _read_ranks(folder, protocol, key, len(_ranked_events(config, log)))
    return None if cached is None else RunRanks(folder, config, log, protocol, *cached)


def _ranked_events(config: RunConfig, log: EventLog) -> range:
    """Positions of the validation and test events."""
    events = config.training.resolve_split(log).ranges(len(log))
    return range(events["valid"].start, events["test"].stop)


def check_protocol(protocol: str) -> None:
    if protocol not in (known := (*PROTOCOLS, TGB, ONLINE)):
        raise UsageError(f"--protocol {protocol!r} must be one of: {', '.join(known)}.")


def check_board_split(config: RunConfig, log: EventLog, folder: Path) -> None:
    """Raises UsageError unless the run has a split by time or, where the log has a board's negatives, the log's."""
    if negatives_checksum(log) is None:
        fits, wanted, kind = config.training.split.startswith(BY_TIME), TGB_SPLIT, "a split by time"
    else:
        fits, wanted, kind = config.training.resolve_split(log) == log.split, str(log.split), "the split of the board"
    if not fits:
        raise UsageError(
            f"--protocol {TGB} is for {kind}, and {folder} has {config.training.split}; train it with: "
            f"dynedge train {log.path or 'LOG'} --split {wanted}"
        )


def _rank_events(
    folder: Path, log: EventLog, protocol: str, quiet: bool, group: ProcessGroup
) -> tuple[Array, float | None]:
    if protocol == ONLINE:
        ids = read_log(folder / IDS)
        if (log.num_users, log.num_items) != (ids.num_users, ids.num_items):
            raise DataError(
                f"--protocol {ONLINE} trains, and {log.path} has users or items that {folder} was not trained on; "
                f"continue the run first: dynedge update {folder} {log.path} --out NEW_RUN"
            )
        online = rank_run_online(folder, log, quiet=quiet)
        return online.ranks, online.rate
    run = load_for(folder, log)
    training, both = run.config.training, _ranked_events(run.config, log)
    with Progress(f"ranking {folder.name}", total=len(both), quiet=quiet) as progress, autocast(training):
        model, state, advance = run.model, run.state, progress.advance
        shared: dict[str, Any] = {"shares": training.segments, "group": group}
        return rank_events(model, log, both, state, protocol=protocol, on_progress=advance, **shared), None


def load_for(folder: Path, log: EventLog) -> LoadedRun:
    """Loads a run to evaluate it on a log in its rows; what the log has gained gets rows without training."""
    run = load_run(folder, local_device(usable_device(read_config(folder).training)))
    if (log.num_users, log.num_items) != (run.log.num_users, run.log.num_items):
        growable = capable(run.model, Growable)
        assert growable is not None, "_open_log checks it"
        growable.grow(log.num_users, log.num_items, run.state)
    return run


def _open_log(folder: Path, config: RunConfig, given: Path | EventLog | None) -> EventLog:
    """Returns the given log, or the run's, in the run's rows; ids that the run does not know get rows after them."""
    ids = read_log(folder / IDS)
    trained_on = ids.metadata.get("trained_on", {})
    if given is None:
        if "path" not in trained_on:
            raise UsageError(f"{folder} does not state where its log is; name it: dynedge evaluate {folder} LOG")
        if not Path(trained_on["path"]).is_dir():
            raise DataError(
                f"{folder} was trained on {trained_on['path']}, which does not exist; if it was moved, name it: "
                f"dynedge evaluate {folder} LOG"
            )
    log = as_trained(given if isinstance(given, EventLog) else read_log(given or trained_on["path"]), ids)
    name = log.path or "the log"
    advice = "pass the log it was trained on, or train on this one"
    if log.features.shape[1] != ids.features.shape[1]:
        raise DataError(
            f"{name} does not fit {folder}: its events have {log.features.shape[1]} features, and those the run "
            f"was trained on have {ids.features.shape[1]}; {advice}."
        )
    if log.user_ids.equals(ids.user_ids) and log.item_ids.equals(ids.item_ids):
        if log.fingerprint != trained_on.get("fingerprint"):
            _warn(f"{name} has the same ids as the log of {folder}, but different events; {FROM_ITS_SPLIT}.")
        return log
    users = GrowableIdIndex(ids.user_ids)
    items = users if ids.one_population else GrowableIdIndex(ids.item_ids)
    model = find_entry(config.name).model
    can_grow = issubclass(model, Growable) and model.supports(Growable, config.model)
    encoded = encode_log(RunIds(ids, users, items, can_grow), log)
    counts = f"{len(users.added):,} users and {len(items.added):,} items that {folder} was not trained on"
    _warn(f"{name} has {counts}; they get rows without training, and {FROM_ITS_SPLIT}.")
    return encoded


def _warn(message: str) -> None:
    print(f"dynedge: warning: {message}", file=sys.stderr)


def cache_key(folder: Path, config: RunConfig, log: EventLog, protocol: str) -> dict[str, Any]:
    """Returns everything the ranks depend on."""
    return {
        "dynedge": __version__,
        "protocol": protocol,
        "seed": None if PROTOCOLS.get(protocol) is None else SEED,
        "log": log.fingerprint,
        "split": str(config.training.resolve_split(log)),
        "model": remembered_sha256(folder / MODEL),
        "state": remembered_sha256(folder / STATE),
        "settings": {key: str(value) for key, value in flatten(config.model).items()},
        "precision": config.training.precision,
        **(online_key(folder) if protocol == ONLINE else {}),
        **({"negatives": negatives_checksum(log)} if protocol == TGB else {}),
    }


def _read_ranks(folder: Path, protocol: str, key: dict[str, Any], events: int) -> tuple[Array, float | None] | None:
    """Returns the cached ranks of this many events and the chosen rate, or None."""

    def load(path: Path, extra: dict[str, Any]) -> tuple[Array, float | None] | None:
        ranks, rate = np.load(path, allow_pickle=False), extra.get("chosen_rate")
        fits = ranks.shape == (events,) and ranks.dtype == np.float64 and bool((ranks >= 1).all())
        return (ranks, rate) if fits and isinstance(rate, float | int | None) else None

    return read_cached(_ranks_file(folder, protocol), key, load)


def _write_ranks(folder: Path, protocol: str, key: dict[str, Any], ranks: Array, rate: float | None) -> None:
    extra = {} if rate is None else {"chosen_rate": rate}
    save = partial(np.save, arr=ranks, allow_pickle=False)
    write_cached(_ranks_file(folder, protocol), key, save, **extra)


def _ranks_file(folder: Path, protocol: str) -> Path:
    return folder / FOLDER / f"{protocol}.npy"
