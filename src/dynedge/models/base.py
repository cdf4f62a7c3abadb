"""The model contract: the few methods by which training and evaluation know every model.

Legend: n events of a window, C candidates, I items of the log.

A prediction for event k uses only what was known before k; only then does the state advance past event k. What a
model remembers of past events is its `State`, passed in explicitly and advanced by `loss`, `score` and `observe`.
Parameters are what training changes. Nothing else may carry information from event to event.

Everything a model can do beyond this contract is a capability (capabilities.py).
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor, nn

from dynedge.data.log import EventLog
from dynedge.data.windows import Window, cut_windows
from dynedge.errors import DataError
from dynedge.models.entity_rows import Rows, grown_table
from dynedge.ops.item_ranks import ranks_on_device
from dynedge.utils.array_type import Array
from dynedge.utils.prefetch import prefetch_map

Tensors = Mapping[str, Tensor]
REPLAYED = 50_000  # latest events of which some are learned again with a window after training, where models replay


class NonFiniteStateError(DataError):
    """An event would make a state infinite or NaN; raised before anything of the `State` has changed."""


NON_FINITE = "the event would make a state infinite, so it is not applied."


def check_finite(*computed: Tensor) -> None:
    """Raises NonFiniteStateError unless all numbers are finite. Their sum is read first: it is cheaper."""
    for tensor in computed:
        if not math.isfinite(float(tensor.sum())) and not bool(torch.isfinite(tensor).all()):
            raise NonFiniteStateError(NON_FINITE)


class State(dict[str, Tensor]):
    """A model's memory of past events: named tensors, advanced in place."""

    def clone(self) -> State:
        return State({name: tensor.clone() for name, tensor in self.items()})

    def placed_like(self, other: State) -> State:
        """The same tensors, each on the device where the other state has it: beside a GPU some stay on the host."""
        return State({name: t.to(other[name].device if name in other else "cpu") for name, t in self.items()})


@dataclass(frozen=True, eq=False)
class LogShape:
    """What a model must know of a log to size its tables; it has no events."""

    users: int
    items: int
    features: int
    categories: tuple[int, ...]  # number of values of each categorical item feature
    item_categories: Array  # int32[I, number of categorical features]; -1: none
    one_population: bool = False  # users and items are the same entities
    user_category_counts: tuple[int, ...] = ()  # number of values of each categorical user feature
    user_categories: Array = field(default_factory=lambda: np.zeros((0, 0), np.int32))  # the same of users

    @classmethod
    def of(cls, log: EventLog) -> LogShape:
        return cls(
            log.num_users,
            log.num_items,
            log.features.shape[1],
            tuple(len(ids) for ids in log.category_ids),
            np.asarray(log.item_categories),
            log.one_population,
            tuple(len(ids) for ids in log.user_category_ids),
            np.asarray(log.user_categories),
        )


@dataclass(frozen=True)
class Step:
    """Position in training. It seeds a window's random draws, so that a resumed run draws the same."""

    seed: int
    epoch: int
    window: int
    negatives: Tensor | None = None  # drawn beforehand by `GraphCapturable.sample_negatives`

    def generator(self, device: torch.device | str = "cpu") -> torch.Generator:
        mixed = np.random.SeedSequence([self.seed, self.epoch, self.window]).generate_state(1, np.uint64)[0]
        return torch.Generator(device).manual_seed(int(mixed) >> 1)


@dataclass(frozen=True)
class Loss:
    """The loss of a window: a scalar to differentiate, and numbers to log (means over the window's events).

    Logged numbers may be tensors that a GPU has yet to fill; reading them waits for it.
    """

    total: Tensor
    log: Mapping[str, float | Tensor]


def loggable(number: Tensor) -> float | Tensor:
    """A number to log: on a GPU it stays a tensor, so that nothing waits for it before it is read."""
    return number if number.is_cuda else float(number)


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Torch's global generator seeded inside the block, and as it was after it."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        yield


