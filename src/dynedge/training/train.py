"""From a config and a log to a finished run folder."""

from __future__ import annotations

from collections.abc import Mapping

from dynedge.events.log import EventLog
from dynedge.training.course import Course
from dynedge.training.fit import fit
from dynedge.training.interrupt import Stop
from dynedge.training.run import Run, check_same
from dynedge.training.runlog import RunLog
from dynedge.training.settings import Config, Entry, build, choose, settled


def train_run(
    models: Mapping[str, Entry],
    run: Run,
    config: Config,
    log: EventLog,
    *,
    stop: Stop | None = None,
    quiet: bool = False,
    tensorboard: bool = False,
) -> tuple[Config, Course]:
    """The config as it was settled for this log and machine, and how training went; `run` has been entered."""
    entry, _ = choose(models, config.name)
    config = settled(config, log, entry.devices)
    if run.resume and run.there:
        check_same(run.config(models), config, run.folder)
        run.check_log(log)
    model = build(entry, config, log)  # first: what it refuses leaves no folder behind
    runlog = RunLog(run.folder, quiet=quiet, tensorboard=tensorboard)
    learned = sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)
    run.begin(config, log, {"parameters": learned} | model.facts())
    course = fit(model, log, config.training, checkpoints=run.checkpoints, runlog=runlog, stop=stop)
    run.finish(course, config, log)
    return config, course
