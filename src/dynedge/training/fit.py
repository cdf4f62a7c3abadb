"""The training loop. It knows a model by the verbs of models/contract.py, never by name."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

import torch

from dynedge.errors import DataError
from dynedge.events.log import EventLog
from dynedge.events.split import windows
from dynedge.models.contract import Model, Step
from dynedge.ranking.metrics import mean
from dynedge.ranking.protocol import walk
from dynedge.training.checkpoint import Checkpoints
from dynedge.training.course import Course, Record
from dynedge.training.interrupt import Stop, Stopped
from dynedge.training.optim import Adam
from dynedge.training.runlog import RunLog
from dynedge.training.settings import TrainingConfig

SMALL_WINDOW = 2048  # events


def fit(
    model: Model,
    log: EventLog,
    config: TrainingConfig,
    *,
    checkpoints: Checkpoints | None = None,
    runlog: RunLog | None = None,
    stop: Stop | None = None,
) -> Course:
    """Train the model on the log's training events; goes on from the newest checkpoint where there is one.

    The best epoch by validation MRR is in the returned Course, as the model and the state at the end of its training
    events. Deterministic on a CPU: a run stopped anywhere and gone on with ends bit for bit as one never stopped.
    """
    runlog, stop = runlog or RunLog(quiet=True), stop or Stop()
    events, valid = config.ranges(log)
    cuts = list(windows(events.stop, model.num_windows(events.stop)))
    course = Course(model, Adam(model.named_parameters(), config.lr, config.row_lr), model.start())
    keeper = _Keeper(course, checkpoints, config, stop)
    keeper.load()
    runlog.begin(course.history, config.epochs, _events_left(course, cuts, config.epochs))
    try:
        with stop.gently():
            while course.epoch < config.epochs and not course.stale(config.patience):
                with threads_for(cuts):
                    _train(course, log, cuts, config, keeper, runlog)
                if course.tally.ended is None:  # once an epoch, also when stopped and gone on with after it
                    course.tally.ended = dict(model.end_epoch(course.epoch))
                record = _validate(course, log, valid, config, keeper)
                course.finish_epoch(record)
                runlog.epoch(record)
                keeper.look()
            keeper.save()
    finally:
        runlog.close()
    return course


def _train(
    course: Course, log: EventLog, cuts: list[range], config: TrainingConfig, keeper: _Keeper, runlog: RunLog
) -> None:
    """The rest of an epoch's windows."""
    model, optimiser = course.model.train(), course.optimiser
    prepared = iter(model.windows(log, cuts[-1].stop, course.window) if course.window < len(cuts) else ())
    began = time.perf_counter()
    for window in range(course.window, len(cuts)):
        step = Step(config.seed, course.epoch, window)
        torch.manual_seed(step.generator().initial_seed())  # a layer that draws by itself (dropout) resumes too
        with precision(config):
            loss = model.loss(next(prepared), course.state, step)
        optimiser.zero_grad()
        if loss.total.requires_grad:  # not where a model has nothing to learn, or the window nothing to learn from
            loss.total.backward()
        norm = float(optimiser.clip(config.clip))
        value = float(loss.total.detach())  # with the line above, a window's one wait for a GPU
        if not (math.isfinite(value) and math.isfinite(norm)):
            raise _diverged(value, course.epoch, window, cuts, config)
        optimiser.step()

        course.window, events = window + 1, len(cuts[window])
        told = {"loss": value, **loss.log}  # a model may tell its loss without what it adds for its own ends
        spent = time.perf_counter() - began  # with the wait for the window, without the writing of checkpoints
        course.tally.add(events, spent, {**told, "objective": value, "grad_norm": norm})
        runlog.window(course.epoch, events, told)
        keeper.look(windows=1)
        began = time.perf_counter()
    optimiser.zero_grad()


@contextmanager
def threads_for(cuts: list[range]) -> Iterator[None]:
    """One thread where windows are small: a second takes longer to wake (0.1 ms or more) than their products last."""
    before = torch.get_num_threads()
    if max(map(len, cuts), default=0) < SMALL_WINDOW:
        torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _validate(course: Course, log: EventLog, valid: range, config: TrainingConfig, keeper: _Keeper) -> Record:
    """The epoch's record. States evolve through validation on a copy: training knows nothing of it."""
    began, tally = time.perf_counter(), course.tally
    course.model.eval()
    with precision(config):
        ranks = walk(course.model, log, valid, course.state.clone(), after=lambda events: keeper.look())
    return {
        "epoch": course.epoch + 1,
        **tally.means(),
        **(tally.ended or {}),
        "valid_mrr": mean("mrr", ranks),
        "valid_recall@10": mean("recall@10", ranks),
        "losses": tally.curve(),
        "events": tally.events,
        "seconds": tally.seconds,
        "valid_seconds": time.perf_counter() - began,
        "events_per_s": tally.events / max(tally.seconds, 1e-9),
    }


class _Keeper:
    """Saves when it is time, and when asked to stop."""

    def __init__(self, course: Course, checkpoints: Checkpoints | None, config: TrainingConfig, stop: Stop) -> None:
        self.course, self.checkpoints, self.config, self.stop = course, checkpoints, config, stop
        self._windows, self._saved = 0, time.monotonic()
        self._standing = (0, 0)  # epoch and window of the last checkpoint

    def load(self) -> None:
        if self.checkpoints and (found := self.checkpoints.load()):
            self.course.load(found)
            self._standing = self.course.epoch, self.course.window

    def look(self, windows: int = 0) -> None:
        self._windows += windows
        if self.stop.caught is not None:
            self.save()
            raise Stopped(self.stop.caught)
        enough = 0 < self.config.checkpoint_windows <= self._windows
        if enough or time.monotonic() - self._saved >= 60 * self.config.checkpoint_minutes:
            self.save()

    def save(self) -> None:
        standing = self.course.epoch, self.course.window
        if self.checkpoints and standing != self._standing:
            self.checkpoints.save(self.course.checkpoint())
        self._standing = standing
        self._windows, self._saved = 0, time.monotonic()


def precision(config: TrainingConfig) -> AbstractContextManager[object]:
    """The arithmetic a model is trained and judged in."""
    if config.precision == "bfloat16":
        return torch.autocast(torch.device(config.device).type, torch.bfloat16)
    return nullcontext()


def _diverged(value: float, epoch: int, window: int, cuts: list[range], config: TrainingConfig) -> DataError:
    events, what = cuts[window], f"loss is {value}" if not math.isfinite(value) else "gradient is not finite"
    return DataError(
        f"the {what} in epoch {epoch + 1}, window {window + 1} of {len(cuts)} (events {events.start} to "
        f"{events.stop - 1}): lower --lr (now {config.lr:g}) or check the log's features for extreme values; "
        "the last good checkpoint is kept, and --resume goes on from it."
    )


def _events_left(course: Course, cuts: list[range], epochs: int) -> int:
    done = cuts[course.window - 1].stop if course.window else 0
    return max((epochs - course.epoch) * cuts[-1].stop - done, 0)
