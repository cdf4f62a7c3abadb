"""Incremental training: continues a finished run on a log that has gained events, as a new run.

The parent's parameters and optimizer state are the start, with new rows for new users and items. The states advance
over the old events; training covers the new training events and, for replay, some of the latest old ones.
"""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch

from dynedge.config import option
from dynedge.data.log import EventLog
from dynedge.data.windows import Window
from dynedge.errors import DataError, UsageError
from dynedge.evaluation.protocol import rank_events
from dynedge.models.base import LogShape, Model, State
from dynedge.models.entity_rows import grown_moments
from dynedge.models.registry import find_entry
from dynedge.runs.folder import (
    MODEL,
    UPDATE,
    LoadedRun,
    RunFolder,
    check_finished,
    load_optimizer,
    load_run,
    update_info,
)
from dynedge.runs.run_config import RunConfig, place_model, resolve_config
from dynedge.training.config import TrainingConfig
from dynedge.training.logging import TrainingLogger
from dynedge.training.loop import Continuation, fit
from dynedge.training.precision import autocast
from dynedge.training.train_state import TrainState
from dynedge.utils.array_type import Array
from dynedge.utils.atomic_io import file_sha256
from dynedge.utils.progress import Progress
from dynedge.utils.signals import StoppedBySignal, StopSignal
from dynedge.utils.tensor_io import Tensors

OBSERVED = 4096  # events by which states advance at once


@dataclass(frozen=True)
class UpdateConfig:
    """Settings of an update. The defaults were chosen on validation events (docs/results.md)."""

    epochs: int = option(2, "Number of passes over the new training events.", least=1)
    replay: float = option(1.0, "Old training events trained on again, as a share of the new ones.", least=0)
    rate: float = option(0.5, "Factor of the run's learning rates.", least=0)


def update_run(
    parent: Path,
    log: EventLog,
    run: RunFolder,
    settings: UpdateConfig | None = None,
    *,
    split: str | None = None,
    stop: StopSignal | None = None,
    quiet: bool = False,
) -> tuple[RunConfig, TrainState]:
    """Continues the run `parent` on `log` and writes the run folder `run`, which has been entered.

    Returns the config and the final training state, as `train_run` does. The config is the parent's; `log` is split
    in the same shares as the parent's log, so that training now ends later, or else by `split`.
    """
    settings, stop = settings or UpdateConfig(), stop or StopSignal()
    check_finished(parent)
    if run.folder == Path(os.path.abspath(parent)):
        raise UsageError(f"--out {run.folder} is the run to update; choose another folder.")
    trained = load_run(parent)
    config = resolve_config(trained.config, log)
    if split is not None:
        config = replace(config, training=replace(config.training, split=split))
    before = continued_from(parent, trained, log, config.training)
    train, _ = config.training.train_valid_ranges(log)
    first = max(0, before - round(settings.replay * (train.stop - before)))
    info = {
        "parent": str(Path(os.path.abspath(parent))),
        "parent_model": file_sha256(parent / MODEL),
        "trained_events": before,
        "new_events": train.stop - before,
        "first_event": first,
        **asdict(settings),
    }
    if run.resume and run.exists:
        check_same_update(run, info)
        run.check_log(log)
    model, moments = grown_model(parent, trained, log, config.training)
    logger = TrainingLogger(run.folder, quiet=quiet)
    with stop.deferred():
        state = state_at(model, log, first, config.training, stop, quiet=quiet)
    run.begin(config, log, {"parameters": model.num_parameters, UPDATE: info})
    continuation = Continuation(first, state, moments, settings.rate)
    training = replace(config.training, epochs=settings.epochs, patience=0)
    arguments = {"checkpoints": run.checkpoints, "logger": logger, "stop": stop}
    train_state = fit(model, log, training, continuation=continuation, **arguments)  # type: ignore[arg-type]
    run.finish(train_state, config, log)
    return config, train_state


