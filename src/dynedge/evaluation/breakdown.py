"""Groups of events by which metrics are broken down."""

from __future__ import annotations

import numpy as np

from dynedge.data.log import EventLog
from dynedge.data.pair_set import repeated_pairs
from dynedge.utils.array_type import Array


def breakdown(log: EventLog, events: range, train_end: int) -> dict[str, Array]:
    """Returns masks bool[events] by name of the group.

    `repeat item`: the user interacted with the item at an earlier position of the log; otherwise `new item`.
    `known user`: the user has training events; otherwise `new user`, also after the user's first event.
    `decile k of 10`: ten groups of equally many events in time order.
    """
    span = slice(events.start, events.stop)
    user = np.asarray(log.user[span])
    relevant = np.zeros(log.num_users, bool)
    relevant[user] = True
    repeat = repeated_pairs(np.asarray(log.user[: events.stop]), np.asarray(log.item[: events.stop]), relevant)[span]
    trained = np.zeros(log.num_users, bool)
    trained[log.user[:train_end]] = True
    known = trained[user]
    decile = np.arange(len(events)) * 10 // max(len(events), 1)
    return {
        **{"repeat item": repeat, "new item": ~repeat, "known user": known, "new user": ~known},
        **{f"decile {k + 1} of 10": decile == k for k in range(10)},
    }
