"""Summaries of ranks as plain values, as the commands print them with --json. Scripts may rely on the keys."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from dynedge.evaluation.board import TGB
from dynedge.evaluation.bootstrap import confidence_intervals
from dynedge.evaluation.metrics import METRICS, per_event
from dynedge.evaluation.protocol import ONLINE, PROTOCOLS
from dynedge.utils.array_type import Array

BREAKDOWN_METRICS = ("mrr", "recall@10")  # computed for each group of a breakdown


def summarize(ranks: Array, user: Array, groups: Mapping[str, Array] | None = None) -> dict[str, Any]:
    """Returns every metric, `ci95` of MRR, and `intervals` of every metric; with groups also a `breakdown`.

    Ranks are float64[n], or float64[S, n] of S seeds: then each event's metrics are averaged over the seeds. `groups`
    are masks bool[n] by name. Without events every metric is None.
    """
    values = _values(ranks)
    summary = _summarize(values, user, tuple(METRICS))
    if groups is not None:
        columns = [list(METRICS).index(name) for name in BREAKDOWN_METRICS]
        summary["breakdown"] = {
            name: _summarize(values[mask][:, columns], user[mask], BREAKDOWN_METRICS) for name, mask in groups.items()
        }
    return summary


def difference(ranks: Array, baseline: Array, user: Array) -> dict[str, Any]:
    """Returns each metric's paired difference to a baseline on the same events, with its confidence interval."""
    return _summarize(_values(ranks) - _values(baseline), user, tuple(METRICS))


def describe_candidates(protocol: str, num_items: int) -> str:
    """Returns in words which items a protocol ranks: "all 15 items" or "500 items, …"."""
    if protocol == ONLINE:
        return f"all {num_items:,} items, learning online"
    if protocol == TGB:
        return "the candidates of the Temporal Graph Benchmark's rules"
    negatives = PROTOCOLS[protocol]
    if negatives is None:
        return f"all {num_items:,} items"
    return f"{min(num_items, negatives + 1):,} items, sampled identically for every model"


def _values(ranks: Array) -> Array:
    """float64[n, M]: every metric of every event, averaged over seeds if there are several."""
    return per_event(ranks) if ranks.ndim == 1 else np.mean([per_event(one) for one in ranks], 0)


def _summarize(values: Array, user: Array, names: tuple[str, ...]) -> dict[str, Any]:
    if not len(values):
        return {"events": 0, "users": 0, **dict.fromkeys((*names, "ci95")), "intervals": dict.fromkeys(names)}
    bounds = dict(zip(names, confidence_intervals(values, user).tolist(), strict=True))
    return {
        "events": len(values),
        "users": len(np.unique(user)),
        **{name: float(np.ascontiguousarray(column).mean()) for name, column in zip(names, values.T, strict=True)},
        "ci95": bounds["mrr"],
        "intervals": bounds,
    }
