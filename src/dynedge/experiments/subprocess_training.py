"""Training of one run of an experiment in a subprocess, so that its failure does not affect the other runs."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from dynedge.data.log import read_log
from dynedge.models.registry import Entry, entries, use_only
from dynedge.runs.evaluate_run import evaluate_run
from dynedge.runs.folder import RunFolder, is_finished, read_config
from dynedge.runs.list_evaluation import evaluate_lists
from dynedge.runs.run_config import RunConfig
from dynedge.runs.train_run import train_run
from dynedge.utils.progress import clock
from dynedge.utils.signals import StopSignal
from dynedge.utils.subprocess_worker import SubprocessError, run_in_subprocess


@dataclass(frozen=True)
class TrainingResult:
    """Outcome of a run that was trained in a subprocess."""

    seconds: float
    error: str | None  # one sentence if training or evaluation failed


def train_in_subprocess(
    title: str,
    config: RunConfig,
    folder: Path,
    log: Path,
    protocol: str | None = None,
    *,
    lists: bool = False,
    quiet: bool = False,
) -> TrainingResult:
    """Trains a run in a subprocess, resuming it if its folder exists; then evaluates it if a protocol is given.

    `lists`: its recommended lists too. `quiet`: no progress.

    `title` names the run in the message about a failure on stderr.
    """
    started, error = time.monotonic(), None
    try:
        run_in_subprocess(_train, entries(), config, folder, log, protocol, lists, quiet)
    except SubprocessError as failure:
        error = str(failure)
        print(f"{title} failed: {error}", file=sys.stderr, flush=True)
    return TrainingResult(time.monotonic() - started, error)


def announce(title: str, seconds_left: float | None) -> None:
    """Prints on stderr what starts now and the estimated time left of the experiment, if there is an estimate."""
    left = "" if seconds_left is None else f"; about {clock(seconds_left)} left"
    print(title + left, file=sys.stderr, flush=True)


def is_trained(folder: Path, config: RunConfig) -> bool:
    """Returns whether `folder` holds a finished run with this very config."""
    return is_finished(folder) and read_config(folder) == config


def _train(
    models: Mapping[str, Entry],
    config: RunConfig,
    folder: Path,
    log: Path,
    protocol: str | None,
    lists: bool,
    quiet: bool,
) -> None:
    use_only(models)
    with StopSignal() as stop:
        if not is_trained(folder, config):
            with RunFolder(folder, resume=True) as run:
                train_run(run, config, read_log(log), stop=stop, quiet=quiet)
        if protocol is not None:
            ranks = evaluate_run(folder, log, protocol=protocol, quiet=quiet)
            if lists:
                evaluate_lists(ranks, quiet=quiet)
