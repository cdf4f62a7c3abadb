"""The training loop. It knows a model by the contract in models/base.py, never by name."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from dynedge.data.log import EventLog
from dynedge.data.windows import Window, cut_windows
from dynedge.errors import DataError
from dynedge.evaluation.metrics import mean
from dynedge.evaluation.protocol import calibrate, rank_events
from dynedge.models.base import Loss, Model, State, Step
from dynedge.training.checkpoint import Checkpoints
from dynedge.training.config import TrainingConfig
from dynedge.training.logging import TrainingLogger
from dynedge.training.optimizer import Adam
from dynedge.training.peak_memory import peak_memory_mib
from dynedge.training.precision import autocast, deterministic_algorithms
from dynedge.training.segmented_step import SegmentedStep
from dynedge.training.segments import Segments
from dynedge.training.step import TrainingStep
from dynedge.training.train_state import Record, TrainState
from dynedge.utils.freed_memory import freed_memory_is_kept
from dynedge.utils.process_group import ALONE, ProcessGroup
from dynedge.utils.signals import StoppedBySignal, StopSignal
from dynedge.utils.tensor_io import Tensors, select_prefix, with_prefixes

SMALL_WINDOW = 2048  # events
FINAL_CALIBRATION = 5  # times as many validation events as after an epoch


@dataclass(frozen=True, eq=False)
class Continuation:
    """Where training continues: a position of the log, the state there, Adam's moments, a learning rate factor."""

    first: int
    state: State
    moments: Tensors
    rate: float

    def windows(self, train_end: int, of_all: list[range]) -> list[range]:
        """The events from `first` on, in windows of the mean size of those of all training events."""
        events = train_end - self.first
        count = max(1, round(len(of_all) * events / max(train_end, 1)))
        return [range(self.first + w.start, self.first + w.stop) for w in cut_windows(events, count)]


def fit(
    model: Model,
    log: EventLog,
    config: TrainingConfig,
    *,
    checkpoints: Checkpoints | None = None,
    logger: TrainingLogger | None = None,
    stop: StopSignal | None = None,
    continuation: Continuation | None = None,
    group: ProcessGroup = ALONE,
) -> TrainState:
    """Trains the model on the log's training events; resumes from the newest checkpoint if there is one.

    The processes of a `group` share the segments of an epoch (segments.py); each calls this with the same arguments.
    With a `continuation` the epochs consist of the training events from `continuation.first` on, and only the last
    one is validated: ranking the validation events takes longer than such an epoch. It has no segments.
    The returned TrainState holds the best epoch by validation MRR: the model and the state at the end of its training
    events. Deterministic on a CPU: a run stopped anywhere and resumed ends with the same bits as one never stopped.
    """
    logger, stop = logger or TrainingLogger(quiet=True), stop or StopSignal()
    train, valid = config.train_valid_ranges(log)
    model.begin_training(log, train.stop)
    optimizer = Adam(model.named_parameters(), config.lr, config.row_lr)
    windows, rate = model.training_windows(train.stop), 1.0
    if continuation is None:
        segments = Segments(model, log, windows, config.segments, group) if config.segments > 1 else None
        train_state = TrainState(model, optimizer, model.start(), segments=segments)
    else:
        windows, rate = continuation.windows(train.stop, windows), continuation.rate
        optimizer.load(continuation.moments)
        train_state = TrainState(model, optimizer, continuation.state.clone(), first_state=continuation.state)
    saver = _CheckpointSaver(train_state, checkpoints, config, stop, group)
    saver.load()
    epoch = _Epoch(train_state, log, windows, config)
    logger.start(train_state.history, config.epochs, _remaining_events(train_state, epoch.steps, config.epochs))
    if config.validation_protocol(log) != "full":
        limit = f"training.full_ranking_up_to = {config.full_ranking_up_to}"
        logger.message(f"validation ranks among 9,999 sampled items, since there are {log.num_items:,}; {limit}")
    try:
        with stop.deferred(), deterministic_algorithms(config.deterministic), freed_memory_is_kept():
            while train_state.epoch < config.epochs and not train_state.should_stop_early(config.patience):
                train_state.optimizer.scale_learning_rate(rate * config.lr_decay**train_state.non_improving_epochs)
                with threads_for(windows):
                    _train_epoch(train_state, epoch, config, saver, logger)
                if train_state.totals.end_epoch_metrics is None:  # once per epoch, also if resumed after it
                    train_state.totals.end_epoch_metrics = dict(model.end_epoch(train_state.epoch))
                last = train_state.epoch == config.epochs - 1
                validated = valid if continuation is None or last else valid[:0]
                with train_state.averaged():
                    record = _validate(train_state, log, validated, config, saver, group)
                    train_state.finish_epoch(record)
                logger.log_epoch(record)
                saver.save_if_due()
            saver.save()
            if continuation is None:
                _calibrate_best_epoch(train_state, log, config, logger, group)
    finally:
        logger.close()
    return train_state


