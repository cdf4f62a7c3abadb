"""CoevolvingRNN: user and item states updated by two plain recurrent networks; base of JODIE and DeepCoevolve.

Legend: n events of a window, U users, I items, d width of a state.

For an event of user u and item i, with f its features and Δ the time since the entity's previous event (its
logarithm, and whether there was one; raw seconds would dominate all other inputs):

    u' = tanh(W₁ u + W₂ i + W₃ [f, Δ_u] + b)        i' = tanh(V₁ i + V₂ u + V₃ [f, Δ_i] + c)

JODIE's t-batches, runs of events in which no entity occurs twice, correspond to the levels of the window's schedule
without d-nodes; here an event waits for its own user and item only. The features are the event's own numeric features
and an embedding of each category of its item, plus the item's id embedding if a subclass asks for it (`item_ids`).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from dynedge.models.base import LogShape, State
from dynedge.models.coevolving_base import CoevolvingModel
from dynedge.models.entity_rows import Rows
from dynedge.models.layers import ItemFeatures
from dynedge.models.window_index import WindowIndex
from dynedge.ops.gather_linear import gather_linear
from dynedge.ops.level_rnn import rnn_arena
from dynedge.ops.read_states import read_states
from dynedge.ops.time_gaps import time_gap_features
from dynedge.utils.array_type import Array

LONG_GAP = 10.0  # log(1 + seconds) of some hours: inputs much above 1 would saturate every tanh


class CoevolvingRNN(CoevolvingModel):
    """`seen`: masks of the users and items whose first state is a learned vector ψ; all others start at ξ."""

    has_level_kernels = True

    def __init__(self, config: Any, shape: LogShape, seen: tuple[Array, Array], *, item_ids: bool = False) -> None:
        super().__init__(config, shape)
        dim = config.dim
        self.items = ItemFeatures(shape, dim, ids=item_ids, categories=True)
        width, bound = shape.features + self.items.width + 2, dim**-0.5

        def uniform(*size: int) -> nn.Parameter:
            return nn.Parameter(torch.empty(size).uniform_(-bound, bound))

        self.xi = nn.Parameter(0.1 * torch.randn(2, dim))
        self.own, self.other, self.feature = uniform(2, dim, dim), uniform(2, dim, dim), uniform(2, dim, width)
        self.bias = uniform(2, dim)
        self.add_learned_vectors(*seen, dim)

    def entity_rows(self) -> dict[str, Rows]:
        return super().entity_rows() | self.items.entity_rows("items.")

    def grown_tensors(self, shape: LogShape, seed: int) -> dict[str, Tensor]:
        return super().grown_tensors(shape, seed) | {"items.codes": self.items.codes_for(shape)}

    def gap_features(self, time: Tensor, previous: Tensor) -> Tensor:
        return time_gap_features(time, previous, LONG_GAP)

    def evolve(self, index: WindowIndex, state: State) -> Tensor:
        """The arena of a window [R, d]: the states at its start, then those that its events write."""
        shared = [(index.features.to(self.xi), None), (self.items(index.item).to(self.xi), None)]
        inputs = [
            gather_linear(
                [*shared, (self.gap_features(index.time, previous).to(self.xi), None)],
                self.feature[side],
                self.bias[side],
            )
            for side, previous in enumerate(self.previous_times(index, state))
        ]
        roots = read_states([(self.entity_table(side, state), index.roots[side]) for side in (0, 1)])
        products = torch.stack(inputs, 1).flatten(0, 1)
        return rnn_arena(roots, products, index.place, self.own, self.other, index.schedule)
