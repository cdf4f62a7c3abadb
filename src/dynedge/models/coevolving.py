"""Users and items with a state each, moved by two plain recurrent networks: what JODIE and DeepCoevolve share.

Legend: n events of a window, U users, I items, d width of a state.

Event k of user u and item i, with f its features and Δ the time since the entity's previous event (its logarithm, and
whether there was one; raw seconds would drown all else):

    u' = tanh(W₁ u + W₂ i + W₃ [f, Δ_u] + b)        i' = tanh(V₁ i + V₂ u + V₃ [f, Δ_i] + c)

JODIE's t-batches, runs of events in which nobody is met twice, are the levels of the window's schedule with nothing
cut; here an event waits only for its own user and item. Features are the event's own numbers and an embedding of
each category of its item, and of the item's id where a model asks for it (`item_ids`).
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn

from dynedge.models.base import State
from dynedge.models.dynamic import Moving
from dynedge.models.modules import ItemFeatures, Shape
from dynedge.models.ring_buffer import SIDES
from dynedge.models.window_index import Prepared
from dynedge.ops.gather_linear import gather_linear, gather_rows
from dynedge.ops.level_rnn import level_rnn
from dynedge.ops.read_states import EntityTable, read_states
from dynedge.utils.arrays import Array

LONG = 10.0  # log(1 + seconds) of some hours: gaps much above 1 would drive every tanh to its end
NEVER = -1.0  # the time of an entity's last event before it has had one


class Coevolving(Moving):
    """`met`: for users and for items, who is known from training and starts at a vector of its own, else at ξ."""

    def __init__(
        self,
        shape: Shape,
        dim: int,
        categories: Array,
        met: tuple[Array, Array] | None,
        windows: int,
        negatives: int,
        full_up_to: int = 0,
        item_ids: bool = False,
    ) -> None:
        super().__init__(shape, windows, negatives, full_up_to)
        self.dim = dim
        self.items = ItemFeatures(shape, dim, ids=item_ids, categories=categories if categories.size else None)
        width, bound = shape.features + self.items.width + 2, dim**-0.5

        def uniform(*size: int) -> nn.Parameter:
            return nn.Parameter(torch.empty(size).uniform_(-bound, bound))

        self.xi = nn.Parameter(0.1 * torch.randn(2, dim))
        self.own, self.other, self.feature = uniform(2, dim, dim), uniform(2, dim, dim), uniform(2, dim, width)
        self.bias = uniform(2, dim)
        masks = met or (np.zeros(shape.users, bool), np.zeros(shape.items, bool))
        self.begin = nn.ParameterList(nn.Parameter(0.1 * torch.randn(int(mask.sum()), dim)) for mask in masks)
        for side, mask in zip(SIDES, masks, strict=True):
            self.register_buffer(f"{side}_begins", torch.from_numpy(np.where(mask, np.cumsum(mask) - 1, -1)))

    # ---- states

    def start(self) -> State:
        state, device = State(), self.xi.device
        for name, count in zip(SIDES, (self.shape.users, self.shape.items), strict=True):
            state[name] = self.xi.new_zeros(count, self.dim)
            state[f"{name}_moved"] = torch.zeros(count, dtype=torch.bool, device=device)
            state[f"{name}_time"] = torch.full((count,), NEVER, dtype=torch.float64, device=device)
        state["last_item"] = torch.full((self.shape.users,), -1, device=device)
        return state

    def _side(self, side: int, state: State) -> EntityTable:
        name = SIDES[side]
        begins: Tensor = getattr(self, f"{name}_begins")
        return EntityTable(self.xi[side], self.begin[side], begins, state[name], state[f"{name}_moved"])

    def states(self, side: int, entities: Tensor, state: State) -> Tensor:
        """[q, d]: as they stand."""
        return read_states([(self._side(side, state), entities)])

    def items_now(self, items: Tensor, state: State) -> Tensor:
        return self.states(1, items, state)

    def vectors(self, state: State) -> tuple[Tensor, Tensor]:
        users, items = self.numbers(self.shape.users), self.numbers(self.shape.items)
        return self.states(0, users, state), self.states(1, items, state)

    def evolve(self, prepared: Prepared, state: State) -> Tensor:
        """The arena of a window [R, d]: the states it starts from, then those it writes."""
        assert prepared.schedule is not None
        shared = [(prepared.features.to(self.xi), None), (self.items(prepared.item).to(self.xi), None)]
        pre = [
            gather_linear(
                [*shared, (gaps(prepared.time, before).to(self.xi), None)], self.feature[side], self.bias[side]
            )
            for side, before in enumerate(self.times_before(prepared, state))
        ]
        roots = read_states([(self._side(side, state), prepared.roots[side]) for side in (0, 1)])
        written = gather_rows(torch.stack(pre, 1).flatten(0, 1), prepared.place)
        return torch.cat([roots, level_rnn(roots, written, self.own, self.other, prepared.schedule)])

    def times_before(self, prepared: Prepared, state: State) -> list[Tensor]:
        """For users and for items, [n]: the time of the entity's previous event, or NEVER."""
        found = []
        for name, entity, past in zip(SIDES, (prepared.user, prepared.item), prepared.past, strict=True):
            inside = prepared.time[past.clamp_min(0)]
            found.append(torch.where(past >= 0, inside, state[f"{name}_time"][entity]))
        return found

    def last_items(self, prepared: Prepared, state: State) -> Tensor:
        """[n]: the item of the user's previous event, or −1."""
        past = prepared.past[0]
        return torch.where(past >= 0, prepared.item[past.clamp_min(0)], state["last_item"][prepared.user])

    @torch.no_grad()
    def move(self, prepared: Prepared, arena: Tensor, state: State) -> None:
        for side, name in enumerate(SIDES):
            entities, last = prepared.roots[side], prepared.last[side]
            state[name][entities] = arena[prepared.exits[side]]
            state[f"{name}_moved"][entities] = True
            state[f"{name}_time"][last.entity] = last.time
        state["last_item"][prepared.last[0].entity] = prepared.last[0].item


def gaps(time: Tensor, before: Tensor) -> Tensor:
    """[n, 2]: the logarithm of the time since, and whether there was a before at all."""
    there = before >= 0
    return torch.stack([torch.log1p((time - before).clamp_min(0)) / LONG * there, there], 1)
