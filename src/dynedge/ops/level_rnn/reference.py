"""Reference implementation in plain PyTorch, on any device: level by level. Autograd computes the backward pass."""

from __future__ import annotations

import torch
from torch import Tensor

from dynedge.plan.schedule import OTHER, OWN, Schedule


def level_rnn(roots: Tensor, pre: Tensor, w_own: Tensor, w_other: Tensor, schedule: Schedule) -> Tensor:
    first, blocks = schedule.first_written, schedule.blocks.tolist()
    parents = torch.from_numpy(schedule.parents).long().to(roots.device)
    arena = torch.cat([roots, torch.zeros_like(pre)])
    for block in range(2 * schedule.depth):
        side, start, stop = block % 2, blocks[block], blocks[block + 1]
        own, other = (arena.index_select(0, parents[start - first : stop - first, which]) for which in (OWN, OTHER))
        total = own @ w_own[side].T + other @ w_other[side].T + pre[start - first : stop - first]
        arena[start:stop] = torch.tanh(total)
    return arena[first:]
