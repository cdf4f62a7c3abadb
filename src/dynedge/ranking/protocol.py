"""Walks a log forward: score, then advance. Each event is predicted from what came before it, and nothing else.

Two protocols. `full`: each event's item is ranked among all items. `sampled-499`, the paper's: among 499 others,
drawn once and for all (negatives.py). The states move alike under both.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch

from dynedge.events.log import EventLog
from dynedge.models.contract import Model, State, Window
from dynedge.ops.ranks import ranks
from dynedge.ranking.negatives import Array, negatives

PROTOCOLS: dict[str, int | None] = {"full": None, "sampled-499": 499}  # name -> negatives an event; None: all items
CHUNK = 5000  # events scored at once, at most
CHUNK_SCORES = 1 << 25  # and scores held at once: events × items
WHOLE = 64  # chunks are a multiple of it where they can be: operators like full vectors


@torch.no_grad()
def walk(
    model: Model,
    log: EventLog,
    events: range,
    state: State,
    *,
    protocol: str = "full",
    chunk: int = CHUNK,
    after: Callable[[int], object] = lambda events: None,
) -> Array:
    """float64[events]: the rank of each event's item. The state moves to the end of `events`.

    `chunk` changes how much memory it takes, not what comes out. `after` is told each chunk's number of events.
    """
    among = min(log.num_items, (PROTOCOLS[protocol] or log.num_items) + 1)
    rows = max(1, min(CHUNK_SCORES // max(among, 1), chunk))
    rows -= rows % WHOLE if rows > WHOLE else 0
    found = np.empty(len(events))
    for start in range(events.start, events.stop, rows):
        window = Window(log, range(start, min(start + rows, events.stop)))
        found[start - events.start :][: len(window)] = _ranks(model, window, state, PROTOCOLS[protocol])
        after(len(window))
    return found


def _ranks(model: Model, window: Window, state: State, count: int | None) -> Array:
    true = window.item.astype(np.int64)
    if count is None:
        scores = model.score(model.prepare(window), None, state)
        return ranks(scores, torch.from_numpy(true).to(scores.device))
    others = negatives(window.events, true, window.log.num_items, count)
    device = next((tensor.device for tensor in state.values()), torch.device("cpu"))
    candidates = torch.from_numpy(np.concatenate([true[:, None], others], 1)).to(device)
    scores = model.score(model.prepare(window), candidates, state)
    return ranks(scores, torch.zeros(len(window), dtype=torch.int64, device=scores.device))
