"""Ranks events in time order: score, then advance. Each event is predicted from what came before it alone.

`full`: each event's item is ranked among all items. `sampled-499`, the paper's protocol: among 499 negatives that are
the same for every model (negatives.py); `sampled-9999` likewise, for logs with so many items that ranking all of them
takes too long. `tgb`: among the candidates of the Temporal Graph Benchmark (board.py). States advance in the same way
under all protocols. `online`: among all items, and the model goes on learning from what it has ranked
(training/online.py); its ranks are never compared with those of a frozen model.

Legend: n events of a window, C candidates, O calibration options.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dynedge.data.log import EventLog
from dynedge.data.windows import Window
from dynedge.evaluation.board import TGB, Board
from dynedge.evaluation.bootstrap import standard_errors
from dynedge.evaluation.negatives import evaluation_candidates
from dynedge.models.base import Model, State
from dynedge.models.capabilities import Calibrated, capable
from dynedge.ops.host_to_device import placed, to_host
from dynedge.ops.item_ranks import ranks_on_device
from dynedge.utils.array_type import Array
from dynedge.utils.prefetch import prefetch_map
from dynedge.utils.process_group import ALONE, ProcessGroup

# name -> negatives per event; None: all items
PROTOCOLS: dict[str, int | None] = {"full": None, "sampled-499": 499, "sampled-9999": 9999}
ONLINE = "online"  # all items, and the model goes on learning
CHUNK = 5000  # maximum number of events scored at once
CHUNK_SCORES = 1 << 25  # maximum number of scores held at once: events × items
ALIGNED = 64  # chunks are a multiple of it where they can be: kernels prefer full vectors
GPU_CHUNK, GPU_SCORES = 131_072, 1 << 27  # the same on a GPU, which takes milliseconds to launch a chunk
GPU_THREADS = 8  # prepare chunks ahead, if there are as many cores
GPU_AHEAD = 2  # chunks that a GPU is given before the ranks of an earlier one are read


@dataclass(frozen=True, eq=False)
class Chunk:
    """Events that are scored at once."""

    window: Window
    batch: Any  # as `Model.score` takes it; None where another process ranks these events
    candidates: Tensor | None  # int64[n, C], the true item first; None: all items
    true: Tensor  # int64[n]: column of the true item
    excluded: tuple[Tensor, Tensor] | None = None  # rows and columns that are no candidates


def chunks(
    model: Model,
    log: EventLog,
    events: range,
    protocol: str,
    max_events: int | None = None,
    shares: int = 1,
    group: ProcessGroup = ALONE,
) -> Iterator[Chunk]:
    """The events in chunks of bounded memory, in order; on a GPU they are prepared ahead in threads.

    The processes of a `group` take turns. There are at least `shares` chunks, whatever the number of processes.
    """
    device = model.device
    board = Board(log, events) if protocol == TGB else None
    on_gpu, cores = device.type == "cuda", len(os.sched_getaffinity(0))
    most, scores, threads = (GPU_CHUNK, GPU_SCORES, min(GPU_THREADS, cores)) if on_gpu else (CHUNK, CHUNK_SCORES, 0)
    if board is not None:
        width = board.width
    elif (negatives := PROTOCOLS[protocol]) is not None:
        width = min(log.num_items, negatives + 1)
    else:
        width = model.scores_per_rank(log.num_items)
    size = max(1, min(scores // max(width, 1), max_events or most, -(-len(events) // shares)))
    size -= size % ALIGNED if size > ALIGNED else 0

    def prepare(start: int) -> tuple[Window, Any]:
        window = Window(log, range(start, min(start + size, events.stop)))
        own = (start - events.start) // size % group.size == group.rank
        return window, model.prepare(window) if own else None

    for window, batch in prefetch_map(prepare, range(events.start, events.stop, size), threads):
        candidates, excluded = None, None
        if board is not None and batch is not None:
            candidates, rows, columns = board.candidates(window, device)
            excluded = (rows, columns) if len(rows) else None
        elif batch is not None:
            candidates = candidate_items(window, protocol, device)
        if candidates is None:
            true = torch.from_numpy(window.item.astype(np.int64))
        else:
            true = torch.zeros(len(window), dtype=torch.int64, device=device)
        yield Chunk(window, batch, candidates, true, excluded)


@torch.no_grad()
def rank_events(
    model: Model,
    log: EventLog,
    events: range,
    state: State,
    *,
    protocol: str = "full",
    max_events: int | None = None,
    on_progress: Callable[[int], object] = lambda events: None,
    shares: int = 1,
    group: ProcessGroup = ALONE,
) -> Array:
    """float64[events]: the rank of each event's item. The state advances to the end of `events`.

    `max_events` bounds a chunk: it changes the memory used, not the result.
    The processes of a `group` take turns in ranking chunks and observe the others' events; `shares` as in `chunks`.
    `on_progress` is called with each chunk's number of events. On a GPU a chunk's ranks are read while later ones
    are computed.
    """
    ranks, pending = np.zeros(len(events)), deque[tuple[range, Callable[[], Array]]]()

    def read(leave: int) -> None:
        while len(pending) > leave:
            positions, chunk_ranks = pending.popleft()
            ranks[positions.start - events.start : positions.stop - events.start] = chunk_ranks()

    for chunk in chunks(model, log, events, protocol, max_events, shares, group):
        if chunk.batch is not None:
            pending.append((chunk.window.events, to_host(_rank(model, chunk, state))))
            read(leave=GPU_AHEAD if model.device.type == "cuda" else 0)
        else:
            model.observe(chunk.window, state)
        on_progress(len(chunk.window))
    read(leave=0)
    return _joined(ranks, group)


def _joined(ranks: Array, group: ProcessGroup) -> Array:
    """The ranks of all processes, of which each has zeros where the others have theirs."""
    return np.asarray(group.all_gather(torch.from_numpy(ranks)).sum(0)) if group.size > 1 else ranks


def _rank(model: Model, chunk: Chunk, state: State) -> Tensor:
    """float64[n]: the ranks of a chunk's events; the state advances."""
    if chunk.excluded is None:
        return model.rank(chunk.batch, chunk.candidates, chunk.true, state)
    scores = model.score(chunk.batch, chunk.candidates, state)
    return ranks_without(scores, chunk.true.to(scores.device), *chunk.excluded)