class _Epoch:
    """The steps of an epoch: one window each or, with segments, the windows of all segments side by side."""

    def __init__(self, train_state: TrainState, log: EventLog, windows: list[range], config: TrainingConfig) -> None:
        self.train_state, self.log, self.windows, self.config = train_state, log, windows, config
        self._segments, arguments = train_state.segments, (train_state.model, train_state.optimizer, config)
        self.steps = [[events] for events in windows] if self._segments is None else self._segments.steps
        if self._segments is None:
            self._step = TrainingStep(*arguments)
        else:
            self._segmented = SegmentedStep(*arguments, self._segments)

    def run(self) -> Iterator[tuple[int, Loss, Tensor]]:
        """Runs the remaining steps; yields the number, the loss and the norm of the gradients of each."""
        first = self.train_state.window
        if first == len(self.steps):
            return iter(())
        return self._windows(first) if self._segments is None else self._segmented_steps(self._segments, first)

    def _windows(self, first: int) -> Iterator[tuple[int, Loss, Tensor]]:
        train_state, model, log = self.train_state, self.train_state.model, self.log
        batches: Iterable[Any]
        if train_state.first_state is None:
            batches = model.batches(log, self.windows, first)
        else:
            continued = self.windows[first:]
            batches = (model.continued_batch(Window(log, events), train_state.state) for events in continued)
        for window, batch in enumerate(batches, first):
            position = Step(self.config.seed, train_state.epoch, window)
            torch.manual_seed(position.generator().initial_seed())  # for layers that draw by themselves, as dropout
            loss, norm = self._step.run(batch, train_state.state, position)
            model.after_step(batch, train_state.state)
            yield window, loss, norm

    def _segmented_steps(self, segments: Segments, first: int) -> Iterator[tuple[int, Loss, Tensor]]:
        seed, epoch = self.config.seed, self.train_state.epoch
        for step, batches in enumerate(segments.batches(first), first):
            numbers = segments.numbers(step)
            positions = [None if number is None else Step(seed, epoch, number) for number in numbers]
            yield step, *self._segmented.run(batches, segments.states, positions)


