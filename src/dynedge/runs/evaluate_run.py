"""The ranks of a run's validation and test events: walked once and kept in the run folder, so that a second look, or
a comparison with other runs, needs no second walk.

RUN/ranks/PROTOCOL.npy holds them, PROTOCOL.json what they were made of: of another model or log, they are stale.
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch

from dynedge import __version__
from dynedge.config import flatten
from dynedge.data.log import EventLog, read_log
from dynedge.errors import DataError, UsageError
from dynedge.evaluation.breakdown import breakdown
from dynedge.evaluation.negatives import SEED
from dynedge.evaluation.protocol import PROTOCOLS, walk
from dynedge.evaluation.summary import verdict
from dynedge.runs.folder import IDS, MODEL, STATE, check_finished, load_run, read_config
from dynedge.runs.run_config import RunConfig
from dynedge.training.precision import precision
from dynedge.utils.arrays import Array
from dynedge.utils.atomic_io import file_sha256, write_atomically, write_text
from dynedge.utils.progress import Progress

PARTS = "valid", "test"


@dataclass(frozen=True, eq=False)
class Ranked:
    """A run, judged event by event."""

    run: Path
    config: RunConfig
    log: EventLog
    protocol: str
    ranks: Array  # float64: of the validation events, then the test events

    @cached_property
    def ranges(self) -> dict[str, range]:
        return self.config.training.split_of(self.log).ranges(len(self.log))

    def of(self, part: str) -> tuple[Array, Array]:
        """(ranks, users) of the events of `valid` or `test`."""
        events, start = self.ranges[part], self.ranges["valid"].start
        ranks = self.ranks[events.start - start : events.stop - start]
        return ranks, np.asarray(self.log.user[events.start : events.stop])

    def verdict(self, part: str) -> dict[str, Any]:
        groups = breakdown(self.log, self.ranges[part], self.ranges["train"].stop)
        return verdict(*self.of(part), groups)


def rank_run(folder: Path, log: Path | None = None, *, protocol: str = "full", quiet: bool = False) -> Ranked:
    """A run's ranks on `log`, else on the log it was trained on: kept ones where they fit, else walked and kept.

    The walk starts from the state at the end of training and goes through validation and test: score, then advance.
    """
    check_protocol(protocol)
    check_finished(folder)
    config = read_config(folder)
    opened = _open_log(folder, log)
    made_of = _made_of(folder, config, opened, protocol)
    ranks = _kept(folder, protocol, made_of)
    if ranks is None:
        ranks = _walk(folder, opened, protocol, quiet)
        _keep(folder, protocol, made_of, ranks)
    return Ranked(folder, config, opened, protocol, ranks)


def kept_ranks(folder: Path, config: RunConfig, log: EventLog, protocol: str) -> Ranked | None:
    """The same of a finished run, whose config and log are at hand, without a walk: None where one is due."""
    ranks = _kept(folder, protocol, _made_of(folder, config, log, protocol))
    return None if ranks is None else Ranked(folder, config, log, protocol, ranks)


def check_protocol(protocol: str) -> None:
    if protocol not in PROTOCOLS:
        raise UsageError(f"--protocol {protocol!r} should be one of: {', '.join(PROTOCOLS)}.")


def _walk(folder: Path, log: EventLog, protocol: str, quiet: bool) -> Array:
    trained = load_run(folder)
    training = trained.config.training
    if torch.device(training.device).type == "cuda" and torch.cuda.is_available():
        trained = load_run(folder, training.device)
    events = training.split_of(log).ranges(len(log))
    both = range(events["valid"].start, events["test"].stop)
    with Progress(f"ranking {folder.name}", total=len(both), quiet=quiet) as progress, precision(training):
        return walk(trained.model, log, both, trained.state, protocol=protocol, after=progress.advance)


def _open_log(folder: Path, given: Path | None) -> EventLog:
    """The log given, or the run's own; refused if a model of the run's ids has nothing to say of it."""
    known = read_log(folder / IDS)
    told = known.metadata.get("trained_on", {})
    if given is None:
        if "path" not in told:
            raise UsageError(f"{folder} does not say where its log is: dynedge evaluate {folder} LOG")
        if not Path(told["path"]).is_dir():
            raise DataError(
                f"{folder} was trained on {told['path']}, which is not there; if it has moved, say where: "
                f"dynedge evaluate {folder} LOG"
            )
    log = read_log(given or told["path"])
    for what, ids, own in (("users", log.user_ids, known.user_ids), ("items", log.item_ids, known.item_ids)):
        if not ids.equals(own):
            counts = f"{len(ids):,} {what}" if len(ids) != len(own) else f"as many {what}, but other ones"
            raise DataError(
                f"{log.path} does not fit {folder}: it has {counts}, and the run was trained on {len(own):,} "
                f"{what}; pass the log it was trained on, or train on this one."
            )
    if log.features.shape[1] != known.features.shape[1]:
        raise DataError(
            f"{log.path} does not fit {folder}: its events have {log.features.shape[1]} features, and those the run "
            f"was trained on {known.features.shape[1]}; pass the log it was trained on, or train on this one."
        )
    if log.fingerprint != told.get("fingerprint"):
        same = f"dynedge: warning: {log.path} has the ids of {folder}'s log and other events"
        print(f"{same}; the walk starts at the end of its own training part.", file=sys.stderr)
    return log


def _made_of(folder: Path, config: RunConfig, log: EventLog, protocol: str) -> dict[str, Any]:
    """Whatever another rank would follow from."""
    return {
        "dynedge": __version__,
        "protocol": protocol,
        "seed": None if PROTOCOLS[protocol] is None else SEED,
        "log": log.fingerprint,
        "split": str(config.training.split_of(log)),
        "model": file_sha256(folder / MODEL),
        "state": file_sha256(folder / STATE),
        "settings": {key: str(value) for key, value in flatten(config.model).items()},
        "precision": config.training.precision,
    }


def _kept(folder: Path, protocol: str, made_of: dict[str, Any]) -> Array | None:
    path = folder / "ranks" / f"{protocol}.npy"
    try:
        told = json.loads(path.with_suffix(".json").read_bytes())
        if told == {**made_of, "sha256": file_sha256(path)}:
            return np.load(path, allow_pickle=False)
    except (OSError, ValueError):
        pass  # none, or half of one
    return None


def _keep(folder: Path, protocol: str, made_of: dict[str, Any], ranks: Array) -> None:
    """The ranks first: what the JSON says is true of a file that is there. Where nothing can be kept, it is said."""
    path = folder / "ranks" / f"{protocol}.npy"
    try:
        path.parent.mkdir(exist_ok=True)
        write_atomically(path, lambda beside: _save(beside, ranks))
        write_text(path.with_suffix(".json"), json.dumps({**made_of, "sha256": file_sha256(path)}, indent=1) + "\n")
    except OSError as error:
        print(f"dynedge: warning: {path} could not be written ({error.strerror}).", file=sys.stderr)


def _save(path: Path, ranks: Array) -> None:
    with open(path, "wb") as file:  # np.save would add .npy to a name
        np.save(file, ranks, allow_pickle=False)
