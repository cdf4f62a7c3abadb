"""Trains a model in a run folder."""

from __future__ import annotations

from dynedge.data.log import EventLog, read_log
from dynedge.errors import UsageError
from dynedge.runs.folder import IDS, RunFolder, check_resumable, update_info
from dynedge.runs.run_config import RunConfig, build_model, resolve_config
from dynedge.runs.trained_log import as_trained
from dynedge.training.logging import TrainingLogger
from dynedge.training.loop import fit
from dynedge.training.train_state import TrainState
from dynedge.utils.signals import StopSignal


def train_run(
    run: RunFolder,
    config: RunConfig,
    log: EventLog,
    *,
    stop: StopSignal | None = None,
    quiet: bool = False,
    tensorboard: bool = False,
) -> tuple[RunConfig, TrainState]:
    """Trains a model and writes the run folder; `run` has been entered.

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
    logger = TrainingLogger(run.folder, quiet=quiet, tensorboard=tensorboard)
    parameters = sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)
    run.begin(config, log, {"parameters": parameters} | model.run_info())
    train_state = fit(model, log, config.training, checkpoints=run.checkpoints, logger=logger, stop=stop)
    run.finish(train_state, config, log)
    return config, train_state
