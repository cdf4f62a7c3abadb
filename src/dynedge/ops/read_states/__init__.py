"""read_states: vectors of entities at a window's start, with gradient where they are learned.

Legend: N entities of a side, d width of a state, P active entities of a side, q entities read.

An entity that has been updated has a stored state, a row of `stored` [N, d], which has no gradient. One that has not
reads its ψ if it is active (`psi_row` ≥ 0), else its side's ξ.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from torch import Tensor

from dynedge.ops.dispatch import prefer_triton
from dynedge.ops.read_states import cpu, reference

__all__ = ["EntityTable", "LastEvents", "StoredStates", "read_states", "replace_rows", "store_states"]


class EntityTable(NamedTuple):
    """The tables that hold the vectors of all users, or of all items."""

    xi: Tensor  # [d]
    psi: Tensor  # [P, d]
    psi_row: Tensor  # int64[N]: row of psi, or -1
    stored: Tensor  # [N, d]
    has_stored: Tensor  # bool[N]: whether the entity's state is its row of `stored`


class LastEvents(NamedTuple):
    """The last event of each user, or of each item, of the window."""

    entity: Tensor  # int
    time: Tensor  # float64
    item: Tensor  # int: the event's item


class StoredStates(NamedTuple):
    """The tables of a state that a window's last events are written to."""

    stored: Tensor  # [N, d]
    has_stored: Tensor  # bool[N]
    time: Tensor  # float64[N]
    last_item: Tensor | None  # int64[N]


BY_DEVICE: dict[str, Callable[..., Tensor]] = {
    "cpu": cpu.read_states,
    "cuda": prefer_triton(
        "dynedge.ops.read_states.triton", "read_states", reference.read_states, lambda groups, _: groups[0][0].xi
    ),
}


def read_states(groups: Sequence[tuple[EntityTable, Tensor]], extra: Tensor | None = None) -> Tensor:
    """[Σ q, d]: vectors of each group's entities int64[q], one group after the other, followed by the rows `extra`.

    Differentiable in ξ, ψ and `extra`; the gradient of ψ is sparse.
    """
    compute: Callable[..., Tensor] = BY_DEVICE.get(groups[0][0].xi.device.type, reference.read_states)
    return compute(groups, extra)


REPLACE_BY_DEVICE: dict[str, Callable[..., Tensor]] = {
    "cuda": prefer_triton(
        "dynedge.ops.read_states.triton",
        "replace_rows",
        reference.replace_rows,
        lambda rows, *_: rows,
    ),
}


def replace_rows(rows: Tensor, table: EntityTable, entities: Tensor) -> Tensor:
    """rows [q, d] with the vectors of the entities int[q] in the place of those where it is not negative.

    May change `rows`. Differentiable in ξ, ψ and `rows`; the gradient of replaced rows has no meaning.
    """
    return REPLACE_BY_DEVICE.get(rows.device.type, reference.replace_rows)(rows, table, entities)


STORE_BY_DEVICE: dict[str, Callable[..., None]] = {
    "cuda": prefer_triton(
        "dynedge.ops.read_states.triton",
        "store_states",
        reference.store_states,
        lambda table, *_: table.stored,
    ),
}


def store_states(table: StoredStates, entities: Tensor, rows: Tensor, arena: Tensor, last: LastEvents) -> None:
    """Writes the entities' states, which are rows of the arena [R, d], and times and items of the last events.

    `entities` int[q] are distinct, as are those of `last`.
    """
    STORE_BY_DEVICE.get(arena.device.type, reference.store_states)(table, entities, rows, arena, last)
