"""Fewest cut links for a given depth as a labelling problem, solved by sequential tree-reweighted message passing.

Each event may run some levels earlier than without cuts: at level(k) − shift(k), which must lie in 1 … L, where L is
the depth. The link p → k may stay if the level rises over it: shift(k) ≤ shift(p) + slack, with
slack = level(k) − level(p) − 1. The fewest cuts are the shifts that violate this for the fewest links. The events of
an entity form a chain, all chains run forward in time, and a message along a chain takes time linear in the number of
shifts, which is the setting of TRW-S (Kolmogorov, Convergent tree-reweighted message passing for energy minimization,
PAMI 2006).

If D is the longest path without cuts, no shift above D − L is needed. Where more than `max_labels` shifts remain they
are restricted to a grid, g(i) = ⌊i·spacing⌋, and a link may stay if i(k) ≤ i(p) + ⌊slack / spacing⌋. The result stays
valid and needs slightly more cuts. An event's label counts down from its highest grid point, so that labels rise
along a link as levels do.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from dynedge.plan.dnodes.graph import Core, prune_cuts
from dynedge.utils.array_type import Array
from dynedge.utils.numba_compile import compiled

MOST_LABELS = 32
LABEL_COUNTS = (4, 8, MOST_LABELS)  # tried in order: few labels converge in few sweeps and often win on long paths;
MAX_SHIFTS_PER_LABEL = 4  # MOST_LABELS pay only where they are nearly exact: at most this many shifts per label
MIN_GAIN = np.float32(1e-4)  # smaller differences are rounding errors
ONE = np.float32(1)


class Labels(NamedTuple):
    """Event k has a label in 0 … num_labels[k] − 1; a link stays if label(k) ≥ label(prev[k, s]) + rise[k, s]."""

    num_labels: Array  # int32[m]: number of labels
    rise: Array  # int32[m, 2]: smallest rise over a link that stays


@compiled
def cut_core(core: Core, depth: int, sweeps: int, target: int) -> tuple[Array, int]:
    """(cut links bool[m, 2], their number): the fewest found that leave no path of the core longer than `depth`.

    Stops early when at most `target` links are cut, or when that is out of reach.
    """
    best, fewest = core.prev >= 0, (core.prev >= 0).sum()
    if fewest <= target:
        return best, fewest
    exact = min(depth, core.level.max() - depth + 1)
    for max_labels in LABEL_COUNTS:
        if max_labels == MOST_LABELS and exact > MAX_SHIFTS_PER_LABEL * MOST_LABELS:
            break
        is_cut, remaining = _sweep_messages(core, depth, sweeps, target, max_labels)
        if remaining < fewest:
            best, fewest = is_cut, remaining
        if exact <= max_labels or fewest <= target or _out_of_reach(fewest, target, 0):
            break
    return best, fewest


@compiled
def _sweep_messages(core: Core, depth: int, sweeps: int, target: int, max_labels: int) -> tuple[Array, int]:
    labels = label_events(core, depth, max_labels)
    message = np.zeros((len(core.event), 4, max_labels), np.float32)  # from the two parents, from the two readers
    label = np.zeros(len(core.event), np.int32)
    best, fewest = core.prev >= 0, (core.prev >= 0).sum()
    for sweep in range(sweeps):
        for direction in range(2):
            if direction == 0:
                is_cut = _forward(core.prev, core.next, labels, message, label)
            else:
                is_cut = _backward(core.prev, core.next, labels, message, label)
            remaining = prune_cuts(core.prev, is_cut, depth)
            if remaining < fewest:
                best, fewest = is_cut, remaining
            if fewest <= target:
                return best, fewest
        if _out_of_reach(fewest, target, sweep):
            break
    return best, fewest


@compiled
def _out_of_reach(fewest: int, target: int, sweep: int) -> bool:
    """Whether later sweeps are unlikely to reach the target: they seldom gain more than 15 %, after a few 3 %."""
    return target > 0 and fewest > target * (1.03 + 0.12 / (1 + sweep) ** 2) + 1


@compiled
def label_events(core: Core, depth: int, max_labels: int) -> Labels:
    m = len(core.event)
    num_labels, rise, high = np.zeros(m, np.int32), np.zeros((m, 2), np.int32), np.zeros(m, np.int64)
    longest = core.level.max() if m else depth
    excess = longest - depth
    a, b = 1, 1  # the grid's spacing is a / b
    if min(depth, excess + 1) > max_labels:
        a, b = (depth, max_labels) if depth * (max_labels - 1) <= excess * max_labels else (excess, max_labels - 1)
    for k in range(m):
        level = np.int64(core.level[k])
        high[k] = min(_ceil(excess * b, a), _ceil(level * b, a) - 1)
        num_labels[k] = high[k] - max(0, _ceil((level - depth) * b, a)) + 1
        for s in range(2):
            p = core.prev[k, s]
            if p >= 0:
                rise[k, s] = high[k] - high[p] - (level - core.level[p] - 1) * b // a
    return Labels(num_labels, rise)


@compiled
def _ceil(a: int, b: int) -> int:
    return -(-a // b)


@compiled(fastmath=True)
def _forward(prev: Array, next: Array, labels: Labels, message: Array, label: Array) -> Array:
    """Labels the events in time order and sends messages to their readers. Returns the cut links bool[m, 2].

    A label minimizes the cost given the parents' labels and the readers' messages.
    """
    num_labels, rise = labels
    is_cut = np.zeros(prev.shape, np.bool_)
    total, running = np.empty(message.shape[2], np.float32), np.empty(message.shape[2], np.float32)
    for k in range(len(prev)):
        n = num_labels[k]
        p, q, a, b = prev[k, 0], prev[k, 1], next[k, 0], next[k, 1]
        low = max(0, label[p] + rise[k, 0]) if p >= 0 else 0
        high = max(0, label[q] + rise[k, 1]) if q >= 0 else 0
        # the readers' messages grow with the label, so only the lowest label that keeps a link can be optimal
        at, cost = 0, message[k, 2, 0] + message[k, 3, 0] + (low > 0) + (high > 0)
        for x in (min(low, high), max(low, high)):
            if x < n:
                other = message[k, 2, x] + message[k, 3, x] + (low > x) + (high > x)
                if other < cost - MIN_GAIN:
                    at, cost = x, other
        label[k] = at
        is_cut[k, 0], is_cut[k, 1] = low > at, high > at
        _weighted_sum(message, k, n, _num_chains(p, q, a, b), total)
        if a >= 0:
            _send_to_reader(message, k, 0, n, a, num_labels[a], rise[a, 0], total, running)
        if b >= 0:
            _send_to_reader(message, k, 1, n, b, num_labels[b], rise[b, 1], total, running)
    return is_cut


@compiled(fastmath=True)
def _backward(prev: Array, next: Array, labels: Labels, message: Array, label: Array) -> Array:
    """`_forward` with time reversed."""
    num_labels, rise = labels
    is_cut = np.zeros(prev.shape, np.bool_)
    total, running = np.empty(message.shape[2], np.float32), np.empty(message.shape[2], np.float32)
    for k in range(len(prev) - 1, -1, -1):
        n = num_labels[k]
        p, q, a, b = prev[k, 0], prev[k, 1], next[k, 0], next[k, 1]
        top = n - 1
        low = min(top, label[a] - rise[a, 0]) if a >= 0 else top
        high = min(top, label[b] - rise[b, 1]) if b >= 0 else top
        at, cost = top, message[k, 0, top] + message[k, 1, top] + (low < top) + (high < top)
        for x in (max(low, high), min(low, high)):
            if x >= 0:
                other = message[k, 0, x] + message[k, 1, x] + (low < x) + (high < x)
                if other < cost - MIN_GAIN:
                    at, cost = x, other
        label[k] = at
        if a >= 0:
            is_cut[a, 0] = low < at
        if b >= 0:
            is_cut[b, 1] = high < at
        _weighted_sum(message, k, n, _num_chains(p, q, a, b), total)
        if p >= 0:
            _send_to_parent(message, k, 0, n, p, num_labels[p], rise[k, 0], total, running)
        if q >= 0:
            _send_to_parent(message, k, 1, n, q, num_labels[q], rise[k, 1], total, running)
    return is_cut


@compiled
def _num_chains(p: int, q: int, a: int, b: int) -> int:
    """The number of chains through an event, over which TRW-S divides its cost."""
    return max((p >= 0) + (q >= 0), (a >= 0) + (b >= 0))


@compiled(fastmath=True)
def _weighted_sum(message: Array, k: int, n: int, chains: int, total: Array) -> None:
    weight = ONE / np.float32(chains)
    for x in range(n):
        total[x] = weight * (message[k, 0, x] + message[k, 1, x] + message[k, 2, x] + message[k, 3, x])


@compiled(fastmath=True)
def _send_to_reader(
    message: Array, k: int, side: int, n: int, reader: int, labels: int, rise: int, total: Array, running: Array
) -> None:
    """Message to label y: lowest cost of k's labels x ≤ y − rise, or of any label plus a cut; minimum subtracted."""
    least = total[0] - message[k, 2 + side, 0]
    for x in range(n):
        value = total[x] - message[k, 2 + side, x]
        least = value if value < least else least
        running[x] = least
    start = min(max(rise, 0), labels)
    end = max(start, min(labels, n + rise))
    for y in range(start):
        message[reader, side, y] = ONE
    for y in range(start, end):
        message[reader, side, y] = min(running[y - rise] - least, ONE)
    for y in range(end, labels):
        message[reader, side, y] = np.float32(0)


@compiled(fastmath=True)
def _send_to_parent(
    message: Array, k: int, side: int, n: int, parent: int, labels: int, rise: int, total: Array, running: Array
) -> None:
    """Message to label x: lowest cost of k's labels y ≥ x + rise, or of any label plus a cut; minimum subtracted."""
    least = total[n - 1] - message[k, side, n - 1]
    for y in range(n - 1, -1, -1):
        value = total[y] - message[k, side, y]
        least = value if value < least else least
        running[y] = least
    start = min(max(-rise, 0), labels)
    end = max(start, min(labels, n - rise))
    for x in range(start):
        message[parent, 2 + side, x] = np.float32(0)
    for x in range(start, end):
        message[parent, 2 + side, x] = min(running[x + rise] - least, ONE)
    for x in range(end, labels):
        message[parent, 2 + side, x] = ONE
