"""Ranks events by a model and a state that do not change."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch

from dynedge.data.log import EventLog
from dynedge.evaluation.protocol import chunks
from dynedge.models.base import Model, State
from dynedge.ops.item_ranks import ranks_on_device
from dynedge.utils.array_type import Array


@torch.no_grad()
def rank_frozen(
    model: Model,
    log: EventLog,
    events: range,
    state: State,
    *,
    protocol: str = "full",
    on_progress: Callable[[int], object] = lambda events: None,
) -> Array:
    """float64[events]: the rank of each event's item among what the model would recommend to its user at its time.

    As `rank_events`, but the events are queries only: the state stays as it is, and no event sees another.
    """
    ranks = []
    for chunk in chunks(model, log, events, protocol):
        users = torch.from_numpy(chunk.window.user.astype(np.int64)).to(model.device)
        times = torch.from_numpy(chunk.window.time).to(model.device)
        scores = model.score_query(users, times, chunk.candidates, state)
        ranks.append(ranks_on_device(scores, chunk.true.to(scores.device)).cpu().numpy())
        on_progress(len(users))
    return np.concatenate(ranks)
