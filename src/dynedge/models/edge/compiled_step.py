"""What the compiled steps of the recurrence share: its parameters and its state as arrays, and reading entities.

A step of one event or one query takes dozens of small tensor operations, whatever their size, and most of its time is
their overhead. So it is one compiled function on a CPU. The arrays share the tensors' memory; weights that are
transposed are read again when a parameter has changed.

Legend: d width of a state, f width of an item's features.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from operator import is_
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

import numpy as np
import torch
from torch import Tensor

from dynedge.models.base import State
from dynedge.ops.read_states.cpu import fill_rows
from dynedge.utils.array_type import Array
from dynedge.utils.numba_compile import compiled

if TYPE_CHECKING:
    from dynedge.models.edge.recurrence import Recurrence

GAPS = 2  # features of a time gap

W = TypeVar("W", bound=Any)
S = TypeVar("S")


class Entities(NamedTuple):
    """Where the states of users and items without events and the features of items come from."""

    codes: Array  # int64[tables, items + 1]
    tables: tuple[Array, ...]  # embeddings of an item's id and categories
    grown: bool  # the row before the last is that of all items added later
    xi: Array  # [2, d]
    psi: tuple[Array, Array]
    psi_row: tuple[Array, Array]


class CompiledStep(ABC, Generic[W, S]):
    """W: the parameters as a named tuple with a field `entities`; S: the parts of the state that the step uses."""

    def __init__(self, model: Recurrence) -> None:
        self._model = model
        self._versions: list[tuple[Tensor, int]] = []  # of the parameters that the weights were read from
        self._codes: Tensor | None = None
        self._psi_rows: tuple[Tensor, ...] = ()
        self._tensors: list[Tensor] = []
        self._weights: W
        self._states: S

    @staticmethod
    def supports(model: Recurrence) -> bool:
        on_cpu = model.xi.device.type == "cpu" and model.xi.dtype == torch.float32
        return bool(on_cpu and model.config.time_gaps and len(model.items.tables) and model.users is None)

    @abstractmethod
    def _read_weights(self, entities: Entities) -> W: ...

    @abstractmethod
    def _learned(self) -> Iterable[Tensor]:
        """The parameters that the weights were read from."""

    @abstractmethod
    def _read_states(self, arrays: Sequence[Array]) -> S: ...

    def _current_weights(self) -> W:
        model = self._model
        codes, rows = model.items.codes, (model.psi_row(0), model.psi_row(1))
        changed = any(tensor._version != version for tensor, version in self._versions)
        if codes is not self._codes or changed:
            self._weights = self._read_weights(self._entities())
            self._versions = [(tensor, tensor._version) for tensor in self._learned()]
            self._codes, self._psi_rows = codes, ()
        if not self._psi_rows or not all(map(is_, rows, self._psi_rows)):  # replaced for every new user or item
            self._psi_rows = rows
            entities = self._weights.entities._replace(psi_row=(array(rows[0]), array(rows[1])))
            self._weights = self._weights._replace(entities=entities)
        return self._weights

    def _entities(self) -> Entities:
        model, none = self._model, np.zeros(0, np.int64)
        psi = array(model.psi[0]), array(model.psi[1])
        tables = tuple(array(table) for table in model.items.tables)
        return Entities(array(model.items.codes), tables, model.items.grown, array(model.xi), psi, (none, none))

    def _current_states(self, state: State, names: Sequence[str]) -> S:
        """The arrays of these parts of the state; made again where a tensor was replaced."""
        tensors = [state[name] for name in names]
        if len(tensors) != len(self._tensors) or not all(map(is_, tensors, self._tensors)):
            self._states, self._tensors = self._read_states([tensor.numpy() for tensor in tensors]), tensors
        return self._states


def array(tensor: Any) -> Array:
    return np.ascontiguousarray(tensor.detach().numpy())


@compiled
def read_state(row: Array, entity: int, entities: Entities, side: int, stored: Array, moved: Array) -> None:
    """Writes the state of a user (side 0) or an item (side 1) to float32[1, d]."""
    chosen, source = np.empty(1, np.int64), np.empty(1, np.int64)
    chosen[0] = entity
    fill_rows(row, source, entities.xi[side], entities.psi[side], entities.psi_row[side], stored, moved, chosen)


@compiled
def item_features(item: int, entities: Entities) -> Array:
    """float32[1, f]; item −1 is "none"."""
    last = entities.codes.shape[1] - 1
    place = last if item < 0 else min(item, last - 1) if entities.grown else item
    width = entities.tables[0].shape[1]
    features = np.empty((1, len(entities.tables) * width), np.float32)
    for k in range(len(entities.tables)):
        features[0, k * width : (k + 1) * width] = entities.tables[k][entities.codes[k, place]]
    return features
