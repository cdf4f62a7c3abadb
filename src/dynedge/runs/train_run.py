"""Trains a model in a run folder."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

from dynedge.config import flatten, to_toml
from dynedge.data.log import EventLog, read_log
from dynedge.errors import UsageError
from dynedge.models.base import Model
from dynedge.models.capabilities import TrainsSegments
from dynedge.models.registry import entries, find_entry, models_with
from dynedge.runs.compile_ahead import compiling_ahead
from dynedge.runs.folder import IDS, RUN_INFO, RunFolder, check_resumable, update_info
from dynedge.runs.initial_vectors import start_from_vectors
from dynedge.runs.run_config import RunConfig, build_model, resolve_config
from dynedge.runs.trained_log import as_trained
from dynedge.training.logging import TrainingLogger
from dynedge.training.loop import fit
from dynedge.training.segments import check_segments
from dynedge.training.train_state import TrainState
from dynedge.utils.process_group import ProcessGroup, check_own_gpus, local_device
from dynedge.utils.signals import StopSignal

VECTORS_FROM = "vectors_from"  # key of run_info.json


def train_run(
    run: RunFolder,
    config: RunConfig,
    log: EventLog,
    *,
    stop: StopSignal | None = None,
    quiet: bool = False,
    track: Sequence[str] = (),
    start_from: Path | None = None,
) -> tuple[RunConfig, TrainState]:
    """Trains a model and writes the run folder; `run` has been entered. The processes of its group train together.

    `track` names trackers (training/trackers.py).
    `start_from` is a run from whose vectors the model starts (initial_vectors.py); a resumed run has stored it.
    Returns the config resolved for this log and machine, and the final training state.
    """
    group = run.group
    with group.together():
        config = resolve_config(config, log)
        _check_segments(config, group)
        check_own_gpus(config.training.device, group)
        if run.resume and run.exists:
            update = update_info(run.folder)
            if update is not None:
                command = f"dynedge update {update['parent']} LOG --out {run.folder} --resume"
                raise UsageError(f"{run.folder} is an update of {update['parent']}; resume it with: {command}")
            check_resumable(run.config(), config, run.folder)
            log = as_trained(log, read_log(run.folder / IDS))
            run.check_log(log)
    digest = hashlib.sha256(to_toml(config).encode()).hexdigest()
    group.check_same({"config": digest, "log": log.fingerprint})
    here = replace(config, training=replace(config.training, device=local_device(config.training.device)))
    model = _build_model(here, log, group)  # before the folder is created: an invalid setting leaves nothing behind
    if run.resume and run.exists:
        stored = json.loads((run.folder / RUN_INFO).read_bytes()).get(VECTORS_FROM)
        start_from = None if stored is None or run.checkpoints.load() is not None else Path(stored)
    with group.together():
        check_segments(
            config.training.segments, group.size, model.num_windows(config.training.train_valid_ranges(log)[0].stop)
        )
        if start_from is not None:
            start_from_vectors(model, log, start_from)
    folder = run.folder if group.is_first else None
    logger = TrainingLogger(folder, quiet=quiet or folder is None, track=track, settings=flatten(config))
    if log.one_population and not find_entry(config.name).one_population:
        others = ", ".join(name for name, entry in entries().items() if entry.one_population)
        logger.message(
            f"{config.name} has separate vectors for users and items, although here they are the same entities; "
            f"models with one: {others}"
        )
    vectors_from = {} if start_from is None else {VECTORS_FROM: os.path.abspath(start_from)}
    with group.together():
        if group.is_first:
            run.begin(config, log, {"parameters": model.num_parameters} | vectors_from | model.run_info())
    arguments = {"checkpoints": run.checkpoints, "logger": logger, "stop": stop, "group": group}
    with compiling_ahead(config, log) if group.is_first else nullcontext():
        train_state = fit(model, log, here.training, **arguments)  # type: ignore[arg-type]
    run.finish(train_state, config, log)
    return config, train_state


def _check_segments(config: RunConfig, group: ProcessGroup) -> None:
    """Raises UsageError unless the model can train the segments of the config, shared by the processes."""
    entry, segments = find_entry(config.name), config.training.segments
    if segments > 1 and not entry.model.supports(TrainsSegments, config.model):
        known = ", ".join(models_with(TrainsSegments))
        raise UsageError(
            f"--segments {segments}: the model {config.name} does not train segments side by side; these do: {known}."
        )
    if segments == 1 and group.size > 1:
        raise UsageError(
            f"{group.size} processes share the segments of an epoch, and there is one: choose --segments, a multiple "
            f"of {group.size}."
        )
    check_segments(segments, group.size)


def _build_model(config: RunConfig, log: EventLog, group: ProcessGroup) -> Model:
    """The model; in the first process first, which writes the plan that the others read."""
    model = None
    for first in (True, False):
        with group.together():
            if group.is_first == first:
                model = build_model(config, log)
    assert model is not None
    return model
