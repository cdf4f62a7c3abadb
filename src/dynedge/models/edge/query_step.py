"""The queries of a few users in one compiled step on a CPU: what `Recurrence.score_query` does by tensor operations.

Legend: n users, I items, d width of a state, f width of an item's features, s width of a query (d, or 2d with item
ids), p popularity columns.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from torch import Tensor

from dynedge.models.base import State
from dynedge.models.edge import popularity, repeat_bonus, successors
from dynedge.models.edge.compiled_step import GAPS, CompiledStep, Entities, array, item_features, read_state
from dynedge.models.edge.hash_table import CountTable
from dynedge.models.edge.popularity import fill_scores
from dynedge.models.edge.repeat_bonus import add_bonus as add_repeats
from dynedge.models.edge.repeat_bonus import add_profile
from dynedge.models.edge.successors import add_bonus as add_successors
from dynedge.models.layers import Head
from dynedge.ops.gather_linear.cpu_kernels import fill_bias, transposed
from dynedge.ops.gather_matmul import add_matmul
from dynedge.ops.thread_pool import part_of_range, run_in_parts
from dynedge.utils.array_type import Array
from dynedge.utils.numba_compile import compiled

if TYPE_CHECKING:
    from dynedge.models.edge.recurrence import Recurrence

STATES = "user", "user_moved", "user_time", "last_item", "item", "item_moved"
COUNTED = popularity.COUNTS, popularity.EVENT, popularity.CLOCK
REPEATS = tuple(f"{repeat_bonus.TABLE}.{name}" for name in CountTable._fields)
SUCCESSORS = successors.ITEMS, successors.COUNT, successors.LAST
BLOCK = 128  # items whose states stay in the cache for the next user
ITEMS_PER_ROW = 16  # items that take as long as a row of other operators
FIRST_SUCCESSOR = repeat_bonus.BUCKETS
REASSOCIATE = {"reassoc", "contract", "nsz"}


class _Weights(NamedTuple):
    """The recurrence's parameters as the kernels read them; what a model does not have is empty."""

    entities: Entities
    hidden: Array  # [d + f + GAPS (+ s), 2d]
    hidden_bias: Array
    out: Array  # [2d, s (+ gates)]
    out_bias: Array
    skip: Array  # [s, s]
    profile: Array  # [I, d]: vectors of the user's items
    profile_weight: Array  # their weights, by bucket
    popularity: Array  # [p]
    ages: Array  # one over each half-life of the age
    repeats: Array  # values of the buckets
    successors: Array


class _States(NamedTuple):
    """The parts of the `State` that a query reads."""

    user: Array
    user_moved: Array
    user_time: Array
    last_item: Array
    item: Array
    item_moved: Array
    counts: Array  # empty without popularity columns
    event: Array
    clock: Array
    repeats: CountTable
    next_items: Array
    next_count: Array
    next_last: Array


class QueryStep(CompiledStep[_Weights, _States]):
    """Answers queries for a recurrence; `supports` says for which ones it can."""

    def __init__(self, model: Recurrence) -> None:
        super().__init__(model)
        rates = model.popularity
        parts = (
            (model.config.popularity, popularity.empty(0, rates, model.xi.detach())),
            (model.lists.repeats, repeat_bonus.empty_lists()),
            (model.lists.successors, successors.empty_lists(0, 0)),
        )
        self._names = (*STATES, *(name for present, part in parts if present for name in part))
        self._absent = {name: part[name].numpy() for present, part in parts if not present for name in part}
        self._ages = rates.ages.float().numpy()

    @staticmethod
    def supports(model: Recurrence) -> bool:
        return CompiledStep.supports(model) and not model.training and not torch.is_autocast_enabled("cpu")

    def scores(self, users: Tensor, times: Tensor, state: State) -> Tensor:
        """float32[n, I]: the scores of all items."""
        weights, states, ids = self._current_weights(), self._current_states(state, self._names), self._ids()
        vectors, out = torch.empty(len(users), weights.out.shape[1]), torch.empty(len(users), len(states.item))
        _begin(users.numpy(), times.double().numpy(), weights, states, ids, vectors.numpy(), out.numpy())
        rows, columns = out.numel() // ITEMS_PER_ROW, len(weights.popularity)
        run_in_parts(_add_products, rows, vectors.numpy(), weights.entities, states, ids, columns, out.numpy())
        return out

    def query_vector(self, user: int, time: float, state: State) -> tuple[Tensor, Tensor]:
        """(float32[I], float32[s + 1]): as `Searchable.query_vector`."""
        weights, states, ids = self._current_weights(), self._current_states(state, self._names), self._ids()
        width, d = self._model.query_width, states.item.shape[1]
        vector, base = torch.empty(1, weights.out.shape[1]), torch.empty(1, len(states.item))
        _begin(np.array([user]), np.array([time]), weights, states, ids, vector.numpy(), base.numpy())
        vector[0, d - len(weights.popularity) : d] = 0
        return base[0], torch.cat([vector[0, :width], vector.new_ones(1)])

    def _ids(self) -> Array:
        ids = self._model.candidate_ids
        return np.zeros((0, 0), np.float32) if ids is None else array(ids)

    def _read_weights(self, entities: Entities) -> _Weights:
        model, empty = self._model, np.zeros(0, np.float32)
        hidden, out = _linear(model.head, 0), _linear(model.head, 2)
        skip = np.zeros((0, 0), np.float32) if model.skip is None else transposed(array(model.skip.weight))
        columns = empty if model.popularity_weight is None else array(model.popularity_weight)
        bonus = np.zeros(FIRST_SUCCESSOR, np.float32) if model.bonus is None else array(model.bonus)
        sources = bonus[:FIRST_SUCCESSOR], bonus[FIRST_SUCCESSOR:]
        profile = np.zeros((0, 0), np.float32), empty
        if model.profile is not None:
            profile = array(model.profile.items), array(model.profile.weight)
        return _Weights(entities, *hidden, *out, skip, *profile, columns, self._ages, *sources)

    def _learned(self) -> Iterable[Tensor]:
        model = self._model
        yield from (*model.items.parameters(), model.xi, *model.psi, *model.head.parameters())
        yield from () if model.profile is None else model.profile.parameters()
        optional = (model.bonus, model.popularity_weight, None if model.skip is None else model.skip.weight)
        yield from (parameter for parameter in optional if parameter is not None)

    def _read_states(self, arrays: Sequence[Array]) -> _States:
        named = dict(zip(self._names, arrays, strict=True)) | self._absent
        table = CountTable(*(named[name] for name in REPEATS))
        before, after = ([named[name] for name in names] for names in ((*STATES, *COUNTED), SUCCESSORS))
        return _States._make([*before, table, *after])


