"""Capabilities: what a model may be able to do beyond the contract. A model declares one by inheriting from it.

`capable(model, Growable)` gives the model if it has the capability, else None. tests/models/every_model.py has checks
for each capability, which every model that declares it must pass.

Legend: n events, users or items asked about, U users, I items, D width of a query, O calibration options.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from torch import Tensor

from dynedge.data.log import EventLog
from dynedge.data.windows import Window
from dynedge.models.base import Loss, Model, State, Step
from dynedge.utils.array_type import Array

C = TypeVar("C")


def capable(model: Model, capability: type[C]) -> C | None:
    """The model, if it has the capability."""
    has_it = isinstance(model, capability) and model.supports(capability, model.config)
    return model if has_it else None  # type: ignore[return-value]


class Growable(ABC):
    """Accepts users and items that its training log did not have."""

    @abstractmethod
    def grow(self, users: int, items: int, state: State) -> None:
        """Extends model and state to this many users and items; new ones start as entities without events.

        A grown model observes and scores; it is not trained.
        """


class Searchable(ABC):
    """Scores items by an inner product, so that the best ones can be found without scoring all."""

    @abstractmethod
    def query_vector(self, user: int, time: float, state: State) -> tuple[Tensor, Tensor]:
        """(base float[I], query float[D + 1]): `score_query` of item i is base[i] + query · item_matrix row i."""

    @abstractmethod
    def item_matrix(self, items: Tensor, state: State) -> Tensor:
        """float[n, D + 1]: the rows of these items; the last column is a bias."""


@dataclass(frozen=True)
class Explanation:
    """Where an item's score comes from: shares by source name, which sum to one."""

    shares: dict[str, float]
    nearest_item: int  # of the user's last items the one it co-occurs with most, or -1


class Explainable(ABC):
    """Attributes an item's score to its sources."""

    @abstractmethod
    def explain(self, user: int, time: float, items: Tensor, state: State) -> list[Explanation]:
        """One explanation for each of the items int64[n], of the score that `score_query` gives it."""


class Undoable(ABC):
    """Undoes one event at the cost of what the event touched."""

    @abstractmethod
    def apply_with_undo(self, window: Window, state: State) -> Callable[[], None]:
        """Observes a window of one event and returns a function that restores the state to the bit.

        The state must not change in between.
        """


def apply_with_undo(model: Model, window: Window, state: State) -> Callable[[], None]:
    """`Undoable.apply_with_undo` for any model and any window; without the capability the whole state is copied."""
    undoable = capable(model, Undoable)
    if undoable is not None and len(window) == 1:
        return undoable.apply_with_undo(window, state)
    before = state.clone()
    model.observe(window, state)
    return lambda: state.update(before)


class GraphCapturable(ABC):
    """Its training step on a GPU can be captured as a CUDA graph and replayed in later epochs."""

    @abstractmethod
    def is_graph_capturable(self, batch: Any) -> bool:
        """Whether `loss` launches the same kernels on the same memory for this batch in every epoch."""

    @abstractmethod
    def sample_negatives(self, batch: Any, step: Step) -> Tensor | None:
        """The negatives of a batch, drawn outside of the graph; None where all items are candidates."""


class SharesGraph(ABC):
    """Its training step launches the same kernels for every window of a size: one CUDA graph serves them all."""

    @abstractmethod
    def step_inputs(self, batch: Any, step: Step) -> tuple[Tensor, ...]:
        """What differs between steps, on the model's device."""

    @abstractmethod
    def loss_of(self, *inputs: Tensor) -> Loss:
        """The loss of a step from its inputs and the parameters alone."""


class TrainsSegments(ABC):
    """Trains several segments of consecutive windows side by side, each from a state of its own at its border."""

    @abstractmethod
    def prepare_segments(self, log: EventLog, windows: Sequence[range], segments: Sequence[range]) -> None:
        """Work due once, before training, if this process will train only the windows of these segments."""

    @abstractmethod
    def segment_batches(self, log: EventLog, windows: Sequence[range], numbers: range, entry: State) -> Iterator[Any]:
        """As `Model.batches`, of the windows with these numbers, given the state before the first of them.

        `entry` is not changed, and may be advanced by the reader meanwhile.
        """

    @abstractmethod
    def sweep(self, log: EventLog, windows: Sequence[range], numbers: range, state: State) -> None:
        """Advances the state past the windows with these numbers without learning from them.

        Only what of the state `loss` and `segment_batches` read has to advance.
        """

    @abstractmethod
    def rows_read(self, batch: Any, state: State) -> dict[str, Tensor]:
        """Parameters of which a training batch reads a few rows: their numbers, int64 and possibly repeated.

        By name. For None as the batch, no rows of the same parameters.
        """

    @abstractmethod
    def window_rows(self) -> dict[str, Sequence[int]]:
        """Parameters and buffers of which each row belongs to one window: where the rows of each window start.

        By name in the state_dict; the last entry is the number of rows.
        """


class Calibrated(ABC):
    """Chooses one setting on validation events after each epoch: the simplest of the best by MRR."""

    @property
    @abstractmethod
    def calibration(self) -> float:
        """The option in use."""

    @abstractmethod
    def calibration_options(self) -> Sequence[float]:
        """The O values to choose from, the simplest first."""

    @abstractmethod
    def calibration_ranks(self, batch: Any, candidates: Tensor | None, true: Tensor, state: State) -> Array:
        """float64[O, n]: the rank of candidate true[k] of event k under each option; advances the state."""

    @abstractmethod
    def set_calibration(self, value: float) -> dict[str, float]:
        """Uses this option from now on; returns numbers to log."""


class HasVectors(ABC):
    """Represents every user and every item by a vector."""

    @abstractmethod
    def vectors(self, state: State) -> tuple[Tensor, Tensor]:
        """float[U, …] and float[I, …]: the vectors of all users and of all items in this state."""


class HasStates(HasVectors):
    """Its vectors are states that change with every event."""

    @abstractmethod
    def entity_states(self, side: int, entities: Tensor, state: State) -> Tensor:
        """float[n, d]: the states of these users (side 0) or items (side 1)."""


class RemembersSeen(ABC):
    """Remembers which items each user has interacted with."""

    @abstractmethod
    def seen_items(self, users: Tensor, state: State) -> Tensor:
        """bool[n, I]: the items that each of these users has interacted with."""
