"""Ranking metrics. Each is a mean over events, so that one bootstrap serves all metrics and their differences."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from dynedge.utils.array_type import Array


def _recall(k: int) -> Callable[[Array], Array]:
    return lambda ranks: (ranks <= k).astype(np.float64)


def _ndcg(k: int) -> Callable[[Array], Array]:
    return lambda ranks: np.where(ranks <= k, 1 / np.log2(1 + ranks), 0.0)


# By name: functions from ranks float64[n], counted from 1, to per-event values float64[n]. Each event has one true
# item, so Recall@k is the share of events whose item is among the first k. Tied items count with their mean rank.
METRICS: dict[str, Callable[[Array], Array]] = {
    "mrr": lambda ranks: 1 / ranks,
    "recall@1": _recall(1),
    "recall@5": _recall(5),
    "recall@10": _recall(10),
    "recall@20": _recall(20),
    "ndcg@10": _ndcg(10),
    "mean_rank": lambda ranks: ranks,
}


def per_event(ranks: Array) -> Array:
    """Returns every metric of every event, float64[n, M]."""
    return np.stack([metric(ranks) for metric in METRICS.values()], 1)


def mean(name: str, ranks: Array) -> float | None:
    """Returns the metric with this name; None if there are no events."""
    return float(METRICS[name](ranks).mean()) if len(ranks) else None


def title(name: str) -> str:
    """Returns a metric's display name: MRR, Recall@10, NDCG@10, mean rank."""
    return name.upper() if name.startswith(("mrr", "ndcg")) else name.replace("recall", "Recall").replace("_", " ")