def continued_from(folder: Path, trained: LoadedRun, log: EventLog, training: TrainingConfig) -> int:
    """The number of training events of a run; raises DataError unless `log` continues the run's log with more."""
    ids, trained_on = trained.log, trained.log.metadata.get("trained_on", {})
    events, name = int(trained_on.get("events", 0)), log.path or "this log"
    where = f"{name} does not continue the log of {folder}"
    if "prefix_checksum" not in trained_on:
        raise DataError(f"{folder} has no checksum of its log: train it again with this version of dynedge.")
    if len(log) < events:
        raise DataError(f"{where}: it has {len(log):,} events, and the run's log has {events:,}.")
    for kind, now, then in (
        ("events", log.features.shape[1], ids.features.shape[1]),
        ("items", len(log.category_ids), len(ids.category_ids)),
        ("users", len(log.user_category_ids), len(ids.user_category_ids)),
    ):
        if now != then:
            raise DataError(f"{where}: its {kind} have {now} features, and those of the run's log {then}.")
    if log.prefix_checksum(events) != trained_on["prefix_checksum"]:
        raise DataError(
            f"{where}: its first {events:,} events are not those of the run's log; make the longer log with: "
            "dynedge append LOG FILE"
        )
    for kind, found, expected in (("users", log.user_ids, ids.user_ids), ("items", log.item_ids, ids.item_ids)):
        if not found.starts_with(expected):
            raise DataError(f"{where}: its first {len(expected):,} {kind} are not those of the run's log.")
    before = trained.config.training.resolve_split(log, events).bounds(events)[0]
    end = training.resolve_split(log).bounds(len(log))[0]
    if end <= before:
        raise DataError(
            f"{name} adds nothing to train on: of its {len(log):,} events {end:,} are for training, and {folder} was "
            f"trained on {before:,}."
        )
    return before


def grown_model(folder: Path, trained: LoadedRun, log: EventLog, training: TrainingConfig) -> tuple[Model, Tensors]:
    """The run's model with rows for the users and items of `log`, and Adam's moments."""
    model, shape = trained.model, LogShape.of(log)
    moments = load_optimizer(folder, model, training).tensors()
    tensors = model.grown_tensors(shape, training.seed)
    grown = find_entry(trained.config.name).model.restore(trained.config.model, shape, tensors)
    grown = place_model(grown, training)
    grown.load_state_dict(tensors)  # again: restoring in float32 lost bits of float64
    return grown, grown_moments(moments, model.entity_rows(), model.shape, shape)


@torch.no_grad()
def state_at(
    model: Model, log: EventLog, end: int, training: TrainingConfig, stop: StopSignal, *, quiet: bool
) -> State:
    """The state after the log's first `end` events, under the model's parameters."""
    state = model.eval().start()
    with Progress("advancing states", total=end, quiet=quiet) as progress, autocast(training):
        for start in range(0, end, OBSERVED):
            window = Window(log, range(start, min(start + OBSERVED, end)))
            model.observe(window, state)
            progress.advance(len(window))
            if stop.received is not None:
                raise StoppedBySignal(stop.received)
    return state


def ranks_without_training(folder: Path, log: EventLog, events: range) -> Array:
    """float64[events]: ranks under the parameters of a run whose log `log` continues, from the state before them."""
    trained = load_run(folder)
    training = resolve_config(trained.config, log).training
    model, _ = grown_model(folder, trained, log, training)
    state = state_at(model, log, events.start, training, StopSignal(), quiet=True)
    with autocast(training):
        return rank_events(model, log, events, state, protocol=training.validation_protocol(log))


def check_same_update(run: RunFolder, info: dict[str, Any]) -> None:
    """Raises UsageError unless the run to resume is this update."""
    started = update_info(run.folder)
    if started is None:
        raise UsageError(f"{run.folder} is not an update of a run: it cannot be resumed as one.")
    for name, value in info.items():
        if started.get(name) != value:
            started_with = f"{name.replace('_', ' ')} {started.get(name)}, not {value}"
            raise UsageError(
                f"{run.folder} was started with {started_with}: resume with the same value, or choose another --out."
            )
