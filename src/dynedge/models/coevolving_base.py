"""CoevolvingModel: base of models in which every event updates the states of its user and its item.

Legend: n events of a window, U users, I items, d width of a state.

An entity without events has no state of its own: it reads its learned vector ψ, if it has one, else its side's
learned vector ξ. Both are read as they are now, in training with their gradient.
"""

from __future__ import annotations

from typing import cast

import numpy as np
import torch
from torch import Tensor, nn

from dynedge.data.timestamps import LATEST_TIME
from dynedge.errors import DataError
from dynedge.models.base import State
from dynedge.models.capabilities import HasStates
from dynedge.models.dynamic_base import DynamicModel, Forward
from dynedge.models.entity_rows import Rows
from dynedge.models.ring_buffer import SIDES
from dynedge.models.state_checks import check_names, check_tensor
from dynedge.models.window_index import WindowIndex
from dynedge.ops.read_states import EntityTable, StoredStates, read_states, store_states
from dynedge.ops.time_gaps import EntityTimes, previous_times
from dynedge.utils.array_type import Array

ENTITY_TENSORS = *(f"{name}{part}" for name in SIDES for part in ("", "_moved", "_time")), "last_item"
NEVER = -1.0  # time of the last event of an entity without events


class CoevolvingModel(DynamicModel, HasStates):
    xi: nn.Parameter  # [2, d]
    psi: nn.ParameterList  # of users and of items, [.., d]

    def add_learned_vectors(self, users: Array, items: Array, dim: int) -> None:
        """Gives the entities of two masks, bool[U] and bool[I], learned vectors ψ of their own."""
        masks = users, items
        self.psi = nn.ParameterList(nn.Parameter(0.1 * torch.randn(int(mask.sum()), dim)) for mask in masks)
        for side, mask in enumerate(masks):  # entity -> row of ψ, or -1
            self.register_buffer(f"psi_row_{side}", torch.from_numpy(np.where(mask, np.cumsum(mask) - 1, -1)))

    def psi_row(self, side: int) -> Tensor:
        return cast(Tensor, getattr(self, f"psi_row_{side}"))

    def entity_rows(self) -> dict[str, Rows]:
        rows = Rows(users=True, fill=-1.0), Rows(items=True, fill=-1.0)  # new ones have no ψ
        return {f"psi_row_{side}": one for side, one in enumerate(rows)}

    @property
    def sizes(self) -> tuple[int, int]:
        return self.shape.users, self.shape.items

    # ---- states

    def start(self) -> State:
        state, device = State(), self.xi.device
        for name, count in zip(SIDES, self.sizes, strict=True):
            state[name] = self.xi.new_zeros(count, self.config.dim)
            state[f"{name}_moved"] = torch.zeros(count, dtype=torch.bool, device=device)
            state[f"{name}_time"] = torch.full((count,), NEVER, dtype=torch.float64, device=device)
        state["last_item"] = torch.full((self.shape.users,), -1, device=device)
        return state

    def check_state(self, state: State) -> None:
        check_names(state, ENTITY_TENSORS)
        self.check_entities(state)

    def check_entities(self, state: State) -> None:
        """Raises DataError unless the states of users and items are in range."""
        for name, count in zip(SIDES, self.sizes, strict=True):
            check_tensor(state, name, self.xi.dtype, (count, self.config.dim))
            check_tensor(state, f"{name}_moved", torch.bool, (count,))
            check_tensor(state, f"{name}_time", torch.float64, (count,), NEVER, LATEST_TIME)
        check_tensor(state, "last_item", torch.int64, (self.shape.users,), -1, self.shape.items - 1)

    def check_psi_rows(self) -> None:
        """Raises DataError unless the rows of ψ that were loaded are those of active entities, in their order."""
        for side, psi in enumerate(self.psi):
            row = self.psi_row(side)
            active = row >= 0
            if not torch.equal(row, torch.where(active, active.cumsum(0) - 1, -1)) or int(active.sum()) != len(psi):
                raise DataError(f"'psi_row_{side}' is inconsistent")

    def entity_table(self, side: int, state: State) -> EntityTable:
        name = SIDES[side]
        return EntityTable(self.xi[side], self.psi[side], self.psi_row(side), state[name], state[f"{name}_moved"])

    def entity_states(self, side: int, entities: Tensor, state: State) -> Tensor:
        return read_states([(self.entity_table(side, state), entities)])

    def item_vectors(self, items: Tensor, state: State) -> Tensor:
        return self.entity_states(1, items, state)

    def vectors(self, state: State) -> tuple[Tensor, Tensor]:
        users, items = (self.entity_states(side, self.arange(n), state) for side, n in enumerate(self.sizes))
        return users, items

    @torch.no_grad()
    def advance(self, index: WindowIndex, forward: Forward, state: State) -> None:
        for side, name in enumerate(SIDES):
            last_item = state["last_item"] if side == 0 else None
            table = StoredStates(state[name], state[f"{name}_moved"], state[f"{name}_time"], last_item)
            store_states(table, index.roots[side], index.exits[side], forward.arena.detach(), index.last[side])

    # ---- features of an event

    def previous_times(self, index: WindowIndex, state: State) -> list[Tensor]:
        """For users and for items, float64[n]: the time of the entity's previous event, or NEVER."""
        return [previous_times(index.time, *side) for side in self.entity_times(index, state)]

    def entity_times(self, index: WindowIndex, state: State) -> list[EntityTimes]:
        """The times of users' and of items' previous events."""
        entities = index.user, index.item
        return [EntityTimes(entities[k], index.past[k], state[f"{name}_time"]) for k, name in enumerate(SIDES)]

    def last_items(self, index: WindowIndex, state: State) -> Tensor:
        """int64[n]: the item of the user's previous event, or −1."""
        past = index.past[0]
        return torch.where(past >= 0, index.item[past.clamp_min(0)], state["last_item"][index.user])
