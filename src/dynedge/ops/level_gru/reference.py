"""Reference implementations in plain PyTorch: event by event and level by level. Autograd computes the gradients.

Legend: n events, d width of a state, W states written, R rows of the arena, U users, I items, K d-nodes.
"""

from __future__ import annotations

import torch
from torch import Tensor

from dynedge.plan.schedule import OTHER, OWN, Schedule
from dynedge.utils.array_type import Array


def update(own: Tensor, other: Tensor, pre: Tensor, w_own: Tensor, w_other: Tensor, b_own: Tensor) -> Tensor:
    """New states [rows, d] of one side: torch's GRUCell, with the projected features and their bias in `pre`."""
    gi_r, gi_z, gi_n = (other @ w_other.T + pre).chunk(3, dim=-1)
    gh_r, gh_z, gh_n = (own @ w_own.T + b_own).chunk(3, dim=-1)
    r = torch.sigmoid(gi_r + gh_r)
    z = torch.sigmoid(gi_z + gh_z)
    n = torch.tanh(gi_n + r * gh_n)
    return (1 - z) * n + z * own


def event_by_event(
    pairs: Array,
    active: tuple[Array, Array],
    start: tuple[Tensor, Tensor],
    phi: dict[int, Tensor],
    pre: Tensor,
    w_own: Tensor,
    w_other: Tensor,
    b_own: Tensor,
) -> dict[int, Tensor]:
    """The written states, each [d], by code 2·k + side, from a loop over the events in time order.

    pairs int[n, 2] are users and items; start [U, d] and [I, d] their initial states, ψ for the active ones, whose
    masks are `active`; phi the vectors that are read instead of the states with its codes; pre [n, 2, 3d].
    """
    now: dict[tuple[int, int], Tensor] = {}
    written: dict[int, Tensor] = {}
    for k, pair in enumerate(pairs.tolist()):
        before = [now.get((side, entity), start[side][entity]) for side, entity in enumerate(pair)]
        for side, entity in enumerate(pair):
            if not active[side][entity]:
                own, other, code = before[side], before[1 - side], 2 * k + side
                written[code] = update(own, other, pre[k, side], w_own[side], w_other[side], b_own[side])
                now[side, entity] = phi.get(code, written[code])
    return written


def level_gru(
    roots: Tensor, pre: Tensor, w_own: Tensor, w_other: Tensor, b_own: Tensor, schedule: Schedule
) -> Tensor:
    """The written states [W, d], level by level: gather two rows, two products, gates, write."""
    first = schedule.first_written
    arena = torch.cat((roots, roots.new_empty(pre.shape[0], roots.shape[1])))
    parents = torch.from_numpy(schedule.parents).to(roots.device)
    blocks = schedule.blocks.tolist()
    for block in range(2 * schedule.depth):
        side, start, stop = block % 2, blocks[block], blocks[block + 1]
        rows = slice(start - first, stop - first)
        own = arena.index_select(0, parents[rows, OWN])
        other = arena.index_select(0, parents[rows, OTHER])
        arena[start:stop] = update(own, other, pre[rows], w_own[side], w_other[side], b_own[side])
    return arena[first:]
