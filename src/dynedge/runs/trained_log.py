"""The log of a run after it has grown: `dynedge append` adds events, and a run has still those that it knew."""

from __future__ import annotations

from dataclasses import replace

from dynedge.data.log import EventLog


def as_trained(log: EventLog, ids: EventLog) -> EventLog:
    """Returns the part of `log` that was the whole log when the run was trained; `log` itself if it has not grown.

    `ids` is the log without events in the run's folder. Users, items and categories are those of the run.
    """
    trained_on = ids.metadata.get("trained_on", {})
    events = trained_on.get("events", 0)
    continues = (
        len(log) > events
        and log.prefix_checksum(events) == trained_on.get("prefix_checksum")
        and log.user_ids.starts_with(ids.user_ids)
        and log.item_ids.starts_with(ids.item_ids)
    )
    if not continues:
        return log
    counts = {name: trained_on[name] for name in ("events", "users", "items", "fingerprint")}
    return replace(
        log,
        user=log.user[:events],
        item=log.item[:events],
        time=log.time[:events],
        features=log.features[:events],
        label=None if log.label is None else log.label[:events],
        event_id=None if log.event_id is None else log.event_id[:events],
        user_ids=ids.user_ids,
        item_ids=ids.item_ids,
        item_categories=ids.item_categories,
        category_ids=ids.category_ids,
        user_categories=ids.user_categories,
        user_category_ids=ids.user_category_ids,
        metadata=log.metadata | counts,
    )
