"""Where training stands: all that changes while it runs, and so all that a checkpoint holds."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass, field
from typing import Any

from dynedge.errors import DataError
from dynedge.models.base import Model, State
from dynedge.training.checkpoint import Checkpoint
from dynedge.training.optimizer import Adam
from dynedge.utils.tensor_io import Tensors, select_prefix, with_prefixes

Record = dict[str, Any]
TIMINGS = ("seconds", "valid_seconds", "events_per_s", "peak_mib")  # fields of a record that differ from run to run
CURVE = 10  # points of the loss within an epoch


@dataclass
class Tally:
    """What an epoch's windows added up to so far."""

    events: int = 0
    seconds: float = 0.0
    losses: list[float] = field(default_factory=list)  # one a window
    sums: dict[str, list[float]] = field(default_factory=dict)  # by name: of value × events, of events
    ended: dict[str, float] | None = None  # what the model's end_epoch said, once it was called

    def add(self, events: int, seconds: float, log: dict[str, float]) -> None:
        """`log` has the window's loss, and whatever else is to be averaged over events."""
        self.events += events
        self.seconds += seconds
        self.losses.append(log["loss"])
        for name, value in log.items():
            total = self.sums.setdefault(name, [0.0, 0.0])
            total[0] += float(value) * events
            total[1] += events

    def means(self) -> dict[str, float]:
        return {name: total / max(weight, 1.0) for name, (total, weight) in self.sums.items()}

    def curve(self) -> list[float]:
        """The mean loss of each tenth of the windows."""
        n = len(self.losses)
        tenths = [self.losses[n * k // CURVE : n * (k + 1) // CURVE] for k in range(CURVE)]
        return [math.fsum(tenth) / len(tenth) for tenth in tenths if tenth]


@dataclass(frozen=True)
class Best:
    """The best epoch so far: the model after it, and the state at the end of its training events."""

    epoch: int
    valid_mrr: float | None
    tensors: Tensors = field(repr=False)  # model.… and state.…, copies on the CPU


@dataclass
class Course:
    """Position: `window` windows of epoch number `epoch` (from 0) are done."""

    model: Model
    optimiser: Adam
    state: State
    epoch: int = 0
    window: int = 0
    tally: Tally = field(default_factory=Tally)
    history: list[Record] = field(default_factory=list)  # one record an epoch, as metrics.jsonl has them
    best: Best | None = None

    def finish_epoch(self, record: Record) -> None:
        """Take the record in, remember the model if it is the best, and stand at the start of the next epoch."""
        mrr = record["valid_mrr"]
        if self.best is None or mrr is None or self.best.valid_mrr is None or mrr > self.best.valid_mrr:
            self.best = Best(self.epoch, mrr, self.snapshot())
        self.history.append(record)
        self.epoch, self.window = self.epoch + 1, 0
        self.tally, self.state = Tally(), self.model.start()

    @property
    def setbacks(self) -> int:
        """How many epochs were no better than the best before them."""
        best, count = -math.inf, 0
        for mrr in (record["valid_mrr"] for record in self.history if record["valid_mrr"] is not None):
            best, count = max(best, mrr), count + (mrr <= best)
        return count

    def stale(self, patience: int) -> bool:
        """Whether so many epochs went by without a better one."""
        return patience > 0 and self.best is not None and self.epoch - 1 - self.best.epoch >= patience

    def snapshot(self) -> Tensors:
        now = with_prefixes(model=self.model.state_dict(), state=dict(self.state))
        return {name: tensor.detach().to("cpu", copy=True) for name, tensor in now.items()}

    def checkpoint(self) -> Checkpoint:
        now = with_prefixes(model=self.model.state_dict(), optim=self.optimiser.tensors(), state=dict(self.state))
        notes = {
            "epoch": self.epoch,
            "window": self.window,
            "tally": dataclasses.asdict(self.tally),
            "history": self.history,
            "best": self.best and {"epoch": self.best.epoch, "valid_mrr": self.best.valid_mrr},
        }
        return Checkpoint({"now": now} | ({"best": self.best.tensors} if self.best else {}), notes)

    def load(self, checkpoint: Checkpoint) -> None:
        """Stand where a checkpoint stood."""
        now, notes = checkpoint.parts["now"], checkpoint.notes
        try:
            self.model.load_state_dict(select_prefix(now, "model"))
            self.optimiser.load(select_prefix(now, "optim"))
        except (RuntimeError, KeyError) as error:
            what = " ".join(str(error).split())
            raise DataError(f"the checkpoint is not of this model as configured now: {what}.") from None
        self.state = State(select_prefix(now, "state")).beside(self.state).clone()
        self.epoch, self.window, self.history = notes["epoch"], notes["window"], notes["history"]
        self.tally = Tally(**notes["tally"])
        self.best = Best(**notes["best"], tensors=checkpoint.parts["best"]) if notes["best"] else None
