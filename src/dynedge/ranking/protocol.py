"""Walks a log forward: score, then advance. Each event is predicted from what came before it, and nothing else."""

from __future__ import annotations

import torch
from torch import Tensor

from dynedge.events.log import EventLog
from dynedge.models.contract import Model, State, Window
from dynedge.ranking.ranks import ranks

CHUNK_SCORES = 1 << 24  # scores held at once: events × items of a chunk


@torch.no_grad()
def walk(model: Model, log: EventLog, events: range, state: State) -> Tensor:
    """float64[events]: the rank of each event's item among all items. The state moves to the end of `events`."""
    rows = max(1, min(CHUNK_SCORES // max(log.num_items, 1), 5000))
    found = []
    for start in range(events.start, events.stop, rows):
        window = Window(log, range(start, min(start + rows, events.stop)))
        scores = model.score(model.prepare(window), None, state)
        found.append(ranks(scores, torch.from_numpy(window.item).long().to(scores.device)).cpu())
    return torch.cat(found) if found else torch.zeros(0, dtype=torch.float64)