class Model(nn.Module, ABC):
    """A recommender under the contract. `batches` and `prepare` read no parameter, so they may run ahead in threads.

    Core methods: `batches`, `start`, `loss`, `prepare`, `score`, `score_query`, `observe`. A model must write `loss`,
    `score` and `score_query`; the others have defaults for models without a state and without preparation.
    """

    config: Any
    shape: LogShape

    def __init__(self, config: Any, shape: LogShape) -> None:
        super().__init__()
        self.config, self.shape = config, shape

    # ---- construction

    @classmethod
    def create(cls, config: Any, log: EventLog, train_end: int, seed: int) -> Self:
        """A new model for the log's first `train_end` events, on the CPU in float32, seeded."""
        with seeded(seed):
            return cls(config, LogShape.of(log))

    @classmethod
    def restore(cls, config: Any, shape: LogShape, tensors: Tensors) -> Self:
        """A trained model from its state_dict."""
        model = cls(config, shape)
        model.load_state_dict(tensors)
        return model

    @property
    def num_parameters(self) -> int:
        """Number of numbers that are learned."""
        return sum(parameter.numel() for parameter in self.parameters() if parameter.requires_grad)

    def entity_rows(self) -> dict[str, Rows]:
        """The parameters and buffers that have a row for each user or item, by their names in the state_dict."""
        return {}

    def grown_tensors(self, shape: LogShape, seed: int) -> dict[str, Tensor]:
        """The state_dict for a log that has gained users and items; `restore` makes a model of it."""
        generator, tensors = torch.Generator().manual_seed(seed), self.state_dict()
        tables = {
            name: grown_table(tensors[name], rows, self.shape, shape, generator)
            for name, rows in self.entity_rows().items()
        }
        return {**tensors, **tables}

    @classmethod
    def supports(cls, capability: type, config: Any) -> bool:
        """Whether the model has a capability (capabilities.py) under this config."""
        return issubclass(cls, capability)

    @property
    def device(self) -> torch.device:
        """Where it computes; parts of its state may stay on the host."""
        return next((tensor.device for tensor in (*self.parameters(), *self.buffers())), torch.device("cpu"))

    # ---- training

    def num_windows(self, train_end: int) -> int:
        """Number of training windows per epoch."""
        return int(self.config.windows)

    def training_windows(self, train_end: int) -> list[range]:
        """The first `train_end` events, cut into the windows of an epoch."""
        return cut_windows(train_end, self.num_windows(train_end))

    def begin_training(self, log: EventLog, train_end: int) -> None:
        """Called once before training on the log's first `train_end` events: may set what the optimizer reads."""
        return

    def batches(self, log: EventLog, windows: Sequence[range], first: int = 0) -> Iterator[Any]:
        """Training batches, one per window, from window number `first` on: what `loss` takes."""
        return prefetch_map(lambda events: self.prepare(Window(log, events)), windows[first:], threads=1)

    def continued_batch(self, window: Window, state: State) -> Any:
        """A training batch, as `loss` takes it, of events that follow those the state has consumed.

        For learning after training, from any position of a log. It may advance what of the state is kept on the host;
        `loss` and `after_step` advance the rest.
        """
        return self.prepare(window)

    def with_replay(self, batch: Any, earlier: Sequence[Any]) -> Any:
        """A continued batch that also trains on earlier ones, as far as their loss does not depend on the state."""
        return batch

    @abstractmethod
    def loss(self, batch: Any, state: State, step: Step) -> Loss:
        """The loss of a training batch; advances the state past it, without gradient."""

    def after_step(self, batch: Any, state: State) -> None:
        """Advances the part of the state that is kept on the host past a training batch.

        Called after every step, also where a captured CUDA graph is replayed and `loss` is not called. After the last
        window the state must be that at the end of the training events.
        """

    def start_epoch(self, epoch: int) -> None:
        """Called before the batches of an epoch are read, also where a run is resumed within it."""

    def end_epoch(self, epoch: int) -> dict[str, float]:
        """Work due between epochs, and after learning from a window later on; returns numbers to log."""
        return {}

    def run_info(self) -> dict[str, Any]:
        """Plain values about how training is laid out, stored in the run folder."""
        return {}

    # ---- scoring

    def start(self) -> State:
        """The state before the first event; empty for a model that remembers nothing."""
        return State()

    def check_state(self, state: State) -> None:
        """Raises DataError if a state from a file does not fit the model: an index out of range, a missing tensor.

        A model that uses numbers of its state as indices must check their range here (state_checks.py).
        """
        from dynedge.models.state_checks import check_like

        check_like(state, self.start())

    def prepare(self, window: Window) -> Any:
        """A window as `score` takes it."""
        return window

    @abstractmethod
    def score(self, batch: Any, candidates: Tensor | None, state: State) -> Tensor:
        """float[n, C] for candidates int64[n, C], or float[n, I] for None, all items; advances the state.

        Row k sees only what came before event k.
        """

    def rank(self, batch: Any, candidates: Tensor | None, true: Tensor, state: State) -> Tensor:
        """float64[n]: ranks of the columns `true` int64[n] by `score` (ops/item_ranks); advances the state."""
        scores = self.score(batch, candidates, state)
        return ranks_on_device(scores, true.to(scores.device))

    def scores_per_rank(self, items: int) -> int:
        """Number of scores of an event that `rank` holds at once, where all items are candidates."""
        return items

    @abstractmethod
    def score_query(self, users: Tensor, times: Tensor, candidates: Tensor | None, state: State) -> Tensor:
        """Scores as `score` gives them, for users at given times instead of events; the state does not change."""

    def observe(self, window: Window, state: State) -> None:
        """Advances the state past a window without scoring.

        Raises NonFiniteStateError, with the state unchanged, where a new state would not be finite.
        """
        no_candidates = torch.empty((len(window), 0), dtype=torch.int64, device=self.device)
        self.score(self.prepare(window), no_candidates, state)
