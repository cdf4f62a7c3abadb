"""Neural network modules that several models share.

Legend: n events, d width of a state, R rows of a window's arena.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import torch
from torch import Tensor, nn

from dynedge.models.base import LogShape
from dynedge.models.entity_rows import Rows
from dynedge.models.state_checks import check_range
from dynedge.ops.gather_linear import GatherPart, embed, gather_linear
from dynedge.ops.level_gru import gru_arena

if TYPE_CHECKING:
    from dynedge.ops.level_gru.triton import EventInputs
from dynedge.utils.array_type import Array


class EntityFeatures(nn.Module):
    """Features of users or items: concatenated embeddings of the id and of each category.

    Entity −1, "none", has a row too.
    """

    def __init__(self, count: int, dim: int, *, ids: bool, counts: Sequence[int], categories: Array) -> None:
        """`counts`: number of values of each category; `categories`: int32[count, number of categories]."""
        super().__init__()
        sizes = [count, *counts] if ids else [*counts]
        columns = ([np.arange(count)] if ids else []) + (list(categories.T) if counts else [])
        # The last row of each table is that of the entity or category "none".
        self.tables = nn.ParameterList(nn.Parameter(0.1 * torch.randn(size + 1, dim)) for size in sizes)
        codes = [np.append(np.where(c < 0, size, c), size) for c, size in zip(columns, sizes, strict=True)]
        self.codes: Tensor
        self.register_buffer("codes", torch.from_numpy(np.array(codes, np.int64).reshape(len(codes), count + 1)))
        self.width, self.ids, self.grown = len(sizes) * dim, ids, False

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *rest: Any) -> None:
        """Raises DataError if a code from a file is no row of its table: compiled code reads it unchecked."""
        super()._load_from_state_dict(state_dict, prefix, *rest)
        for codes, table in zip(self.codes, self.tables, strict=True):
            check_range(f"{prefix}codes", codes, 0, len(table) - 1)

    def grow(self) -> None:
        """Adds one row that all entities added later share: the mean id embedding, and no category."""
        new = self.codes[:, -1:].clone()
        if self.ids:
            table = self.tables[0].detach()
            new[0] = len(table)
            self.tables[0] = nn.Parameter(torch.cat([table, table[:-1].double().mean(0, keepdim=True).to(table)]))
        self.codes = torch.cat([self.codes[:, :-1], new, self.codes[:, -1:]], 1)
        self.grown = True

    def forward(self, entities: Tensor) -> Tensor:
        """[n] -> [n, width]"""
        return self.with_first(entities, 0)[0]

    def with_first(self, entities: Tensor, first: int) -> tuple[Tensor, GatherPart]:
        """The features [n, width], and a part of gather_linear for those of the first entities."""
        if self.grown:
            entities = entities.clamp(max=self.codes.shape[1] - 2)  # the last row is "none"
        if not len(self.tables):
            rows = torch.zeros(len(entities), 0, device=entities.device)
            return rows, (rows[:first], None)
        return embed(list(self.tables), self.codes, entities, first)


class ItemFeatures(EntityFeatures):
    def __init__(self, shape: LogShape, dim: int, *, ids: bool, categories: bool) -> None:
        counts = shape.categories if categories and shape.item_categories.size else ()
        super().__init__(shape.items, dim, ids=ids, counts=counts, categories=shape.item_categories)

    def entity_rows(self, prefix: str) -> dict[str, Rows]:
        """The rows of its tables; the codes follow from the log (`codes_for`)."""
        ids = [Rows(items=True, none=True, std=0.1)] if self.ids else []
        rows = ids + [Rows(category=k, none=True, std=0.1) for k in range(len(self.tables) - len(ids))]
        return {f"{prefix}tables.{k}": one for k, one in enumerate(rows)}

    def codes_for(self, shape: LogShape) -> Tensor:
        """The codes of a log that has gained items."""
        categories = len(self.tables) > int(self.ids)
        return ItemFeatures(shape, 1, ids=self.ids, categories=categories).codes


class UserFeatures(EntityFeatures):
    """Categories of users; their ids have no embedding, since a user's state is what is known of that user."""

    def __init__(self, shape: LogShape, dim: int) -> None:
        counts = shape.user_category_counts
        super().__init__(shape.users, dim, ids=False, counts=counts, categories=shape.user_categories)

    def entity_rows(self, prefix: str) -> dict[str, Rows]:
        """As `ItemFeatures.entity_rows`."""
        rows = Rows(none=True, std=0.1)
        return {f"{prefix}tables.{k}": rows._replace(user_category=k) for k in range(len(self.tables))}


class CoupledGRU(nn.Module):
    """Two GRUs, one per side: an event updates a state to GRU_s(own state, [partner's state, event features])."""

    def __init__(self, dim: int, features: int) -> None:
        super().__init__()
        bound = dim**-0.5

        def uniform(*shape: int) -> nn.Parameter:
            return nn.Parameter(torch.empty(shape).uniform_(-bound, bound))

        self.own, self.other = uniform(2, 3 * dim, dim), uniform(2, 3 * dim, dim)
        self.feature = uniform(2, 3 * dim, features)
        self.bias, self.own_bias = uniform(2, 3 * dim), uniform(2, 3 * dim)

    def forward(
        self,
        roots: Tensor,
        shared: Sequence[GatherPart],
        own: Sequence[Tensor],
        schedule: Any,
        place: Tensor,
        own_place: tuple[Tensor, Tensor],
    ) -> Tensor:
        """The arena of a window [R, d]: the rows that no event writes (`roots`), then the written states.

        `shared` are the features of both sides, and `own`, if not empty, those of each side, [n, ..]. The features of
        written row r are row `place[r]` // 2. `schedule` is as in `level_gru`. With `own_place`, as in WindowIndex,
        the level kernels add those of each side.
        """
        feature: Tensor = self.feature
        more = None
        if own and len(own_place[0]):
            feature, more = self._own_inputs(own, own_place)
        if own and more is None:
            sides = [
                gather_linear([*shared, (features, None)], self.feature[side], self.bias[side])
                for side, features in enumerate(own)
            ]
            products = torch.stack(sides, 1).flatten(0, 1)
        else:
            products = gather_linear(shared, feature.flatten(0, 1), self.bias.flatten())
            products = products.view(-1, self.own.shape[1])
        return gru_arena(roots, products, place, self.own, self.other, self.own_bias, schedule, more)

    def _own_inputs(self, own: Sequence[Tensor], own_place: tuple[Tensor, Tensor]) -> tuple[Tensor, EventInputs]:
        """(the weights of shared features, the features of each side with theirs)."""
        from dynedge.ops.level_gru.triton import EventInputs

        width = own[0].shape[1]
        shared, weights = torch.split_with_sizes(self.feature, [self.feature.shape[2] - width, width], 2)
        return shared, EventInputs(torch.stack(list(own), 1).flatten(0, 1), *own_place, weights)


class Head(nn.Sequential):
    """MLP with one hidden layer; `of_rows` takes its inputs as rows of tables."""

    def __init__(self, width: int, hidden: int, out: int) -> None:
        super().__init__(nn.Linear(width, hidden), nn.ReLU(), nn.Linear(hidden, out))

    def of_rows(self, parts: Sequence[GatherPart]) -> Tensor:
        """The output for concatenated inputs, each a table with the row numbers to gather, or None for all rows."""
        first, last = cast(nn.Linear, self[0]), cast(nn.Linear, self[2])
        hidden = gather_linear(parts, first.weight, first.bias, relu=True)
        return gather_linear([(hidden, None)], last.weight, last.bias)
