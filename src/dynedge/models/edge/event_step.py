"""One event in one compiled step: what the recurrence does with a window of one event on a CPU, to the bit.

The kernels are those of the windows.

Legend: d width of a state, f width of an item's features, e of an event's, h half-lives of the popularity columns.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from torch import Tensor

from dynedge.data.windows import Window
from dynedge.models.base import NON_FINITE, NonFiniteStateError, State
from dynedge.models.edge import popularity
from dynedge.models.edge.compiled_step import GAPS, CompiledStep, Entities, array, item_features, read_state
from dynedge.ops.decayed_counts.cpu import count_events
from dynedge.ops.gather_linear.cpu_kernels import fill_bias, transposed
from dynedge.ops.gather_matmul import add_matmul
from dynedge.ops.level_gru.cpu import root_bounds
from dynedge.ops.level_gru.cpu_kernels import forward, kernel_weights, project_roots
from dynedge.utils.array_type import Array
from dynedge.utils.numba_compile import compiled

if TYPE_CHECKING:
    from dynedge.models.edge.recurrence import Recurrence

STATES = "user", "item", "user_moved", "item_moved", "user_time", "item_time", "last_item"
COUNTED = popularity.COUNTS, popularity.EVENT, popularity.CLOCK


class _Weights(NamedTuple):
    """The recurrence's parameters as the kernels read them."""

    entities: Entities
    event: Array  # [features of an event, e]; e is 0 if there are none
    event_bias: Array  # [e]
    features: Array  # [2, f + e + GAPS, 3d]
    bias: Array  # [2, 3d]
    own_bias: Array
    own: Array  # [2, d, 3d]
    other: Array  # [2, d, 3d]


class _Window(NamedTuple):
    """The schedule of a window of one event, the same for all."""

    bounds: Array
    children: Array
    blocks: Array
    parents: Array
    exits: Array


class _States(NamedTuple):
    """The parts of the `State` that a step changes."""

    user: Array
    item: Array
    user_moved: Array
    item_moved: Array
    user_time: Array
    item_time: Array
    last_item: Array
    counts: Array  # [items, h], empty without popularity columns
    event: Array
    clock: Array


class EventStep(CompiledStep[_Weights, _States]):
    """Observes single events for a recurrence; `supports` says for which ones it can."""

    def __init__(self, model: Recurrence) -> None:
        super().__init__(model)
        self._gap = torch.zeros(2, dtype=torch.float64)
        schedule = model.schedule_of_one
        lists = schedule.children, schedule.blocks, schedule.parents, schedule.exit_rows
        self._window = _Window(root_bounds(schedule), *lists)
        self._rates = model.popularity.counts.numpy() if model.config.popularity else np.zeros(0)
        self._names = (*STATES, *COUNTED) if model.config.popularity else STATES

    @staticmethod
    def supports(model: Recurrence) -> bool:
        return CompiledStep.supports(model) and model.config.evolve_active

    def observe(self, window: Window, state: State) -> None:
        """Raises NonFiniteStateError before anything has changed."""
        weights, states = self._current_weights(), self._current_states(state, self._names)
        user, item, time = int(window.user[0]), int(window.item[0]), float(window.time[0])
        gaps = np.empty((2, GAPS), np.float32)
        before = states.user_time[user], states.item_time[item]
        log = self._gap.numpy()
        log[0], log[1] = max(time - before[0], 0.0), max(time - before[1], 0.0)
        torch.log1p(self._gap, out=self._gap)  # torch's own: its last bit may differ from other libraries'
        for side in (0, 1):
            gaps[side, 1] = exists = before[side] >= 0
            gaps[side, 0] = log[side] * exists
        if not _step(user, item, time, gaps, window.features, weights, self._window, states, self._rates):
            raise NonFiniteStateError(NON_FINITE)

    def _read_weights(self, entities: Entities) -> _Weights:
        event, gru = self._model.event, self._model.gru
        own_bias, own, other = kernel_weights(array(gru.own_bias), array(gru.own), array(gru.other))
        weight, bias = np.zeros((0, 0), np.float32), np.zeros(0, np.float32)
        if event is not None:
            weight, bias = transposed(array(event.weight)), array(event.bias)
        features = np.stack([transposed(side) for side in array(gru.feature)])
        return _Weights(entities, weight, bias, features, array(gru.bias), own_bias, own, other)

    def _learned(self) -> Iterable[Tensor]:
        model = self._model
        yield from (*model.items.parameters(), *model.gru.parameters(), model.xi, *model.psi)
        yield from () if model.event is None else model.event.parameters()

    def _read_states(self, arrays: Sequence[Array]) -> _States:
        no_counts = np.zeros((0, 0), np.float32), np.zeros(0, np.int64), np.zeros(1, np.int64)
        return _States._make([*arrays, *no_counts][: len(_States._fields)])


