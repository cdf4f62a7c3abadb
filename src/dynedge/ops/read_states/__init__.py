"""read_states: the vectors of entities as they stand at a window's start, with gradient where they are learned.

Legend: N entities of a side, d width of a state, P active entities of a side, q entities asked for.

An entity that has moved has a state of its own, a row of `stored` [N, d]: no gradient. One that has not reads its ψ,
if it is active (`psi_row` ≥ 0), else its side's ξ.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from torch import Tensor

from dynedge.ops.dispatch import prefer_triton
from dynedge.ops.read_states import cpu, reference

__all__ = ["EntityTable", "read_states"]


class EntityTable(NamedTuple):
    """Where the vectors of users, or of items, are."""

    xi: Tensor  # [d]
    psi: Tensor  # [P, d]
    psi_row: Tensor  # int64[N]: row of ψ, or -1
    stored: Tensor  # [N, d]
    moved: Tensor  # bool[N]


BY_DEVICE: dict[str, Callable[..., Tensor]] = {
    "cpu": cpu.read_states,
    "cuda": prefer_triton(
        "dynedge.ops.read_states.triton", "read_states", reference.read_states, lambda groups, _: groups[0][0].xi
    ),
}


def read_states(groups: Sequence[tuple[EntityTable, Tensor]], more: Tensor | None = None) -> Tensor:
    """[Σ q, d]: of each group's entities int64[q], one group below the other; and below them the rows `more`.

    Differentiable in ξ, ψ and `more`; the gradient of ψ is sparse.
    """
    compute: Callable[..., Tensor] = BY_DEVICE.get(groups[0][0].xi.device.type, reference.read_states)
    return compute(groups, more)
