"""The training loop. It knows a model by the verbs of models/contract.py, never by name."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from dynedge.data.log import EventLog
from dynedge.data.windows import cut_windows
from dynedge.errors import DataError
from dynedge.evaluation.metrics import mean
from dynedge.evaluation.protocol import candidates, walk
from dynedge.models.base import Loss, Model, State, Step
from dynedge.training.checkpoint import Checkpoints
from dynedge.training.config import TrainingConfig
from dynedge.training.logging import TrainingLogger
from dynedge.training.optimizer import Adam
from dynedge.training.peak_memory import peak_memory_mib
from dynedge.training.precision import autocast, deterministic_algorithms
from dynedge.training.step import Steps
from dynedge.training.train_state import Record, TrainState
from dynedge.utils.signals import StoppedBySignal, StopSignal
from dynedge.utils.tensor_io import select_prefix, with_prefixes

SMALL_WINDOW = 2048  # events
AT_LAST = 5  # times as many validation events as after an epoch, for what is chosen on them


def fit(
    model: Model,
    log: EventLog,
    config: TrainingConfig,
    *,
    checkpoints: Checkpoints | None = None,
    logger: TrainingLogger | None = None,
    stop: StopSignal | None = None,
) -> TrainState:
    """Train the model on the log's training events; goes on from the newest checkpoint where there is one.

    The best epoch by validation MRR is in the returned TrainState, as the model and the state at the end of its
    training events. Deterministic on a CPU: a run stopped anywhere and gone on with ends bit for bit as one never
    stopped.
    """
    logger, stop = logger or TrainingLogger(quiet=True), stop or StopSignal()
    events, valid = config.train_valid_ranges(log)
    cuts = cut_windows(events.stop, model.num_windows(events.stop))
    course = TrainState(model, Adam(model.named_parameters(), config.lr, config.row_lr), model.start())
    keeper = _Keeper(course, checkpoints, config, stop)
    keeper.load()
    steps = Steps(model, course.optimizer, config)
    logger.start(course.history, config.epochs, _events_left(course, cuts, config.epochs))
    if config.validation_protocol(log) != "full":
        limit = f"training.full_ranking_up_to = {config.full_ranking_up_to}"
        logger.message(f"validation ranks among 9,999 drawn items, since there are {log.num_items:,}; {limit}")
    try:
        with stop.deferred(), deterministic_algorithms(config.deterministic):
            while course.epoch < config.epochs and not course.should_stop_early(config.patience):
                course.optimizer.scale_learning_rate(config.lr_decay**course.non_improving_epochs)
                with threads_for(cuts):
                    _train(course, steps, log, cuts, config, keeper, logger)
                if (
                    course.totals.end_epoch_metrics is None
                ):  # once an epoch, also when stopped and gone on with after it
                    course.totals.end_epoch_metrics = dict(model.end_epoch(course.epoch))
                record = _validate(course, log, valid, config, keeper)
                course.finish_epoch(record)
                logger.log_epoch(record)
                keeper.look()
            keeper.save()
            if model.chooses:
                _choose_again(course, log, config, logger)
    finally:
        logger.close()
    return course


def _train(
    course: TrainState,
    steps: Steps,
    log: EventLog,
    cuts: list[range],
    config: TrainingConfig,
    keeper: _Keeper,
    logger: TrainingLogger,
) -> None:
    """The rest of an epoch's windows."""
    model = course.model.train()
    prepared = iter(model.windows(log, cuts[-1].stop, course.window) if course.window < len(cuts) else ())
    unread = _Unread(course, cuts, config, logger)
    keeper.settle = unread.read
    for window in range(course.window, len(cuts)):
        step = Step(config.seed, course.epoch, window)
        torch.manual_seed(step.generator().initial_seed())  # a layer that draws by itself (dropout) resumes too
        ready: Any = next(prepared)
        unread.add(window, *steps.take(ready, course.state, step))
        model.passed(ready, course.state)
        course.window = window + 1
        if keeper.look(windows=1):
            unread.go_on()
    unread.read()
    course.optimizer.zero_grad()


class _Unread:
    """Windows whose numbers are yet to be read.

    On a GPU one is left unread while the next is under way: reading is a window's one wait for the GPU. What has
    diverged is noticed before it can be saved.
    """

    def __init__(self, course: TrainState, cuts: list[range], config: TrainingConfig, logger: TrainingLogger) -> None:
        self.course, self.cuts, self.config, self.logger = course, cuts, config, logger
        self._left: deque[tuple[int, Loss, Tensor]] = deque()
        self._most = int(config.device.startswith("cuda"))
        self.go_on()

    def go_on(self) -> None:
        """Time counts from here: with the wait for windows, without the writing of checkpoints."""
        self._since = time.perf_counter()

    def add(self, window: int, loss: Loss, norm: Tensor) -> None:
        self._left.append((window, loss, norm))
        self.read(self._most)

    def read(self, most: int = 0) -> None:
        """All but the last `most` windows."""
        while len(self._left) > most:
            self._read(*self._left.popleft())

    def _read(self, window: int, loss: Loss, norm: Tensor) -> None:
        value, length = float(loss.total.detach()), float(norm)
        if not (math.isfinite(value) and math.isfinite(length)):
            raise _diverged(value, self.course.epoch, window, self.cuts, self.config)
        # A model may tell its loss without what it adds for its own ends.
        told = {"loss": value} | {name: float(number) for name, number in loss.log.items()}
        spent, events = time.perf_counter() - self._since, len(self.cuts[window])
        self.course.totals.add(events, spent, {**told, "objective": value, "grad_norm": length})
        self.logger.log_window(self.course.epoch, events, told)
        self.go_on()


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