def ranks_without(scores: Tensor, true: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    """float64[n]: ranks of the columns `true` int64[n] by `scores` [n, C], without the cells (rows, columns).

    Subtracting is exact also where the true score is −inf or NaN, which a masked score would tie with.
    """
    ranks = ranks_on_device(scores, true)
    cleaned = torch.nan_to_num(scores, nan=-torch.inf, posinf=torch.inf, neginf=-torch.inf)
    true_score = cleaned[rows, true[rows]]
    other = cleaned[rows, columns]
    share = (other > true_score).double() + (other == true_score).double() / 2
    return ranks.index_add(0, rows, share, alpha=-1)


@torch.no_grad()
def calibrate(
    model: Model,
    log: EventLog,
    events: range,
    state: State,
    *,
    protocol: str,
    shares: int = 1,
    group: ProcessGroup = ALONE,
) -> tuple[dict[str, float], Array] | None:
    """Lets a `Calibrated` model choose its option by the MRR on these events; None for other models.

    It is the first option whose MRR is within one standard error of the best one's: what a few events cannot tell
    apart is decided for the simpler option, which ages less. Returns numbers to log and the ranks float64[events]
    under the chosen option. `shares` and `group` as above.
    """
    calibrated = capable(model, Calibrated)
    if calibrated is None or not events:
        return None
    options = calibrated.calibration_options()
    ranks = np.zeros((len(options), len(events)))
    for chunk in chunks(model, log, events, protocol, shares=shares, group=group):
        at = slice(chunk.window.events.start - events.start, chunk.window.events.stop - events.start)
        if chunk.batch is not None:
            ranks[:, at] = calibrated.calibration_ranks(chunk.batch, chunk.candidates, chunk.true, state)
        else:
            model.observe(chunk.window, state)
    ranks = _joined(ranks, group)
    chosen = first_near_best(1 / ranks, np.asarray(log.user[events.start : events.stop]))
    return calibrated.set_calibration(options[chosen]), ranks[chosen]


def first_near_best(rewards: Array, user: Array, errors: float = 1.0) -> int:
    """The first row of float64[O, n] whose mean is within this many standard errors of the largest mean.

    A standard error is that of the paired difference of the two rows, clustered by user.
    """
    below_best = (rewards[rewards.mean(1).argmax()] - rewards).T
    return int((below_best.mean(0) <= errors * standard_errors(below_best, user)).argmax())


def candidate_items(window: Window, protocol: str, device: torch.device | str = "cpu") -> Tensor | None:
    """int64[n, C]: the items that each event's own is ranked among, itself first; None: all items."""
    count = PROTOCOLS[protocol]
    if count is None:
        return None
    true = placed(window.item.astype(np.int64), device)
    return evaluation_candidates(window.events, true, window.log.num_items, count)