def _train_epoch(
    train_state: TrainState, epoch: _Epoch, config: TrainingConfig, saver: _CheckpointSaver, logger: TrainingLogger
) -> None:
    """Trains the remaining steps of an epoch."""
    train_state.model.train()
    train_state.model.start_epoch(train_state.epoch)
    metrics = _DeferredMetrics(train_state, epoch.steps, config, logger, saver.group)
    saver.before_saving = metrics.read
    steps, averaged = len(epoch.steps), -(-config.average // len(epoch.steps[0]))
    for step, loss, norm in epoch.run():
        metrics.add(step, loss, norm)
        train_state.window = step + 1
        train_state.update_average(averaged, train_state.epoch * steps + step + 1)
        if saver.save_if_due(windows=len(epoch.steps[step])):
            metrics.restart_timer()
    if train_state.window != steps:
        raise RuntimeError(f"the model made {train_state.window} batches for {steps} steps")
    metrics.read()
    train_state.optimizer.zero_grad()
    if train_state.segments is not None:
        train_state.segments.share_rows(train_state.average)
        train_state.state = train_state.segments.end_state()


class _DeferredMetrics:
    """Numbers of training steps, read one step late on a GPU: reading is a step's one wait for it.

    Divergence is noticed before anything of it can be saved.
    """

    def __init__(
        self,
        train_state: TrainState,
        steps: list[list[range]],
        config: TrainingConfig,
        logger: TrainingLogger,
        group: ProcessGroup,
    ) -> None:
        self.train_state, self.steps, self.config, self.logger, self.group = train_state, steps, config, logger, group
        self._pending: deque[tuple[int, Loss, Tensor]] = deque()
        self._delay = int(config.device.startswith("cuda"))
        self.restart_timer()

    def restart_timer(self) -> None:
        """A step's time includes waiting for its batch, and not writing checkpoints."""
        self._since = time.perf_counter()

    def add(self, step: int, loss: Loss, norm: Tensor) -> None:
        self._pending.append((step, loss, norm))
        self.read(self._delay)

    def read(self, leave: int = 0) -> None:
        """Reads all but the last `leave` steps."""
        while len(self._pending) > leave:
            self._read(*self._pending.popleft())

    def _read(self, step: int, loss: Loss, norm: Tensor) -> None:
        objective, grad_norm = float(loss.total.detach()), float(norm)
        if not (math.isfinite(objective) and math.isfinite(grad_norm)):
            error = _divergence(objective, self.train_state.epoch, step, self.steps, self.config)
            raise self.group.common(error)
        # The logged loss may leave out terms that the objective has, such as penalties.
        metrics = {"loss": objective} | {name: float(number) for name, number in loss.log.items()}
        seconds, events = time.perf_counter() - self._since, sum(map(len, self.steps[step]))
        totals = {**metrics, "objective": objective, "grad_norm": grad_norm}
        self.train_state.totals.add(events, seconds, totals)
        self.logger.log_window(self.train_state.epoch, events, metrics)
        self.restart_timer()


@contextmanager
def threads_for(windows: list[range]) -> Iterator[None]:
    """One thread where windows are small: waking a second takes longer (0.1 ms or more) than their products."""
    before = torch.get_num_threads()
    if max(map(len, windows), default=0) < SMALL_WINDOW:
        torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _validate(
    train_state: TrainState,
    log: EventLog,
    valid: range,
    config: TrainingConfig,
    saver: _CheckpointSaver,
    group: ProcessGroup,
) -> Record:
    """The epoch's record. States advance through validation on a copy, so that training does not see it."""
    start, totals, model = time.perf_counter(), train_state.totals, train_state.model.eval()
    protocol = config.validation_protocol(log)
    shared: dict[str, Any] = {"shares": config.segments, "group": group}
    with autocast(config):
        calibration = calibrate(model, log, valid, train_state.state.clone(), protocol=protocol, **shared)
        if calibration is None:
            ranks = rank_events(
                model,
                log,
                valid,
                train_state.state.clone(),
                protocol=protocol,
                on_progress=lambda events: saver.save_if_due() if group.size == 1 else None,
                **shared,
            )
            calibration = {}, ranks
    chosen, ranks = calibration
    return {
        "epoch": train_state.epoch + 1,
        **totals.means(),
        **(totals.end_epoch_metrics or {}),
        **chosen,
        "valid_mrr": mean("mrr", ranks),
        "valid_recall@10": mean("recall@10", ranks),
        "valid_protocol": protocol,
        "losses": totals.loss_curve(),
        "events": totals.events,
        "seconds": totals.seconds,
        "valid_seconds": time.perf_counter() - start,
        "events_per_s": totals.events / max(totals.seconds, 1e-9),
        "peak_mib": peak_memory_mib(config.device),
    }


def _calibrate_best_epoch(
    train_state: TrainState, log: EventLog, config: TrainingConfig, logger: TrainingLogger, group: ProcessGroup
) -> None:
    """Calibrates the best epoch on more validation events: those right after training are not like later ones."""
    valid = config.resolve_split(log).ranges(len(log))["valid"]
    events = valid[: FINAL_CALIBRATION * config.validation_events or None]
    model, best = train_state.model.eval(), train_state.best
    if best is None or len(events) == len(config.train_valid_ranges(log)[1]):
        return
    last = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    model.load_state_dict(select_prefix(best.tensors, "model"))
    state = State(select_prefix(best.tensors, "state")).placed_like(train_state.state).clone()
    with autocast(config):
        protocol = config.validation_protocol(log)
        calibration = calibrate(model, log, events, state, protocol=protocol, shares=config.segments, group=group)
    if calibration is not None:
        tensors = {name: tensor.detach().to("cpu", copy=True) for name, tensor in model.state_dict().items()}
        train_state.best = replace(best, tensors=best.tensors | with_prefixes(model=tensors))
        chosen = ", ".join(f"{name} {value:g}" for name, value in calibration[0].items())
        logger.message(f"calibrated on {len(events):,} validation events: {chosen}")
    model.load_state_dict(last)


class _CheckpointSaver:
    """Saves a checkpoint when one is due, and when a signal asks to stop."""

    def __init__(
        self,
        train_state: TrainState,
        checkpoints: Checkpoints | None,
        config: TrainingConfig,
        stop: StopSignal,
        group: ProcessGroup,
    ) -> None:
        self.train_state, self.checkpoints, self.config, self.stop = train_state, checkpoints, config, stop
        self.group = group
        self._windows, self._saved = 0, time.monotonic()
        self._position = (0, 0)  # epoch and window of the last checkpoint
        self.before_saving: Callable[[], None] = lambda: None

    def load(self) -> None:
        segments = self.train_state.segments
        reads = (lambda name: True) if segments is None else segments.reads_part
        if self.checkpoints and (checkpoint := self.checkpoints.load(reads)):
            with self.group.together():
                self.train_state.load(checkpoint)
            self._position = self.train_state.epoch, self.train_state.window

    def save_if_due(self, windows: int = 0) -> bool:
        """Whether it saved; `windows` is the number trained since the last call."""
        self._windows += windows
        enough = 0 < self.config.checkpoint_windows <= self._windows
        due = enough or time.monotonic() - self._saved >= 60 * self.config.checkpoint_minutes
        received = self.stop.received or 0
        if self.group.size > 1:  # all save and stop after the same step
            due, received = self.group.all_gather(torch.tensor([due, received])).amax(0).tolist()
        if received:
            self.save()
            raise StoppedBySignal(received)
        if due:
            self.save()
        return bool(due)

    def save(self) -> None:
        self.before_saving()
        position = self.train_state.epoch, self.train_state.window
        if self.checkpoints and position != self._position:
            with self.train_state.averaged(False):
                self.checkpoints.save(self.train_state.checkpoint())
        self._position = position
        self._windows, self._saved = 0, time.monotonic()


def _divergence(
    objective: float, epoch: int, step: int, steps: list[list[range]], config: TrainingConfig
) -> DataError:
    events = ", ".join(f"{window.start} to {window.stop - 1}" for window in steps[step])
    what = f"loss is {objective}" if not math.isfinite(objective) else "gradient is not finite"
    return DataError(
        f"the {what} in epoch {epoch + 1}, window {step + 1} of {len(steps)} (events {events}): lower --lr "
        f"(now {config.lr:g}) or check the log's features for extreme values; "
        "--resume continues from the last good checkpoint."
    )


def _remaining_events(train_state: TrainState, steps: list[list[range]], epochs: int) -> int:
    events = [sum(map(len, step)) for step in steps]
    return max((epochs - train_state.epoch) * sum(events) - sum(events[: train_state.window]), 0)
