"""All that is said of a model on a part of a log, as plain values. The keys are stable: scripts read them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from dynedge.evaluation.bootstrap import intervals
from dynedge.evaluation.metrics import METRICS, per_event
from dynedge.utils.arrays import Array

IN_GROUPS = ("mrr", "recall@10")  # what is told of each group of a breakdown


def verdict(ranks: Array, user: Array, groups: Mapping[str, Array] | None = None) -> dict[str, Any]:
    """Every metric, `ci95` of MRR, `intervals` of each metric; and MRR and Recall@10 of each group of events.

    Ranks float64[n], or float64[S, n] of S seeds: then every event counts with its mean over the seeds. Where there
    are no events there is no number: None.
    """
    return _told(_values(ranks), user, tuple(METRICS)) | (
        {"breakdown": _of_groups(ranks, user, groups)} if groups is not None else {}
    )


def difference(ranks: Array, others: Array, user: Array) -> dict[str, Any]:
    """The same of one model's metrics less another's on the same events: the intervals are the paired ones."""
    return _told(_values(ranks) - _values(others), user, tuple(METRICS))


def _values(ranks: Array) -> Array:
    """float64[n, M]: the mean over seeds, where there are several."""
    return per_event(ranks) if ranks.ndim == 1 else np.mean([per_event(one) for one in ranks], 0)


def _of_groups(ranks: Array, user: Array, groups: Mapping[str, Array]) -> dict[str, Any]:
    names = list(METRICS)
    columns = [names.index(name) for name in IN_GROUPS]
    values = _values(ranks)[:, columns]
    return {name: _told(values[mask], user[mask], IN_GROUPS) for name, mask in groups.items()}


def _told(values: Array, user: Array, names: tuple[str, ...]) -> dict[str, Any]:
    if not len(values):
        return {"events": 0, "users": 0, **dict.fromkeys((*names, "ci95")), "intervals": dict.fromkeys(names)}
    bounds = dict(zip(names, intervals(values, user).tolist(), strict=True))
    return {
        "events": len(values),
        "users": len(np.unique(user)),
        **{name: float(np.ascontiguousarray(column).mean()) for name, column in zip(names, values.T, strict=True)},
        "ci95": bounds["mrr"],
        "intervals": bounds,
    }
