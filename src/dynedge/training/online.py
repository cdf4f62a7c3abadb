"""Online learning: gradient steps on each window of events after it has been ranked.

The learner keeps a training state of its own, next to the one that ranks. After every few windows it goes back to the
state before them and trains on them a second time, with the parameters as they are by then. Each step also trains on
some of the latest windows again, as far as a model can without their states (`Model.with_replay`): the gradient of a
single window is mostly noise.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from dynedge.data.log import EventLog
from dynedge.data.windows import Window
from dynedge.errors import DataError
from dynedge.evaluation.protocol import chunks, rank_events
from dynedge.models.base import Model, State, Step
from dynedge.models.capabilities import Calibrated, capable
from dynedge.training.config import TrainingConfig
from dynedge.training.loop import threads_for
from dynedge.training.optimizer import Adam
from dynedge.training.precision import autocast
from dynedge.training.step import TrainingStep
from dynedge.training.train_state import exchanged
from dynedge.utils.array_type import Array

RATES = (0.0, 0.1, 0.3, 1.0, 3.0)  # factors of the learning rates to choose from, on validation events
WINDOW = 300  # maximum number of events that are ranked before they are learned from
LEAST_WINDOWS = 20  # of the validation events, by which the factor of the learning rates is chosen
REPEATED_WINDOWS = 8  # windows after which they are trained on again, from the state before them
REPLAYED_WINDOWS = 3  # drawn for each step, from the latest …
BUFFERED_WINDOWS = 64
AVERAGED_WINDOWS = 50  # of the moving average of the parameters that ranks, where training averages them too
CALIBRATION_EVENTS = 20_000  # half-life of the reciprocal ranks by which the fusion weight is chosen


class OnlineLearner:
    """A model that goes on learning: `rank` events, then `learn` from them.

    `state` is the state that ranks; it is advanced. `rate` is a factor of the configured learning rates; 0: the
    parameters stay, and only a calibrated setting follows the events.
    """

    def __init__(
        self,
        model: Model,
        optimizer: Adam,
        state: State,
        config: TrainingConfig,
        rate: float,
        average: int = AVERAGED_WINDOWS,
    ) -> None:
        self.model, self.state, self.config, self.rate, self._windows = model, state, config, rate, average
        parameters = optimizer.parameters if rate and average and config.average else {}
        self._average = {name: parameter.detach().clone() for name, parameter in parameters.items()}
        optimizer.scale_learning_rate(rate)
        self._optimizer, self._step = optimizer, TrainingStep(model, optimizer, config)
        self._trained = state.clone() if rate else State()  # the state that training advances
        self._before = self._trained.clone()  # as it was before the windows to repeat
        self._to_repeat: list[Window] = []
        self._latest: deque[Any] = deque(maxlen=BUFFERED_WINDOWS)  # training batches of the latest windows
        self._rewards: Array | None = None  # decayed sums of reciprocal ranks, of each calibration option

    def rank(self, log: EventLog, events: range, protocol: str) -> Array:
        """float64[events]: the ranks, with the parameters learned from earlier events; the state advances."""
        self.model.eval()
        with torch.no_grad(), autocast(self.config), exchanged(self._optimizer.parameters, self._average):
            calibrated = capable(self.model, Calibrated)
            if calibrated is None:
                return rank_events(self.model, log, events, self.state, protocol=protocol)
            options = list(calibrated.calibration_options())
            ranks = np.concatenate(
                [
                    calibrated.calibration_ranks(chunk.batch, chunk.candidates, chunk.true, self.state)
                    for chunk in chunks(self.model, log, events, protocol)
                ],
                1,
            )
            used = ranks[options.index(calibrated.calibration)]
            before = 0.0 if self._rewards is None else self._rewards * 0.5 ** (len(events) / CALIBRATION_EVENTS)
            self._rewards = before + (1 / ranks).sum(1)
            calibrated.set_calibration(options[int(self._rewards.argmax())])
            return np.asarray(used)

    def learn(self, window: Window) -> None:
        """Takes a gradient step on events that have been ranked; every few windows, repeats the last few."""
        if not self.rate:
            return
        with threads_for([window.events]):
            self._latest.append(self._train(window, epoch=0))
            self._to_repeat.append(window)
            if len(self._to_repeat) == REPEATED_WINDOWS:
                self._trained = self._before
                for earlier in self._to_repeat:
                    self._train(earlier, epoch=1)
                self._before, self._to_repeat = self._trained.clone(), []
        self.model.end_epoch(0)
        if self._average:
            trained = [self._optimizer.parameters[name].detach() for name in self._average]
            torch._foreach_lerp_(list(self._average.values()), trained, 1 / self._windows)

    def _train(self, window: Window, epoch: int) -> Any:
        """Takes a step on a window and some of the latest ones; returns the window's batch."""
        self.model.train()
        position = Step(self.config.seed, epoch, window.events.start)
        torch.manual_seed(position.generator().initial_seed())
        batch = self.model.continued_batch(window, self._trained)
        rng = np.random.default_rng([self.config.seed, epoch, window.events.start])
        drawn = rng.permutation(len(self._latest))[:REPLAYED_WINDOWS]
        replayed = self.model.with_replay(batch, [self._latest[number] for number in drawn])
        _, norm = self._step.run(replayed, self._trained, position)
        self.model.after_step(batch, self._trained)
        self._optimizer.zero_grad()
        if not bool(torch.isfinite(norm)):
            raise DataError(
                f"online learning diverged at events {window.events.start} to {window.events.stop - 1}: the gradient "
                f"is not finite; lower --lr (now {self.config.lr:g}) when training the run."
            )
        return batch


def online_window(valid: range) -> int:
    """Events of a window: so few that the validation events show what learning gains."""
    return max(1, min(WINDOW, len(valid) // LEAST_WINDOWS))


def rank_online(
    learner: OnlineLearner,
    log: EventLog,
    events: range,
    *,
    protocol: str = "full",
    window: int = WINDOW,
    on_progress: Callable[[int], object] = lambda events: None,
) -> Array:
    """float64[events]: each window is ranked, then learned from. Ranks depend on earlier events alone."""
    ranks = np.empty(len(events))
    for start in range(events.start, events.stop, window):
        part = range(start, min(start + window, events.stop))
        ranks[part.start - events.start : part.stop - events.start] = learner.rank(log, part, protocol)
        learner.learn(Window(log, part))
        on_progress(len(part))
    return ranks
