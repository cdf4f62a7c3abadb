"""Metrics beyond accuracy, of the lists of K recommended items of sampled test events.

Each is one number for all lists, without a confidence interval; docs/evaluation.md defines them for users.
Legend: m lists, I items, K items of a list.
"""

from __future__ import annotations

import numpy as np

from dynedge.data.log import EventLog
from dynedge.evaluation.top_lists import K, TopLists
from dynedge.utils.array_type import Array

CALIBRATION_BINS = 10
Values = dict[str, float | None]
TITLES = {
    f"coverage@{K}": f"Coverage@{K}",
    f"gini@{K}": f"Gini@{K}",
    f"novelty@{K}": f"Novelty@{K}",
    f"diversity@{K}": f"Diversity@{K}",
    f"popularity_bias@{K}": f"popularity bias@{K}",
    f"repeat_share@{K}": f"repeat share@{K}",
    "calibration_error": "calibration error",
}
LIST_METRICS = tuple(TITLES)


def list_metrics(lists: TopLists | None, log: EventLog, train_end: int) -> Values:
    """Returns the LIST_METRICS by name; None where one is not defined."""
    if lists is None or not (lists.items >= 0).any():
        return dict.fromkeys(LIST_METRICS)
    given = lists.items >= 0
    shown = lists.items[given]
    exposure = np.bincount(shown, minlength=log.num_items)
    training = np.bincount(log.item[:train_end], minlength=log.num_items)
    true = np.asarray(log.item)[lists.events]
    values = (
        float((exposure > 0).mean()),
        gini(exposure),
        novelty(shown, training),
        float(np.nanmean(lists.diversity)) if np.isfinite(lists.diversity).any() else None,
        popularity_bias(shown, true, training),
        repeat_share(lists, log),
        calibration_error(lists.confidence, lists.items[:, 0] == true),
    )
    return dict(zip(LIST_METRICS, values, strict=True))


def gini(exposure: Array) -> float:
    """The Gini coefficient of counts [I]: 0 if all items are shown equally often, (I - 1) / I if only one is."""
    count = np.sort(exposure).astype(np.float64)
    rank = np.arange(1, len(count) + 1)
    return float(((2 * rank - len(count) - 1) * count).sum() / (len(count) * count.sum()))


def novelty(shown: Array, training: Array) -> float:
    """The mean of -log2 of an item's share of the training events, each item counted once more than it occurs."""
    share = (training + 1) / (training.sum() + len(training))
    return float(-np.log2(share[shown]).mean())


def popularity_bias(shown: Array, true: Array, training: Array) -> float | None:
    """Mean number of training events of the items shown, divided by that of the items that users chose."""
    chosen = training[true].mean()
    return float(training[shown].mean() / chosen) if chosen else None


def repeat_share(lists: TopLists, log: EventLog) -> float:
    """The share of items shown that their user had an event with before."""
    user = np.asarray(log.user)
    relevant = np.zeros(log.num_users, bool)
    relevant[user[lists.events]] = True
    history = np.flatnonzero(relevant[user[: lists.events[-1]]])
    pairs, first = np.unique(_pair(user[history], log.item[history], log.num_items), return_index=True)
    given = lists.items >= 0
    query = _pair(np.repeat(user[lists.events], given.sum(1)), lists.items[given], log.num_items)
    if not len(pairs):
        return 0.0
    at = np.minimum(np.searchsorted(pairs, query), len(pairs) - 1)
    event = np.repeat(lists.events, given.sum(1))
    return float(((pairs[at] == query) & (history[first[at]] < event)).mean())


def _pair(user: Array, item: Array, items: int) -> Array:
    return user.astype(np.int64) * items + item


def calibration_error(confidence: Array, correct: Array) -> float:
    """Expected calibration error: |mean confidence - share of correct first items|, weighted over ten bins.

    The bins hold equally many events, in order of confidence.
    """
    order = np.argsort(confidence, kind="stable")
    error = 0.0
    for part in np.array_split(order, min(CALIBRATION_BINS, len(order))):
        error += abs(float(confidence[part].mean()) - float(correct[part].mean())) * len(part)
    return error / len(order)
