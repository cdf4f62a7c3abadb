"""Ranks a run's validation and test events with online learning: protocol `online`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from dynedge.data.log import EventLog
from dynedge.evaluation.metrics import mean
from dynedge.runs.folder import load_optimizer, load_run, newest_checkpoint, read_config
from dynedge.runs.run_config import usable_device
from dynedge.training.online import (
    AVERAGED_WINDOWS,
    BUFFERED_WINDOWS,
    CALIBRATION_EVENTS,
    LEAST_WINDOWS,
    RATES,
    REPEATED_WINDOWS,
    REPLAYED_WINDOWS,
    WINDOW,
    OnlineLearner,
    online_window,
    rank_online,
)
from dynedge.utils.array_type import Array
from dynedge.utils.progress import Progress


@dataclass(frozen=True, eq=False)
class OnlineRanks:
    ranks: Array  # float64: of the validation events, then of the test events
    rate: float  # factor of the learning rates, chosen on validation events


def rank_run_online(folder: Path, log: EventLog, *, quiet: bool = False) -> OnlineRanks:
    """Ranks validation events under each factor of the learning rates; the best one goes on to the test events."""
    training = read_config(folder).training
    parts = training.resolve_split(log).ranges(len(log))
    valid, test = parts["valid"], parts["test"]
    window = online_window(valid)
    best: tuple[float, Array, OnlineLearner] | None = None
    total = len(valid) * len(RATES) + len(test)
    with Progress(f"ranking {folder.name}, learning online", total=total, quiet=quiet) as progress:
        for rate in RATES:
            learner = open_learner(folder, rate)
            ranks = rank_online(learner, log, valid, window=window, on_progress=progress.advance)
            mrr = mean("mrr", ranks) or 0.0
            if best is None or mrr > best[0]:
                best = mrr, ranks, learner
        assert best is not None
        _, ranks, learner = best
        later = rank_online(learner, log, test, window=window, on_progress=progress.advance)
        return OnlineRanks(np.concatenate([ranks, later]), learner.rate)


def open_learner(folder: Path, rate: float, average: int = AVERAGED_WINDOWS) -> OnlineLearner:
    """A run's model at the end of its training, with its optimizer, as an online learner."""
    training = read_config(folder).training
    run = load_run(folder, usable_device(training))
    optimizer = load_optimizer(folder, run.model, training)
    return OnlineLearner(run.model, optimizer, run.state, training, rate, average)


def online_key(folder: Path) -> dict[str, Any]:
    """What ranks depend on under this protocol, beyond the others."""
    settings = {
        "rates": list(RATES),
        "window": [WINDOW, LEAST_WINDOWS],
        "replay": [REPEATED_WINDOWS, REPLAYED_WINDOWS, BUFFERED_WINDOWS],
        "average": AVERAGED_WINDOWS,
        "calibration": CALIBRATION_EVENTS,
    }
    checkpoint = newest_checkpoint(folder)
    return {**settings, "optimizer": None if checkpoint is None else checkpoint["sha256"]}
