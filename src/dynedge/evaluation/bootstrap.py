"""Confidence intervals (by bootstrap) and standard errors of means over events, clustered by user.

Legend: n events, M metrics, G groups of users, B resamples.

Events of one user are not independent, so whole users are resampled, not events; an interval contains 95 % of the
resampled means. The paired difference of two models is the mean of the per-event differences, and its interval is
computed in the same way.
"""

from __future__ import annotations

import numpy as np

from dynedge.utils.array_type import Array
from dynedge.utils.numba_compile import compiled
from dynedge.utils.rng import random_below, stream_key

RESAMPLES = 2000
SEED = 95
GROUPS = 5000  # with more users than this, groups of users are resampled: also independent, and faster


def confidence_intervals(values: Array, user: Array, resamples: int = RESAMPLES, seed: int = SEED) -> Array:
    """Returns the 95 % confidence intervals float64[M, 2] of the means of `values` float64[n, M]; NaN if n = 0."""
    if not len(values):
        return np.full((values.shape[1], 2), np.nan)
    means = _resampled_means(*_group_sums(values, user), resamples, seed)
    return np.ascontiguousarray(np.quantile(means, (0.025, 0.975), axis=0).T)


def standard_errors(values: Array, user: Array) -> Array:
    """Returns the standard errors float64[M] of the means of `values` float64[n, M], clustered by user."""
    sums, _ = _group_sums(values - values.mean(0), user)
    return np.asarray(np.sqrt((sums**2).sum(0)) / len(values))


def _group_sums(values: Array, user: Array) -> tuple[Array, Array]:
    """Returns (sums float64[G, M], events float64[G]) of groups of users."""
    _, group = np.unique(user, return_inverse=True)
    group %= GROUPS
    events = np.bincount(group)
    sums = [np.bincount(group, weights=column) for column in values.T]
    return np.stack(sums, 1), events.astype(np.float64)


@compiled
def _resampled_means(sums: Array, events: Array, resamples: int, seed: int) -> Array:
    """Returns float64[B, M]: means over G groups drawn with replacement."""
    groups, width = sums.shape
    means = np.zeros((resamples, width))
    for b in range(resamples):
        key, count = stream_key(np.uint64(seed), np.uint64(b)), 0.0
        for k in range(groups):
            g = np.int64(random_below(np.uint64(groups), key, np.uint64(k)))
            count += events[g]
            for m in range(width):
                means[b, m] += sums[g, m]
        means[b] /= count
    return means
