"""Which events a metric is told apart by: what a mean over all of them hides."""

from __future__ import annotations

import numpy as np

from dynedge.data.log import EventLog
from dynedge.data.pair_set import repeated_pairs
from dynedge.utils.arrays import Array


def breakdown(log: EventLog, events: range, train_end: int) -> dict[str, Array]:
    """bool[events] by name.

    `repeat item`: the user had the item before, at any earlier position of the log; else `new item`. `known user`:
    one with training events; else `new user`, from the first event to the last. `decile k of 10`: equal numbers of
    events in the order of time.
    """
    span = slice(events.start, events.stop)
    user = np.asarray(log.user[span])
    asked = np.zeros(log.num_users, bool)
    asked[user] = True
    repeat = repeated_pairs(np.asarray(log.user[: events.stop]), np.asarray(log.item[: events.stop]), asked)[span]
    trained = np.zeros(log.num_users, bool)
    trained[log.user[:train_end]] = True
    known = trained[user]
    decile = np.arange(len(events)) * 10 // max(len(events), 1)
    return {
        **{"repeat item": repeat, "new item": ~repeat, "known user": known, "new user": ~known},
        **{f"decile {k + 1} of 10": decile == k for k in range(10)},
    }
