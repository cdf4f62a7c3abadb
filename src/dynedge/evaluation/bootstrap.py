"""Bootstrap intervals of means over events, clustered by user.

Legend: n events, M metrics, G groups of users, B resamples.

Events of one user are not independent: one who is easy to predict is so many times over. So whole users are drawn
again, not events, and the interval holds what 95 % of the redrawn means lie in. The difference of two models on the
same events is the mean of the events' differences, and its interval is found the same way: that is the paired one.
"""

from __future__ import annotations

import numpy as np

from dynedge.utils.arrays import Array
from dynedge.utils.compile import compiled
from dynedge.utils.rng import random_below, stream_key

RESAMPLES = 2000
SEED = 95
GROUPS = 5000  # more users than this are dealt into so many groups, drawn as one: as independent, and quick


def intervals(values: Array, user: Array, resamples: int = RESAMPLES, seed: int = SEED) -> Array:
    """float64[M, 2]: the 95 % intervals of the means of `values` float64[n, M]; NaN where there are no events."""
    if not len(values):
        return np.full((values.shape[1], 2), np.nan)
    means = _resampled(*_sums(values, user), resamples, seed)
    return np.ascontiguousarray(np.quantile(means, (0.025, 0.975), axis=0).T)


def _sums(values: Array, user: Array) -> tuple[Array, Array]:
    """(float64[G, M] sums, float64[G] events) of groups of users."""
    _, group = np.unique(user, return_inverse=True)
    group %= GROUPS
    events = np.bincount(group)
    sums = [np.bincount(group, weights=column) for column in values.T]
    return np.stack(sums, 1), events.astype(np.float64)


@compiled
def _resampled(sums: Array, events: Array, resamples: int, seed: int) -> Array:
    """float64[B, M]: the means over as many groups as there are, drawn with replacement."""
    groups, width = sums.shape
    found = np.zeros((resamples, width))
    for b in range(resamples):
        key, count = stream_key(np.uint64(seed), np.uint64(b)), 0.0
        for k in range(groups):
            g = np.int64(random_below(np.uint64(groups), key, np.uint64(k)))
            count += events[g]
            for m in range(width):
                found[b, m] += sums[g, m]
        found[b] /= count
    return found
