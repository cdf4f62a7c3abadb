"""Protocol `tgb`: candidates by the rules of the Temporal Graph Benchmark (TGB) and of TGB-Seq.

Where negatives of the board are stored with the log (data/stored_negatives.py), an event's item is ranked among them;
an event without stored ones, as TGB-Seq's validation events, gets 100 sampled ones. Otherwise it is ranked among all
items except the user's other items at the very same time, which are true as well. Ties get the mean rank.

Legend: n events of a window, C candidates.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from dynedge.data.log import EventLog
from dynedge.data.stored_negatives import read_negatives
from dynedge.data.windows import Window
from dynedge.evaluation.negatives import evaluation_candidates
from dynedge.utils.array_type import Array

TGB = "tgb"
TGB_SPLIT = "time:0.7,0.15,0.15"
SAMPLED = 100  # negatives of an event for which none are stored


class Candidates(NamedTuple):
    """What the events of a window are ranked among."""

    items: Tensor | None  # int64[n, C], the true item first; None: all items
    rows: Tensor  # int64[..]: events of which …
    columns: Tensor  # int64[..]: … these columns are not candidates


class Board:
    """The candidates of a log's events."""

    def __init__(self, log: EventLog, events: range) -> None:
        self._stored = read_negatives(log)
        self._pairs = same_time_items(log, events) if self._stored is None else None
        self.width = log.num_items if self._stored is None else 1 + max(self._stored.most, SAMPLED)

    def candidates(self, window: Window, device: torch.device | str) -> Candidates:
        items = None
        if self._pairs is None:
            stored, rows, columns = self._stored_candidates(window)
            items = torch.from_numpy(stored).to(device)
        else:
            event, item = self._pairs
            at = slice(*np.searchsorted(event, (window.events.start, window.events.stop)))
            rows, columns = event[at] - window.events.start, item[at]
        return Candidates(items, *(torch.from_numpy(array).to(device) for array in (rows, columns)))

    def _stored_candidates(self, window: Window) -> tuple[Array, Array, Array]:
        """Candidates int64[n, C] with the true items first, and the cells that pad the shorter rows."""
        assert self._stored is not None
        counts, true = self._stored.counts(window.events), window.item.astype(np.int64)
        none = np.flatnonzero(counts == 0)
        sampled = min(SAMPLED, window.log.num_items - 1) if len(none) else 0
        items = np.repeat(true[:, None], 1 + max(counts.max(initial=0), sampled), 1)
        columns = np.arange(1, items.shape[1])
        is_stored = columns <= counts[:, None]
        items[:, 1:][is_stored] = self._stored.of(window.events)
        if len(none):
            drawn = evaluation_candidates(window.events, torch.from_numpy(true), window.log.num_items, sampled)
            items[none, : 1 + sampled] = drawn.numpy()[none]
            is_stored[none] = columns <= sampled
        rows, padding = np.nonzero(~is_stored)
        return items, rows, padding + 1


def same_time_items(log: EventLog, events: range) -> tuple[Array, Array]:
    """(int64[..], int64[..]): events by position, and the other items of their users at the same time.

    Each event is repeated for every such item; only events in `events` count.
    """
    span = slice(events.start, events.stop)
    user, item, time = (np.asarray(column[span]) for column in (log.user, log.item, log.time))
    order = np.lexsort((user, time))
    new = np.ones(len(order), bool)
    new[1:] = (np.diff(time[order]) != 0) | (np.diff(user[order]) != 0)
    first, group = np.flatnonzero(new), np.cumsum(new) - 1
    size = np.bincount(group, minlength=len(first))[group]
    partners = np.where(size > 1, size, 0)  # those of a group of one event are left out at once
    row = np.repeat(np.arange(len(order)), partners)
    within = np.arange(len(row)) - (np.cumsum(partners) - partners)[row]
    event, partner = order[row], order[first[group[row]] + within]
    pairs = np.stack([event, item[partner]], 1)[item[event] != item[partner]]
    pairs = np.unique(pairs, axis=0)  # by event; a user may have an item twice at one time
    return pairs[:, 0] + events.start, pairs[:, 1]
