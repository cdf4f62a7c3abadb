"""Logs as temporal graphs of other libraries, and back: PyTorch Geometric's TemporalData, and the arrays of TGB.

Both number users and items as nodes of one graph: users first, then items, so item i is node `num_users + i`, as in
the Temporal Graph Benchmark (TGB) and in PyTorch Geometric's JODIE data sets. External ids are not part of either
format: `log.user_ids` and `log.item_ids` have them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from dynedge.data.frames import library
from dynedge.data.log import EventLog
from dynedge.errors import UsageError
from dynedge.utils.array_type import Array


def to_temporal_data(log: EventLog) -> Any:
    """Returns a torch_geometric.data.TemporalData with src, dst, t, msg (features) and, if there are labels, y."""
    module = library("torch_geometric.data", "to_temporal_data", "torch_geometric")
    import torch

    columns = {"src": _users(log), "dst": _items(log), "t": _times(log), "msg": np.array(log.features, np.float32)}
    if log.label is not None:
        columns["y"] = np.array(log.label, np.float32)
    return module.TemporalData(**{name: torch.from_numpy(column) for name, column in columns.items()})


def from_temporal_data(data: Any, *, num_users: int | None = None) -> EventLog:
    """Returns a log in memory of a TemporalData whose sources are users and whose destinations are items.

    `num_users` is the number of the first item; by default that after the largest source. Where sources and
    destinations overlap (one kind of node), both keep their numbers.
    """
    return _from_nodes(data.src, data.dst, data.t, getattr(data, "msg", None), getattr(data, "y", None), num_users)


def to_tgb(log: EventLog) -> dict[str, Array]:
    """Returns the arrays of TGB's `LinkPropPredDataset.full_data`, with whole seconds as TGB has them.

    >>> log = EventLog.from_arrays(user=[0, 1, 0], item=[1, 1, 0], time=[10, 20, 30])
    >>> arrays = to_tgb(log)
    >>> arrays["sources"].tolist(), arrays["destinations"].tolist(), arrays["timestamps"].tolist()
    ([0, 1, 0], [3, 3, 2], [10, 20, 30])
    >>> from_tgb(arrays).item.tolist()
    [1, 1, 0]
    """
    ones = np.ones(len(log))
    return {
        "sources": _users(log),
        "destinations": _items(log),
        "timestamps": np.asarray(log.time).astype(np.int64),
        "edge_idxs": np.arange(len(log)),
        "edge_feat": np.array(log.features, np.float32),
        "w": ones,
        "edge_label": ones.copy(),
    }


def from_tgb(arrays: Mapping[str, npt.ArrayLike], *, num_users: int | None = None) -> EventLog:
    """Returns a log in memory of TGB's arrays `sources`, `destinations`, `timestamps` and, if given, `edge_feat`.

    `num_users` as in `from_temporal_data`.
    """
    for name in ("sources", "destinations", "timestamps"):
        if name not in arrays:
            raise UsageError(f"the arrays have no '{name}'; they have: {', '.join(arrays)}.")
    columns = (arrays["sources"], arrays["destinations"], arrays["timestamps"])
    return _from_nodes(*columns, arrays.get("edge_feat"), None, num_users)


def _users(log: EventLog) -> Array:
    return np.asarray(log.user).astype(np.int64)


def _items(log: EventLog) -> Array:
    return np.asarray(log.item).astype(np.int64) + log.num_users


def _times(log: EventLog) -> Array:
    """Whole seconds as int64, which PyTorch Geometric's models expect; fractions stay float64."""
    time = np.array(log.time)
    whole = time.astype(np.int64)
    return whole if np.array_equal(whole, time) else time


def _from_nodes(
    source: Any, destination: Any, time: Any, features: Any, label: Any, num_users: int | None
) -> EventLog:
    user, node = np.asarray(source, np.int64), np.asarray(destination, np.int64)
    first_item = int(user.max(initial=-1)) + 1 if num_users is None else num_users
    if num_users is None and len(node) and node.min() < first_item:
        first_item = 0  # one kind of node
    if len(node) and node.min() < first_item:
        raise UsageError(f"node {node.min()} is a destination, but with num_users {num_users} it is a user.")
    if num_users is not None and len(user) and user.max() >= num_users:
        raise UsageError(f"node {user.max()} is a source, but with num_users {num_users} it is an item.")
    if features is not None:
        features = np.asarray(features, np.float32).reshape(len(user), -1)
    if label is not None:
        label = np.asarray(label, np.float32)
    users = first_item or None
    return EventLog.from_arrays(user, node - first_item, time, features=features, label=label, num_users=users)
