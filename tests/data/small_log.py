"""A log of a few events, written directly."""

import numpy as np

from dynedge.data.id_index import IdIndex
from dynedge.data.log_writer import LogWriter


def write(out, users=("a", "b"), force=False):
    with LogWriter(out, force=force) as writer:
        writer.column("user", np.int32).append(np.arange(len(users)))
        writer.column("item", np.int32).append(np.zeros(len(users)))
        writer.column("time", np.float64).append(np.arange(len(users)) / 2)
        writer.ids("user_ids", IdIndex.from_ids(users))
        writer.ids("item_ids", IdIndex.from_ids([-7]))
        writer.finish(events=len(users), users=len(users), items=1, item_features=[])
    return out