def _validate(course: TrainState, log: EventLog, valid: range, config: TrainingConfig, keeper: _Keeper) -> Record:
    """The epoch's record. States evolve through validation on a copy: training knows nothing of it."""
    began, tally = time.perf_counter(), course.totals
    course.model.eval()
    with autocast(config):
        protocol = config.validation_protocol(log)
        among = partial(candidates, protocol=protocol)
        chosen, ranks = course.model.calibrate(log, valid, course.state.clone(), among)
        if ranks is None:
            copy = course.state.clone()
            ranks = walk(course.model, log, valid, copy, protocol=protocol, after=lambda events: keeper.look())
    return {
        "epoch": course.epoch + 1,
        **tally.means(),
        **(tally.end_epoch_metrics or {}),
        **chosen,
        "valid_mrr": mean("mrr", ranks),
        "valid_recall@10": mean("recall@10", ranks),
        "valid_protocol": protocol,
        "losses": tally.loss_curve(),
        "events": tally.events,
        "seconds": tally.seconds,
        "valid_seconds": time.perf_counter() - began,
        "events_per_s": tally.events / max(tally.seconds, 1e-9),
        "peak_mib": peak_memory_mib(config.device),
    }


def _choose_again(course: TrainState, log: EventLog, config: TrainingConfig, logger: TrainingLogger) -> None:
    """The best epoch chooses on more validation events: the first of them are not like those that come long after."""
    events = config.resolve_split(log).ranges(len(log))["valid"][: AT_LAST * config.validation_events or None]
    model, best = course.model.eval(), course.best
    if best is None or len(events) == len(config.train_valid_ranges(log)[1]):
        return
    last = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    model.load_state_dict(select_prefix(best.tensors, "model"))
    with autocast(config):
        state = State(select_prefix(best.tensors, "state")).beside(course.state).clone()
        chosen, _ = model.calibrate(log, events, state, partial(candidates, protocol=config.validation_protocol(log)))
    now = {name: tensor.detach().to("cpu", copy=True) for name, tensor in model.state_dict().items()}
    course.best = replace(best, tensors=best.tensors | with_prefixes(model=now))
    model.load_state_dict(last)
    told = ", ".join(f"{name} {value:g}" for name, value in chosen.items())
    logger.message(f"chosen on {len(events):,} validation events: {told}")


class _Keeper:
    """Saves when it is time, and when asked to stop."""

    def __init__(
        self, course: TrainState, checkpoints: Checkpoints | None, config: TrainingConfig, stop: StopSignal
    ) -> None:
        self.course, self.checkpoints, self.config, self.stop = course, checkpoints, config, stop
        self._windows, self._saved = 0, time.monotonic()
        self._standing = (0, 0)  # epoch and window of the last checkpoint
        self.settle: Callable[[], None] = lambda: None  # what is due before saving

    def load(self) -> None:
        if self.checkpoints and (found := self.checkpoints.load()):
            self.course.load(found)
            self._standing = self.course.epoch, self.course.window

    def look(self, windows: int = 0) -> bool:
        """Whether it saved."""
        self._windows += windows
        if self.stop.received is not None:
            self.save()
            raise StoppedBySignal(self.stop.received)
        enough = 0 < self.config.checkpoint_windows <= self._windows
        due = enough or time.monotonic() - self._saved >= 60 * self.config.checkpoint_minutes
        if due:
            self.save()
        return due

    def save(self) -> None:
        self.settle()
        standing = self.course.epoch, self.course.window
        if self.checkpoints and standing != self._standing:
            self.checkpoints.save(self.course.checkpoint())
        self._standing = standing
        self._windows, self._saved = 0, time.monotonic()


def _diverged(value: float, epoch: int, window: int, cuts: list[range], config: TrainingConfig) -> DataError:
    events, what = cuts[window], f"loss is {value}" if not math.isfinite(value) else "gradient is not finite"
    return DataError(
        f"the {what} in epoch {epoch + 1}, window {window + 1} of {len(cuts)} (events {events.start} to "
        f"{events.stop - 1}): lower --lr (now {config.lr:g}) or check the log's features for extreme values; "
        "the last good checkpoint is kept, and --resume goes on from it."
    )


def _events_left(course: TrainState, cuts: list[range], epochs: int) -> int:
    done = cuts[course.window - 1].stop if course.window else 0
    return max((epochs - course.epoch) * cuts[-1].stop - done, 0)
