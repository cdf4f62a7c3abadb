"""Reference implementation in plain PyTorch, on any device."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from dynedge.ops.time_gaps import EntityTimes


def time_gaps(time: Tensor, sides: Sequence[EntityTimes], like: Tensor) -> list[Tensor]:
    return [time_gap_features(time, previous_times(time, *side)).to(like.dtype) for side in sides]


def previous_times(time: Tensor, entity: Tensor, past: Tensor, last_time: Tensor) -> Tensor:
    """float64[n]: the time of each event's previous one, negative where there is none."""
    return torch.where(past >= 0, time[past.clamp_min(0)], last_time[entity])


def time_gap_features(time: Tensor, previous: Tensor, scale: float = 1.0) -> Tensor:
    """[n, 2]: the logarithm of the time since the previous event, and whether there was one."""
    exists = previous >= 0
    return torch.stack([torch.log1p((time - previous).clamp_min(0)) / scale * exists, exists], 1)
