"""What is said of ranks. Every metric is a mean over events, so that intervals and differences need one rule only."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from dynedge.utils.arrays import Array


def _recall(k: int) -> Callable[[Array], Array]:
    return lambda ranks: (ranks <= k).astype(np.float64)


def _ndcg(k: int) -> Callable[[Array], Array]:
    return lambda ranks: np.where(ranks <= k, 1 / np.log2(1 + ranks), 0.0)


# By name, each a function of ranks float64[n], from 1, to values float64[n] of which the mean is taken. One item is
# right, so Recall@k is the share of events whose item is among the first k; a tie across the border counts by its
# mean rank.
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
    """float64[n, M]: every metric of every event."""
    return np.stack([metric(ranks) for metric in METRICS.values()], 1)


def mean(name: str, ranks: Array) -> float | None:
    """One metric, by name; None where there are no events."""
    return float(METRICS[name](ranks).mean()) if len(ranks) else None


def title(name: str) -> str:
    """A metric's name as people write it: MRR, Recall@10, NDCG@10, mean rank."""
    return name.upper() if name.startswith(("mrr", "ndcg")) else name.replace("recall", "Recall").replace("_", " ")
