"""What is told to a run: the model's own config and the training's, as one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from dynedge.config import option
from dynedge.data.splits import Split
from dynedge.errors import DataError

if TYPE_CHECKING:
    from dynedge.data.log import EventLog


@dataclass(frozen=True)
class TrainingConfig:
    """How any model is trained."""

    epochs: int = option(20, "passes over the training events, at most", least=0, free=True)
    patience: int = option(4, "stop after so many epochs without a better valid MRR; 0: never", least=0, free=True)
    seed: int = option(0, "all random draws follow from it", least=0)
    split: str = option("", "train,valid,test by position, as 0.8,0.1,0.1; empty: the log's own")
    valid_events: int = option(20_000, "validate on the first so many validation events; 0: all", least=0)
    full_ranking_up_to: int = option(
        200_000, "with more items than this, validate among 9,999 drawn ones, not among all", least=0
    )
    lr: float = option(1e-3, "Adam's learning rate", least=0, free=True)
    row_lr: float = option(1e-2, "the same for table rows (sparse gradients)", least=0, free=True)
    cooling: float = option(0.5, "after an epoch with no better valid MRR, both rates times this; 1: never", least=0)
    clip: float = option(1.0, "gradients are scaled down to this norm; inf: never", least=0, free=True)
    device: str = option("auto", "auto (a GPU where it is there and helps), cpu, cuda or cuda:N", free=True)
    precision: str = option(
        "auto",
        "of the arithmetic; auto: bfloat16 products on a GPU, with float32 states and weights, else float32",
        choices=("auto", "float32", "bfloat16", "float64"),
    )
    deterministic: bool = option(False, "the same bits every time on a GPU too", free=True)
    checkpoint_windows: int = option(0, "save after so many windows; 0: by time only", least=0, free=True)
    checkpoint_minutes: float = option(5.0, "save after so many minutes", least=0, free=True)

    def split_of(self, log: EventLog) -> Split:
        return Split.parse(self.split) if self.split else log.split

    def protocol(self, log: EventLog) -> str:
        """What validation ranks among."""
        return "full" if log.num_items <= self.full_ranking_up_to else "sampled-9999"

    def ranges(self, log: EventLog) -> tuple[range, range]:
        """The events to train on, and those to validate on."""
        parts = self.split_of(log).ranges(len(log))
        if not parts["train"]:
            raise DataError(f"no events to train on: of {len(log)} events, split {self.split_of(log)} leaves none.")
        return parts["train"], parts["valid"][: self.valid_events or None]
