"""What every model can do. The training loop and the evaluation know models by these verbs alone, never by name.

Legend: n events of a window, C candidates, I items of the log.

A model never sees the future: a prediction for event k uses what was known before k, and only then does the state
take event k in. What a model remembers of the events so far is its State, which is passed in and moved forward by
`loss` and `score`; parameters are what training changes, and nothing else is kept anywhere.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from dynedge.data.log import EventLog
from dynedge.data.windows import Window
from dynedge.errors import UsageError
from dynedge.utils.arrays import Array


class State(dict[str, Tensor]):
    """What is remembered of the events so far: named tensors, moved forward in place."""

    def clone(self) -> State:
        return State({name: tensor.clone() for name, tensor in self.items()})

    def beside(self, other: State) -> State:
        """The same, each tensor where the other state has its own: next to a GPU, some are kept on the host.

        In the other's order, too: where the first one is, scores are made (ranking/protocol.py).
        """
        order = [name for name in other if name in self] + [name for name in self if name not in other]
        return State({name: self[name].to(other[name].device if name in other else "cpu") for name in order})


# int64[n, C]: what a window's events are ranked among, the true items first; None: all items
Among = Callable[[Window], Tensor | None]


def all_items(window: Window) -> Tensor | None:
    return None


@dataclass(frozen=True)
class Step:
    """Where training stands: what a window's random draws are seeded with, so that a resumed run draws the same."""

    seed: int
    epoch: int
    window: int
    drawn: Tensor | None = None  # what the model's `draw` gave, if it was asked before

    def generator(self, device: torch.device | str = "cpu") -> torch.Generator:
        mixed = np.random.SeedSequence([self.seed, self.epoch, self.window]).generate_state(1, np.uint64)[0]
        return torch.Generator(device).manual_seed(int(mixed >> 1))


@dataclass(frozen=True)
class Loss:
    """What a window costs: a scalar to differentiate, and numbers to log (means over the window's events).

    Numbers may be tensors that a GPU has yet to fill: who reads them waits.
    """

    total: Tensor
    log: Mapping[str, float | Tensor]


@dataclass(frozen=True)
class Reason:
    """Shares, by name, that sum to one: of what lifts an item above the mean item."""

    shares: dict[str, float]
    near: int  # the item of the user's last ones that it stands nearest to, or -1


def told(number: Tensor) -> float | Tensor:
    """A number to log: of a GPU a tensor, so that nobody waits for it before it is due."""
    return number if number.is_cuda else float(number)


class Model(nn.Module, ABC):
    """A system under the contract. `prepare` and `windows` touch no parameter, so they may run ahead in threads."""

    grows = False  # whether it can take in users and items that its training log did not have
    chooses = False  # whether `calibrate` does

    @abstractmethod
    def windows(self, log: EventLog, train_end: int, first: int = 0) -> Iterator[Any]:
        """The training windows from number `first` on, prepared: what `loss` takes, in order."""

    @abstractmethod
    def num_windows(self, train_end: int) -> int:
        """How many training windows an epoch has."""

    @abstractmethod
    def start(self) -> State:
        """The state before the first event."""

    @abstractmethod
    def loss(self, prepared: Any, state: State, step: Step) -> Loss:
        """The loss of a training window; the state moves past it, without gradient, but for what `passed` moves."""

    def draw(self, prepared: Any, step: Step) -> Tensor | None:
        """What `loss` draws for a window, where it can be drawn beforehand."""
        return None

    def repeats(self, prepared: Any) -> bool:
        """Whether `loss` makes a GPU do the same for this window in each epoch, but for the numbers it reads."""
        return False

    def passed(self, prepared: Any, state: State) -> None:
        """A training window is done: whatever of the state is kept on the host moves past it.

        `loss` is not called where a GPU repeats what was recorded of it; this is, each time. At the latest with the
        last window the state is that at the end of the training events.
        """

    def end_epoch(self, epoch: int) -> dict[str, float]:
        """Whatever is due between epochs (multipliers, copies); numbers to log."""
        return {}

    def calibrate(
        self, log: EventLog, events: range, state: State, among: Among = all_items
    ) -> tuple[dict[str, float], Array | None]:
        """Choose what is to be chosen on validation events: after an epoch on the first, at the end on more of them.

        The state is a copy.

        Numbers to log, and the events' ranks (ops/ranks.py) by what was chosen, where they are at hand.
        """
        return {}, None

    def facts(self) -> dict[str, Any]:
        """What a person may want to see of how training was laid out; plain values, kept in the run folder."""
        return {}

    @abstractmethod
    def prepare(self, window: Window) -> Any:
        """A window for `score`: nothing cut, nothing static."""

    @abstractmethod
    def score(self, prepared: Any, candidates: Tensor | None, state: State) -> Tensor:
        """float[n, C] for candidates int64[n, C], or float[n, I] for None: all items. Row k sees what was before k.

        The state moves past the window.
        """

    def observe(self, window: Window, state: State) -> None:
        """The state moves past the window as by `score`, and nothing is scored: a model that can spare that does."""
        device = next((tensor.device for tensor in state.values()), None)
        nobody = torch.empty((len(window), 0), dtype=torch.int64, device=device)
        self.score(self.prepare(window), nobody, state)

    def suppose(self, window: Window, state: State) -> Callable[[], None]:
        """As `observe`, and what comes back undoes it: the state is what it was, to the bit. It moves not in between.

        A model that knows what an event touches keeps that alone; here it is all of the state.
        """
        before = state.clone()
        self.observe(window, state)

        def undo() -> None:
            for name, tensor in before.items():
                state[name] = tensor

        return undo

    def grow(self, users: int, items: int, state: State) -> None:
        """From now on there are so many users and items: the new ones are at their beginning, as one nobody has met.

        In model and state alike. A grown model observes and answers; it is not trained on.
        """
        raise UsageError(f"{type(self).__name__} knows the users and items of its training log only; train it again.")

    def seen(self, users: Tensor, state: State) -> Tensor | None:
        """bool[n, I]: the items that each of the users has had; None of a model that does not remember them."""
        return None

    def vectors(self, state: State) -> tuple[Tensor, Tensor] | None:
        """A vector for every user and one for every item, as they are now; None of a model that has none."""
        return None

    def states(self, side: int, rows: Tensor, state: State) -> Tensor | None:
        """[n, d]: the evolving part of the vectors of these users (side 0) or items (1); None where there is none."""
        return None

    def asked(self, user: int, time: float, state: State) -> tuple[Tensor, Tensor] | None:
        """(base float[I], query float[D + 1]): of item i, `peek` says base[i] + query · its row of `item_rows`.

        None of a model whose scores have no such form; who has it can be searched without looking at every row.
        """
        return None

    def item_rows(self, items: Tensor, state: State) -> Tensor:
        """float[n, D + 1]: what `asked` is about, of these items; the last column is a bias."""
        raise NotImplementedError("only a model that has `asked` is asked for these")

    def explain(self, user: int, time: float, items: Tensor, state: State) -> list[Reason] | None:
        """Why each of these items int64[n] has the score that `peek` gives it; None of a model that cannot say."""
        return None

    @abstractmethod
    def peek(self, users: Tensor, times: Tensor, candidates: Tensor | None, state: State) -> Tensor:
        """As score, for questions instead of events: nothing happens, the state stays as it is."""
