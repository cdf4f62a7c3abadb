"""From a config and a log to a finished run folder."""

from __future__ import annotations

from dynedge.data.log import EventLog
from dynedge.runs.folder import Run, check_same
from dynedge.runs.run_config import RunConfig, build_model, resolve_config
from dynedge.training.logging import RunLog
from dynedge.training.loop import fit
from dynedge.training.train_state import Course
from dynedge.utils.signals import Stop


def train_run(
    run: Run,
    config: RunConfig,
    log: EventLog,
    *,
    stop: Stop | None = None,
    quiet: bool = False,
    tensorboard: bool = False,
) -> tuple[RunConfig, Course]:
    """The config as it was settled for this log and machine, and how training went; `run` has been entered."""
    config = resolve_config(config, log)
    if run.resume and run.there:
        check_same(run.config(), config, run.folder)
        run.check_log(log)
    model = build_model(config, log)  # first: what it refuses leaves no folder behind
    runlog = RunLog(run.folder, quiet=quiet, tensorboard=tensorboard)
    learned = sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)
    run.begin(config, log, {"parameters": learned} | model.facts())
    course = fit(model, log, config.training, checkpoints=run.checkpoints, runlog=runlog, stop=stop)
    run.finish(course, config, log)
    return config, course