def _linear(head: Head, place: int) -> tuple[Array, Array]:
    """(weight [inputs, outputs], bias) of a layer."""
    return transposed(array(head[place].weight)), array(head[place].bias)


@compiled
def _begin(
    users: Array, times: Array, weights: _Weights, states: _States, ids: Array, vectors: Array, out: Array
) -> None:
    """Fills the users' query vectors and gates, and out with the scores that are not products with item states."""
    d, columns = states.item.shape[1], len(weights.popularity)
    width = 2 * d if len(ids) else d
    for k in range(len(users)):
        vector = vectors[k : k + 1]
        _fill_vector(users[k], times[k], weights, states, ids, vector)
        if columns:
            popular = vector[0, d - columns : d]
            fill_scores(states.counts, states.event, states.clock, weights.ages, popular, out[k])
        else:
            out[k] = 0
        if vectors.shape[1] > width:
            add_repeats(states.repeats, users[k], times[k], weights.repeats, vector[0, width], out[k])
            following = states.next_items, states.next_count, states.next_last
            if len(states.next_last):
                add_successors(*following, users[k], weights.successors, vector[0, width + 1], out[k])


@compiled
def _fill_vector(user: int, time: float, weights: _Weights, states: _States, ids: Array, vector: Array) -> None:
    """The head's output for one user, with skip connection, profile and mean weights of the popularity columns."""
    d, last, zero = states.item.shape[1], states.last_item[user], np.zeros(1, np.int64)
    features = item_features(last, weights.entities)
    inputs, row = np.zeros((1, weights.hidden.shape[0]), np.float32), np.empty((1, d), np.float32)
    read_state(row, user, weights.entities, 0, states.user, states.user_moved)
    inputs[0, :d] = row[0]
    inputs[0, d : d + features.shape[1]] = features[0]
    gap, before = d + features.shape[1], states.user_time[user]
    if before >= 0:
        inputs[0, gap], inputs[0, gap + 1] = np.log1p(max(time - before, 0.0)), 1
    copied = gap + GAPS
    if len(weights.skip) and last >= 0:
        read_state(row, last, weights.entities, 1, states.item, states.item_moved)
        inputs[0, copied : copied + d] = row[0]
        if len(ids):
            inputs[0, copied + d :] = ids[last, :d]
    hidden = np.empty((1, len(weights.hidden_bias)), np.float32)
    fill_bias(hidden, weights.hidden_bias)
    add_matmul(hidden, 0, zero, inputs, 0, zero, 1, weights.hidden)
    for j in range(hidden.shape[1]):
        hidden[0, j] = max(hidden[0, j], np.float32(0))
    fill_bias(vector, weights.out_bias)
    add_matmul(vector, 0, zero, hidden, 0, zero, 1, weights.out)
    if len(weights.skip):
        add_matmul(vector, 0, zero, inputs, copied, zero, 1, weights.skip)
    if len(weights.profile):
        add_profile(states.repeats, user, time, weights.profile_weight, weights.profile, vector[0, d : 2 * d])
    for j in range(len(weights.popularity)):
        vector[0, d - len(weights.popularity) + j] += weights.popularity[j]


@compiled(fastmath=REASSOCIATE)
def _add_products(
    part: int, parts: int, vectors: Array, entities: Entities, states: _States, ids: Array, columns: int, out: Array
) -> None:
    """out[k, i] += the products of user k's query with the state and the id embedding of item i, and its bias."""
    d = states.item.shape[1]
    psi, psi_row, xi = entities.psi[1], entities.psi_row[1], entities.xi[1]
    start, stop = part_of_range(0, out.shape[1], part, parts)
    for first in range(start, stop, BLOCK):
        last = min(first + BLOCK, stop)
        for k in range(len(out)):
            for i in range(first, last):
                total = np.float32(0)
                if states.item_moved[i]:
                    for j in range(d - columns):
                        total += vectors[k, j] * states.item[i, j]
                elif psi_row[i] >= 0:
                    for j in range(d - columns):
                        total += vectors[k, j] * psi[psi_row[i], j]
                else:
                    for j in range(d - columns):
                        total += vectors[k, j] * xi[j]
                if len(ids):
                    for j in range(d):
                        total += vectors[k, d + j] * ids[i, j]
                    total += ids[i, d]
                out[k, i] += total
