"""Rows of a run for external ids: those that the run was trained on, and new ones where its model can grow."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from dynedge.data.id_index import GrowableIdIndex, is_id, plain_id
from dynedge.data.log import EventLog
from dynedge.errors import DataError
from dynedge.utils.array_type import Array


class RunIds(NamedTuple):
    """The ids of a run's rows; `can_grow`: whether new users and items get rows, as in the service."""

    run_log: EventLog  # the training log's ids, without events
    users: GrowableIdIndex
    items: GrowableIdIndex
    can_grow: bool


def encode_log(ids: RunIds, log: EventLog) -> EventLog:
    """Returns a log in the rows of a run; new ids are added to `ids`, or refused if it cannot grow."""
    run_log = ids.run_log
    if log.features.shape[1] != run_log.features.shape[1]:
        raise DataError(
            f"{log.path or 'the log'} has {log.features.shape[1]} features per event, but the run was trained with "
            f"{run_log.features.shape[1]}."
        )
    added = ids.users.added or ids.items.added
    if not added and log.user_ids.equals(run_log.user_ids) and log.item_ids.equals(run_log.item_ids):
        return log
    user = rows_of(ids, ids.users, log.user_ids.take(range(log.num_users)), "user")[log.user]
    item = rows_of(ids, ids.items, log.item_ids.take(range(log.num_items)), "item")[log.item]
    return replace(log, user=user, item=item, user_ids=ids.users.all(), item_ids=ids.items.all())


def rows_of(ids: RunIds, of_side: GrowableIdIndex, external_ids: Iterable[Any], side: str) -> Array:
    """Returns int32[n], the rows of users or items; new ones are added, or refused if the run cannot grow."""
    values = list(map(plain_id, external_ids.tolist() if isinstance(external_ids, np.ndarray) else external_ids))
    rows = np.array([of_side.find(value) for value in values], np.int32)
    new = np.flatnonzero(rows < 0)
    if len(new) and not ids.can_grow:
        further = len({values[k] for k in new.tolist()}) - 1
        more = f" (and {further:,} more)" if further else ""
        raise DataError(
            f"the {side} {values[new[0]]!r}{more} was not in the log that the run was trained on, and its model "
            "cannot add any; train again with it."
        )
    for k in new.tolist():
        if not is_id(values[k]):
            raise DataError(f"the {side} {values[k]!r} of event {k} is not an id: ids are texts or integers.")
    for k in new.tolist():
        rows[k] = of_side.add(values[k])
    return rows
