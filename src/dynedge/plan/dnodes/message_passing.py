"""Cutting to a given depth as a labelling problem, solved by passing messages (tree-reweighted, sequential: TRW-S).

Let each event run some steps earlier than it does uncut: at level head(k) − shift(k), which has to lie in 1 … L.
A link p → k may stay if the level rises over it: if shift(k) ≤ shift(p) + slack, slack = head(k) − head(p) − 1.
The fewest cuts are the shifts that break this for the fewest links. An entity's events form a chain, all chains run
forward in time, and along a chain a message takes time linear in the number of shifts: the case TRW-S is made for.
Kolmogorov, Convergent tree-reweighted message passing for energy minimization, PAMI 2006.

With D the longest path uncut no shift above D − L is needed. Where more than `most` shifts are left they are taken
from a grid, g(i) = ⌊i·pace⌋, and a link may stay if i(k) ≤ i(p) + ⌊slack / pace⌋: that loses a little, and is never
wrong. An event's label counts down from its highest grid point, so that labels rise along a link as levels do.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from dynedge.plan.dnodes.graph import Core, prune
from dynedge.utils.arrays import Array
from dynedge.utils.compile import compiled

MANY = 32
LADDER = (4, 8, MANY)  # labels tried. Few settle in few sweeps and are often the best where paths are long;
COARSEST = 4  # many pay where they are exact or nearly so: one label for no more than so many shifts
NONE = np.float32(1e-4)  # less than this is no gain, only rounding
ONE = np.float32(1)


class Labels(NamedTuple):
    """Event k has a label in 0 … many[k] − 1; a link stays if label(k) ≥ label(prev[k, s]) + rise[k, s]."""

    many: Array  # int32[m]
    rise: Array  # int32[m, 2]


@compiled
def cut_core(core: Core, depth: int, sweeps: int, enough: int) -> tuple[Array, int]:
    """(marks bool[m, 2], how many) that leave no path of the core longer than `depth`: the fewest met.

    Stops early when there are no more than `enough`, or when that is out of reach.
    """
    best, fewest = core.prev >= 0, (core.prev >= 0).sum()
    if fewest <= enough:
        return best, fewest
    exact = min(depth, core.head.max() - depth + 1)
    for most in LADDER:
        if most == MANY and exact > COARSEST * MANY:
            break
        cut, left = _sweep(core, depth, sweeps, enough, most)
        if left < fewest:
            best, fewest = cut, left
        if exact <= most or fewest <= enough or _hopeless(fewest, enough, 0):
            break
    return best, fewest


@compiled
def _sweep(core: Core, depth: int, sweeps: int, enough: int, most: int) -> tuple[Array, int]:
    labels = label_events(core, depth, most)
    message = np.zeros((len(core.event), 4, most), np.float32)  # from the two events read, from the two readers
    label = np.zeros(len(core.event), np.int32)
    best, fewest = core.prev >= 0, (core.prev >= 0).sum()
    for sweep in range(sweeps):
        for direction in range(2):
            if direction == 0:
                cut = _forward(core.prev, core.next, labels, message, label)
            else:
                cut = _backward(core.prev, core.next, labels, message, label)
            left = prune(core.prev, cut, depth)
            if left < fewest:
                best, fewest = cut, left
            if fewest <= enough:
                return best, fewest
        if _hopeless(fewest, enough, sweep):
            break
    return best, fewest


@compiled
def _hopeless(fewest: int, enough: int, sweep: int) -> bool:
    """Later sweeps gain less and less: seldom more than 15 % after the first, 3 % after a few."""
    return enough > 0 and fewest > enough * (1.03 + 0.12 / (1 + sweep) ** 2) + 1


@compiled
def label_events(core: Core, depth: int, most: int) -> Labels:
    m = len(core.event)
    many, rise, high = np.zeros(m, np.int32), np.zeros((m, 2), np.int32), np.zeros(m, np.int64)
    longest = core.head.max() if m else depth
    over = longest - depth
    a, b = 1, 1  # the pace, a / b
    if min(depth, over + 1) > most:
        a, b = (depth, most) if depth * (most - 1) <= over * most else (over, most - 1)
    for k in range(m):
        head = np.int64(core.head[k])
        high[k] = min(_ceil(over * b, a), _ceil(head * b, a) - 1)
        many[k] = high[k] - max(0, _ceil((head - depth) * b, a)) + 1
        for s in range(2):
            p = core.prev[k, s]
            if p >= 0:
                rise[k, s] = high[k] - high[p] - (head - core.head[p] - 1) * b // a
    return Labels(many, rise)


@compiled
def _ceil(a: int, b: int) -> int:
    return -(-a // b)


@compiled(fastmath=True)
def _forward(prev: Array, next: Array, labels: Labels, message: Array, label: Array) -> Array:
    """Label the events in time order, by the labels read and what the readers say; then tell the readers."""
    many, rise = labels
    cut = np.zeros(prev.shape, np.bool_)
    share, run = np.empty(message.shape[2], np.float32), np.empty(message.shape[2], np.float32)
    for k in range(len(prev)):
        n = many[k]
        p, q, a, b = prev[k, 0], prev[k, 1], next[k, 0], next[k, 1]
        low = max(0, label[p] + rise[k, 0]) if p >= 0 else 0
        high = max(0, label[q] + rise[k, 1]) if q >= 0 else 0
        # what the readers say grows with the label, so only the lowest label that keeps a link can be the best
        at, cost = 0, message[k, 2, 0] + message[k, 3, 0] + (low > 0) + (high > 0)
        for x in (min(low, high), max(low, high)):
            if x < n:
                other = message[k, 2, x] + message[k, 3, x] + (low > x) + (high > x)
                if other < cost - NONE:
                    at, cost = x, other
        label[k] = at
        cut[k, 0], cut[k, 1] = low > at, high > at
        _share(message, k, n, _chains(p, q, a, b), share)
        if a >= 0:
            _tell_reader(message, k, 0, n, a, many[a], rise[a, 0], share, run)
        if b >= 0:
            _tell_reader(message, k, 1, n, b, many[b], rise[b, 1], share, run)
    return cut


@compiled(fastmath=True)
def _backward(prev: Array, next: Array, labels: Labels, message: Array, label: Array) -> Array:
    """The same with time reversed."""
    many, rise = labels
    cut = np.zeros(prev.shape, np.bool_)
    share, run = np.empty(message.shape[2], np.float32), np.empty(message.shape[2], np.float32)
    for k in range(len(prev) - 1, -1, -1):
        n = many[k]
        p, q, a, b = prev[k, 0], prev[k, 1], next[k, 0], next[k, 1]
        top = n - 1
        low = min(top, label[a] - rise[a, 0]) if a >= 0 else top
        high = min(top, label[b] - rise[b, 1]) if b >= 0 else top
        at, cost = top, message[k, 0, top] + message[k, 1, top] + (low < top) + (high < top)
        for x in (max(low, high), min(low, high)):
            if x >= 0:
                other = message[k, 0, x] + message[k, 1, x] + (low < x) + (high < x)
                if other < cost - NONE:
                    at, cost = x, other
        label[k] = at
        if a >= 0:
            cut[a, 0] = low < at
        if b >= 0:
            cut[b, 1] = high < at
        _share(message, k, n, _chains(p, q, a, b), share)
        if p >= 0:
            _tell_read(message, k, 0, n, p, many[p], rise[k, 0], share, run)
        if q >= 0:
            _tell_read(message, k, 1, n, q, many[q], rise[k, 1], share, run)
    return cut


@compiled
def _chains(p: int, q: int, a: int, b: int) -> int:
    """How many of the chains that TRW-S shares the cost out to pass an event."""
    return max((p >= 0) + (q >= 0), (a >= 0) + (b >= 0))


@compiled(fastmath=True)
def _share(message: Array, k: int, n: int, chains: int, share: Array) -> None:
    part = ONE / np.float32(chains)
    for x in range(n):
        share[x] = part * (message[k, 0, x] + message[k, 1, x] + message[k, 2, x] + message[k, 3, x])


@compiled(fastmath=True)
def _tell_reader(
    message: Array, k: int, side: int, n: int, reader: int, labels: int, rise: int, share: Array, run: Array
) -> None:
    """To label y: the least cost of k's labels x ≤ y − rise, or of any and a cut; less the least of all."""
    least = share[0] - message[k, 2 + side, 0]
    for x in range(n):
        value = share[x] - message[k, 2 + side, x]
        least = value if value < least else least
        run[x] = least
    start = min(max(rise, 0), labels)
    end = max(start, min(labels, n + rise))
    for y in range(start):
        message[reader, side, y] = ONE
    for y in range(start, end):
        message[reader, side, y] = min(run[y - rise] - least, ONE)
    for y in range(end, labels):
        message[reader, side, y] = np.float32(0)


@compiled(fastmath=True)
def _tell_read(
    message: Array, k: int, side: int, n: int, read: int, labels: int, rise: int, share: Array, run: Array
) -> None:
    """To label x: the least cost of k's labels y ≥ x + rise, or of any and a cut; less the least of all."""
    least = share[n - 1] - message[k, side, n - 1]
    for y in range(n - 1, -1, -1):
        value = share[y] - message[k, side, y]
        least = value if value < least else least
        run[y] = least
    start = min(max(-rise, 0), labels)
    end = max(start, min(labels, n - rise))
    for x in range(start):
        message[read, 2 + side, x] = np.float32(0)
    for x in range(start, end):
        message[read, 2 + side, x] = min(run[x + rise] - least, ONE)
    for x in range(end, labels):
        message[read, 2 + side, x] = ONE
