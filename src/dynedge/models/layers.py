"""Parts that models are made of.

Legend: n events, d width, F width of an event's features, U users, I items.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dynedge.events.log import EventLog
from dynedge.ops.level_gru import level_gru
from dynedge.plan.schedule import Schedule

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class Shape:
    """What a model must know of a log to size its tables."""

    users: int
    items: int
    features: int
    categories: tuple[int, ...]  # how many values each categorical item feature has

    @classmethod
    def of(cls, log: EventLog) -> Shape:
        return cls(log.num_users, log.num_items, log.features.shape[1], tuple(len(ids) for ids in log.category_ids))


class ItemFeatures(nn.Module):
    """fea(item): an embedding of its id and of each of its categories, side by side. Item −1, or none, is one too."""

    def __init__(self, shape: Shape, dim: int, *, ids: bool, categories: Array | None) -> None:
        super().__init__()
        counts = [shape.items] if ids else []
        columns = [np.arange(shape.items)] if ids else []
        if categories is not None:
            counts += shape.categories
            columns += list(categories.T)
        # One row more in each table stands for none. Row numbers are looked up once, here.
        self.tables = nn.ParameterList(nn.Parameter(0.1 * torch.randn(count + 1, dim)) for count in counts)
        codes = [np.append(np.where(c < 0, count, c), count) for c, count in zip(columns, counts, strict=True)]
        self.codes: Tensor
        self.register_buffer(
            "codes", torch.from_numpy(np.array(codes, np.int64).reshape(len(codes), shape.items + 1))
        )
        self.width = len(counts) * dim

    def forward(self, items: Tensor) -> Tensor:
        """[n] -> [n, width]"""
        parts = [
            F.embedding(codes[items], table, sparse=True)
            for codes, table in zip(self.codes, self.tables, strict=True)
        ]
        return torch.cat(parts, 1) if parts else torch.zeros(len(items), 0)


class CoupledGRU(nn.Module):
    """Two GRUs, one a side: a state becomes GRU_s(own state, [partner's state, features of the event])."""

    def __init__(self, dim: int, features: int) -> None:
        super().__init__()
        bound = dim**-0.5

        def uniform(*shape: int) -> nn.Parameter:
            return nn.Parameter(torch.empty(shape).uniform_(-bound, bound))

        self.own, self.other = uniform(2, 3 * dim, dim), uniform(2, 3 * dim, dim)
        self.feature = uniform(2, 3 * dim, features)
        self.bias, self.own_bias = uniform(2, 3 * dim), uniform(2, 3 * dim)

    def forward(self, roots: Tensor, features: Tensor, schedule: Schedule) -> Tensor:
        """The states written in a window [W, d], from the rows before them and features [2, n, F]."""
        n = features.shape[1]
        product = torch.baddbmm(self.bias[:, None], features, self.feature.transpose(1, 2)).flatten(0, 1)
        place = torch.from_numpy(schedule.event + n * sides(schedule))
        before: Tensor = PickRows.apply(product, place)  # type: ignore[no-untyped-call]
        return level_gru(roots, before, self.own, self.other, self.own_bias, schedule)


def sides(schedule: Schedule) -> Array:
    """int32[W]: the side of each written state."""
    sizes = np.diff(schedule.blocks)
    return np.repeat(np.arange(len(sizes), dtype=np.int32) & 1, sizes)


class PickRows(torch.autograd.Function):
    """rows[place], for places that are all different: the way back is a copy, not a sum."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, place: Tensor) -> Tensor:
        ctx.save_for_backward(place)
        ctx.count = len(rows)
        return rows.index_select(0, place)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        (place,) = ctx.saved_tensors
        shape = ctx.count, grads[0].shape[1]
        whole = len(place) == ctx.count  # every row is copied to: nothing to clear
        back = grads[0].new_empty(shape) if whole else grads[0].new_zeros(shape)
        return back.index_copy_(0, place.long(), grads[0]), None


def mlp(width: int, hidden: int, out: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(width, hidden), nn.ReLU(), nn.Linear(hidden, out))
