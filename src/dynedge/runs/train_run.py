"""Trains a model in a run folder."""

from __future__ import annotations

import json
import os
from pathlib import Path

from dynedge.data.log import EventLog, read_log
from dynedge.errors import UsageError
from dynedge.runs.compile_ahead import compiling_ahead
from dynedge.runs.folder import IDS, RUN_INFO, RunFolder, check_resumable, update_info
from dynedge.runs.initial_vectors import start_from_vectors
from dynedge.runs.run_config import RunConfig, build_model, resolve_config
from dynedge.runs.trained_log import as_trained
from dynedge.training.logging import TrainingLogger
from dynedge.training.loop import fit
from dynedge.training.train_state import TrainState
from dynedge.utils.signals import StopSignal

VECTORS_FROM = "vectors_from"  # key of run_info.json


def train_run(
    run: RunFolder,
    config: RunConfig,
    log: EventLog,
    *,
    stop: StopSignal | None = None,
    quiet: bool = False,
    tensorboard: bool = False,
    start_from: Path | None = None,
) -> tuple[RunConfig, TrainState]:
    """Trains a model and writes the run folder; `run` has been entered.

    `start_from` is a run from whose vectors the model starts (initial_vectors.py); a resumed run has stored it.
    Returns the config resolved for this log and machine, and the final training state.
    """
    config = resolve_config(config, log)
    if run.resume and run.exists:
        update = update_info(run.folder)
        if update is not None:
            command = f"dynedge update {update['parent']} LOG --out {run.folder} --resume"
            raise UsageError(f"{run.folder} is an update of {update['parent']}; resume it with: {command}")
        check_resumable(run.config(), config, run.folder)
        log = as_trained(log, read_log(run.folder / IDS))
        run.check_log(log)
    model = build_model(config, log)  # before the folder is created: an invalid setting leaves nothing behind
    if run.resume and run.exists:
        stored = json.loads((run.folder / RUN_INFO).read_bytes()).get(VECTORS_FROM)
        start_from = None if stored is None or run.checkpoints.load() is not None else Path(stored)
    if start_from is not None:
        start_from_vectors(model, log, start_from)
    logger = TrainingLogger(run.folder, quiet=quiet, tensorboard=tensorboard)
    vectors_from = {} if start_from is None else {VECTORS_FROM: os.path.abspath(start_from)}
    run.begin(config, log, {"parameters": model.num_parameters} | vectors_from | model.run_info())
    with compiling_ahead(config, log):
        train_state = fit(model, log, config.training, checkpoints=run.checkpoints, logger=logger, stop=stop)
    run.finish(train_state, config, log)
    return config, train_state