@compiled
def _step(
    user: int,
    item: int,
    time: float,
    gaps: Array,
    features: Array,
    weights: _Weights,
    window: _Window,
    states: _States,
    rates: Array,
) -> bool:
    """Writes the event's new states and what else it changes; False, and nothing written, if one is infinite."""
    d = states.user.shape[1]
    arena = np.empty((4, d), np.float32)
    read_state(arena[0:1], user, weights.entities, 0, states.user, states.user_moved)
    read_state(arena[1:2], item, weights.entities, 1, states.item, states.item_moved)
    products = _products(item, gaps, features, weights)
    entry_own, root_other = np.empty((2, 3 * d), np.float32), np.empty((2, 3 * d), np.float32)
    gates = np.empty((2, 4 * d), np.float32)
    matrices = weights.own, weights.other
    project_roots(0, 1, window.bounds, window.children, *matrices, arena, entry_own, root_other)
    tables = arena, entry_own, root_other, products, gates
    forward(0, 1, 0, 1, window.blocks, window.parents, weights.own_bias, *matrices, *tables)
    for row in range(2, 4):
        for j in range(d):
            if not np.isfinite(arena[row, j]):
                return False
    if len(rates):
        count, before = np.empty((1, len(rates)), np.float32), slice(item, item + 1)
        starts, events = np.array([0, 1]), np.zeros(1, np.int64)
        count_events(states.counts[before], states.event[before], starts, events, states.clock[0], rates, count)
        states.counts[item] = count[0]
        states.event[item] = states.clock[0]
        states.clock[0] += 1
    states.user[user] = arena[window.exits[0]]
    states.item[item] = arena[window.exits[1]]
    states.user_moved[user] = states.item_moved[item] = True
    states.user_time[user] = states.item_time[item] = time
    states.last_item[user] = item
    return True


@compiled
def _products(item: int, gaps: Array, features: Array, weights: _Weights) -> Array:
    """[2, 3d]: the products of the event's features with the weights of both sides, and the biases."""
    zero = np.zeros(1, np.int64)
    inputs = item_features(item, weights.entities)
    own = np.empty((1, len(weights.event_bias)), np.float32)
    if len(weights.event_bias):
        fill_bias(own, weights.event_bias)
        add_matmul(own, 0, zero, features, 0, zero, 1, weights.event)
    products, rows = np.empty((2, weights.bias.shape[1]), np.float32), np.empty(1, np.int64)
    first, second = inputs.shape[1], inputs.shape[1] + own.shape[1]
    for side in range(2):
        rows[0] = side
        fill_bias(products[side : side + 1], weights.bias[side])
        add_matmul(products, 0, rows, inputs, 0, zero, 1, weights.features[side, :first])
        if own.shape[1]:
            add_matmul(products, 0, rows, own, 0, zero, 1, weights.features[side, first:second])
        add_matmul(products, 0, rows, gaps, 0, rows, 1, weights.features[side, second:])
    return products
