"""Training settings: a section of every run's config.toml."""

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
    """Settings of the training loop, the same for every model."""

    epochs: int = option(20, "Maximum number of training epochs.", least=0, free=True)
    patience: int = option(
        4, "Number of epochs without a better validation MRR before training stops; 0: never.", least=0, free=True
    )
    seed: int = option(0, "Seed of all random numbers.", least=0)
    split: str = option(
        "",
        "Shares of train, validation and test events, as 0.8,0.1,0.1, or by time:A,B,C; empty: the log's split.",
        metavar="A,B,C",
    )
    validation_events: int = option(
        20_000, "Number of validation events ranked after each epoch, from the first; 0: all.", least=0
    )
    full_ranking_up_to: int = option(
        200_000, "Largest number of items for validation among all items; above it, among 9,999 samples.", least=0
    )
    lr: float = option(1e-3, "Learning rate of Adam for dense parameters.", least=0, free=True)
    row_lr: float = option(1e-2, "Learning rate of Adam for embedding rows (sparse gradients).", least=0, free=True)
    lr_decay: float = option(
        0.5, "Factor of both learning rates after each epoch without a better validation MRR; 1: none.", least=0
    )
    max_grad_norm: float = option(
        1.0, "Norm to which larger gradients are scaled down; inf: no clipping.", least=0, free=True
    )
    average: int = option(
        0, "Number of windows over which the parameters used after training are averaged; 0: none.", least=0
    )
    segments: int = option(
        1, "Number of segments of an epoch that are trained in parallel (docs/scaling.md).", least=1
    )
    device: str = option("auto", "Device: auto (a GPU if available and faster), cpu, cuda or cuda:N.", free=True)
    precision: str = option(
        "auto",
        "Arithmetic precision; auto: bfloat16 products with float32 states and weights on a GPU, else float32.",
        choices=("auto", "float32", "bfloat16", "float64"),
    )
    deterministic: bool = option(False, "Bit-identical results on a GPU too.", free=True)
    checkpoint_windows: int = option(0, "Number of windows between checkpoints; 0: by time only.", least=0, free=True)
    checkpoint_minutes: float = option(5.0, "Minutes between checkpoints.", least=0, free=True)

    def resolve_split(self, log: EventLog, events: int | None = None) -> Split:
        """Returns the configured split, or else the log's, by position; that of its first `events` if given."""
        return Split.parse(self.split).at(log.time[:events]) if self.split else log.split

    def validation_protocol(self, log: EventLog) -> str:
        """Returns the name of the evaluation protocol that validation uses on this log."""
        return "full" if log.num_items <= self.full_ranking_up_to else "sampled-9999"

    def train_valid_ranges(self, log: EventLog) -> tuple[range, range]:
        """Returns the positions of the training events and of the events that validation ranks."""
        parts = self.resolve_split(log).ranges(len(log))
        if not parts["train"]:
            raise DataError(
                f"no events to train on: split {self.resolve_split(log)} leaves none of {len(log)} events."
            )
        return parts["train"], parts["valid"][: self.validation_events or None]
