"""Everything that changes during training, and therefore everything a checkpoint stores."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from dynedge.errors import DataError
from dynedge.models.base import Model, State
from dynedge.training.checkpoint import Checkpoint
from dynedge.training.optimizer import Adam
from dynedge.training.segments import Segments
from dynedge.utils.tensor_io import Tensors, select_prefix, with_prefixes

Record = dict[str, Any]
TIMINGS = ("seconds", "valid_seconds", "events_per_s", "peak_mib")  # fields of a record that differ from run to run
CURVE_POINTS = 10  # points of the loss curve within an epoch
UPDATES = 50  # of the averaged parameters, in as many windows as they are averaged over


@dataclass
class EpochTotals:
    """Sums over the windows of the current epoch."""

    events: int = 0
    seconds: float = 0.0
    losses: list[float] = field(default_factory=list)  # one per window
    sums: dict[str, list[float]] = field(default_factory=dict)  # by name: sum of value × events, sum of events
    end_epoch_metrics: dict[str, float] | None = None  # returned by the model's end_epoch, once it was called

    def add(self, events: int, seconds: float, log: dict[str, float]) -> None:
        """Adds one window. `log` holds its loss and any other metric to be averaged over events."""
        self.events += events
        self.seconds += seconds
        self.losses.append(log["loss"])
        for name, value in log.items():
            total = self.sums.setdefault(name, [0.0, 0.0])
            total[0] += float(value) * events
            total[1] += events

    def means(self) -> dict[str, float]:
        """Returns the mean of each metric, weighted by the events of the windows that reported it."""
        return {name: total / max(weight, 1.0) for name, (total, weight) in self.sums.items()}

    def loss_curve(self) -> list[float]:
        """Returns the mean loss of each tenth of the windows."""
        n = len(self.losses)
        tenths = [self.losses[n * k // CURVE_POINTS : n * (k + 1) // CURVE_POINTS] for k in range(CURVE_POINTS)]
        return [math.fsum(tenth) / len(tenth) for tenth in tenths if tenth]


@dataclass(frozen=True)
class BestEpoch:
    """The best epoch so far by validation MRR: its model, and the state at the end of its training events."""

    epoch: int
    valid_mrr: float | None
    tensors: Tensors = field(repr=False)  # model.… and state.…, copies on the CPU


@contextmanager
def exchanged(parameters: Mapping[str, Tensor], others: Mapping[str, Tensor]) -> Iterator[None]:
    """Context in which parameters have the values of `others`, and these have theirs."""
    _exchange(parameters, others)
    try:
        yield
    finally:
        _exchange(parameters, others)


@torch.no_grad()
def _exchange(parameters: Mapping[str, Tensor], others: Mapping[str, Tensor]) -> None:
    for name, other in others.items():
        before = parameters[name].clone()
        parameters[name].copy_(other)
        other.copy_(before)


@dataclass
class TrainState:
    """Progress of a training run: `window` steps of epoch `epoch` (counted from 0) are done.

    A step trains one window or, with segments, one of each. `state` is then that of the last one after the epoch.
    """

    model: Model
    optimizer: Adam
    state: State
    epoch: int = 0
    window: int = 0
    totals: EpochTotals = field(default_factory=EpochTotals)
    history: list[Record] = field(default_factory=list)  # one record per epoch, as in metrics.jsonl
    best: BestEpoch | None = None
    first_state: State | None = None  # at the first window, if that is not the beginning of the log
    segments: Segments | None = None  # None: all windows in order
    average: Tensors = field(default_factory=dict)  # of the parameters; empty: none
    _averaged: bool = False  # whether the model has the averages now, and `average` the trained parameters

    @torch.no_grad()
    def update_average(self, windows: int, trained: int) -> None:
        """Exponential moving average over `windows` windows, after `trained` ones: over a ninth of them at first."""
        every = max(1, windows // UPDATES)
        if not windows or trained % every:
            return
        parameters = self.optimizer.parameters
        if not self.average:
            self.average = {name: parameter.detach().clone() for name, parameter in parameters.items()}
        weight = min(1.0, max(every / windows, 9 * every / (trained + 10)))
        torch._foreach_lerp_(list(self.average.values()), [parameters[name] for name in self.average], weight)

    @contextmanager
    def averaged(self, averaged: bool = True) -> Iterator[None]:
        """The model with averaged parameters, or with those that were trained."""
        if averaged == self._averaged or not self.average:
            yield
            return
        with exchanged(self.optimizer.parameters, self.average):
            self._averaged = averaged
            try:
                yield
            finally:
                self._averaged = not averaged

    def finish_epoch(self, record: Record) -> None:
        """Appends the epoch's record, copies the model if it is the best so far, and starts the next epoch."""
        mrr = record["valid_mrr"]
        if self.best is None or mrr is None or self.best.valid_mrr is None or mrr > self.best.valid_mrr:
            self.best = BestEpoch(self.epoch, mrr, self.snapshot())
        self.history.append(record)
        self.epoch, self.window = self.epoch + 1, 0
        self.totals, self.state = EpochTotals(), self.start()
        if self.segments is not None:
            self.segments.next_epoch()

    def start(self) -> State:
        """The state before the first window."""
        return self.model.start() if self.first_state is None else self.first_state.clone()

    @property
    def non_improving_epochs(self) -> int:
        """Number of epochs whose validation MRR did not exceed the best of the epochs before them."""
        best, count = -math.inf, 0
        for mrr in (record["valid_mrr"] for record in self.history if record["valid_mrr"] is not None):
            best, count = max(best, mrr), count + (mrr <= best)
        return count

    def should_stop_early(self, patience: int) -> bool:
        """Returns whether the last `patience` epochs brought no better validation MRR; 0 never stops."""
        return patience > 0 and self.best is not None and self.epoch - 1 - self.best.epoch >= patience

    def snapshot(self) -> Tensors:
        """Returns copies of the model's parameters and of the state, on the CPU."""
        tensors = with_prefixes(model=self.model.state_dict(), state=dict(self.state))
        return {name: tensor.detach().to("cpu", copy=True) for name, tensor in tensors.items()}

    def checkpoint(self) -> Checkpoint:
        """Returns a checkpoint of everything here. Its tensors are not copies."""
        groups = {"model": self.model.state_dict(), "optim": self.optimizer.tensors(), "average": self.average}
        if self.segments is None:
            groups["state"] = dict(self.state)
        parts = {"current": with_prefixes(**groups)} | ({"best": self.best.tensors} if self.best else {})
        if self.segments is not None:
            self.segments.share_rows(self.average, self.optimizer.tensors())
            parts = (parts if self.segments.group.is_first else {}) | self.segments.checkpoint_parts()
        metadata = {
            "epoch": self.epoch,
            "window": self.window,
            "totals": dataclasses.asdict(self.totals),
            "history": self.history,
            "best": self.best and {"epoch": self.best.epoch, "valid_mrr": self.best.valid_mrr},
        }
        return Checkpoint(parts, metadata)

    def load(self, checkpoint: Checkpoint) -> None:
        """Restores the progress stored in a checkpoint."""
        metadata = checkpoint.metadata
        try:
            current = checkpoint.parts["current"]
            self.model.load_state_dict(select_prefix(current, "model"))
            self.optimizer.load(select_prefix(current, "optim"))
            best = metadata["best"]
            if self.segments is None:
                state = State(select_prefix(current, "state"))
                self.model.check_state(state)
                self.state = state.placed_like(self.state).clone()
            else:
                self.segments.load(checkpoint.parts)
            self.epoch, self.window, self.history = metadata["epoch"], metadata["window"], metadata["history"]
            self.totals = EpochTotals(**metadata["totals"])
            self.best = BestEpoch(**best, tensors=checkpoint.parts["best"]) if best else None
        except (RuntimeError, KeyError, TypeError, ValueError, DataError) as error:
            reason = " ".join(str(error).split())
            raise DataError(f"the checkpoint does not fit the model as it is configured now: {reason}.") from None
        device = self.model.device
        self.average = {
            name: tensor.to(device, copy=True) for name, tensor in select_prefix(current, "average").items()
        }
