"""Walks a log forward: score, then advance. Each event is predicted from what came before it, and nothing else.

`full`: each event's item is ranked among all items. `sampled-499`, the paper's: among 499 others, drawn once and for
all (negatives.py); `sampled-9999` alike, for logs of so many items that ranking all takes too long. The states move
alike under all of them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dynedge.data.log import EventLog
from dynedge.data.windows import Window
from dynedge.evaluation.negatives import evaluation_negatives
from dynedge.models.base import Model, State
from dynedge.ops.ranks import ranks_on_device
from dynedge.utils.arrays import Array
from dynedge.utils.prefetch import prefetch_map

# name -> negatives an event; None: all items
PROTOCOLS: dict[str, int | None] = {"full": None, "sampled-499": 499, "sampled-9999": 9999}
CHUNK = 5000  # events scored at once, at most
CHUNK_SCORES = 1 << 25  # and scores held at once: events × items
WHOLE = 64  # chunks are a multiple of it where they can be: operators like full vectors
GPU_CHUNK, GPU_SCORES = 65_536, 1 << 27  # the same on a GPU, which takes some milliseconds to be told of a chunk
GPU_THREADS = 8  # that prepare its chunks ahead


@torch.no_grad()
def walk(
    model: Model,
    log: EventLog,
    events: range,
    state: State,
    *,
    protocol: str = "full",
    chunk: int | None = None,
    after: Callable[[int], object] = lambda events: None,
) -> Array:
    """float64[events]: the rank of each event's item. The state moves to the end of `events`.

    `chunk` changes how much memory it takes, not what comes out. `after` is told each chunk's number of events.
    If the state's first tensor is on a GPU, chunks are prepared ahead in threads, and a chunk's ranks are read while
    the next is under way.
    """
    device = next((tensor.device for tensor in state.values()), torch.device("cpu"))
    on_gpu, count = device.type == "cuda", PROTOCOLS[protocol]
    most, scores, threads = (GPU_CHUNK, GPU_SCORES, GPU_THREADS) if on_gpu else (CHUNK, CHUNK_SCORES, 0)
    among = min(log.num_items, (count or log.num_items) + 1)
    rows = max(1, min(scores // max(among, 1), chunk or most))
    rows -= rows % WHOLE if rows > WHOLE else 0
    found, unread = np.empty(len(events)), deque[tuple[range, Tensor]]()

    def prepared(start: int) -> tuple[Window, Any]:
        window = Window(log, range(start, min(start + rows, events.stop)))
        return window, model.prepare(window)

    def read(left: int) -> None:
        while len(unread) > left:
            of, ranked = unread.popleft()
            found[of.start - events.start : of.stop - events.start] = ranked.cpu().numpy()

    for window, ready in prefetch_map(prepared, range(events.start, events.stop, rows), threads):
        unread.append((window.events, _ranks(model, window, ready, state, protocol, device)))
        read(left=int(on_gpu))
        after(len(window))
    read(left=0)
    return found


def candidates(window: Window, protocol: str, device: torch.device | str = "cpu") -> Tensor | None:
    """int64[n, C]: the items each event's own is ranked among, itself the first; None: all there are."""
    count = PROTOCOLS[protocol]
    if count is None:
        return None
    true = torch.from_numpy(window.item.astype(np.int64)).to(device)
    return torch.cat([true[:, None], evaluation_negatives(window.events, true, window.log.num_items, count)], 1)


def _ranks(model: Model, window: Window, prepared: Any, state: State, protocol: str, device: torch.device) -> Tensor:
    some = candidates(window, protocol, device)
    scores = model.score(prepared, some, state)
    true = torch.from_numpy(window.item.astype(np.int64)) if some is None else torch.zeros(len(window)).long()
    return ranks_on_device(scores, true.to(scores.device))
