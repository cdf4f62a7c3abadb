"""From what the contexts say to one score for every item.

The gate weighs the sources by the facts of the question (how much each context has seen, how long ago the user was
last here), and the mixture of the sources is a probability. A second, small network then looks at each item that any
context knows of, with all that the sources say of it, and reshapes its probability: whatever no context knows keeps
its own. Both are evaluated here, event by event while the store moves, with plain loops; learning.py has them as
torch modules.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from dynedge.models.count_memory.contexts import ABOUT, SOURCES, Fading, Found, Store, forget, look, take_in
from dynedge.models.count_memory.hash_table import NONE
from dynedge.ops.spin_pair import fetch_increment
from dynedge.utils.arrays import Array
from dynedge.utils.compile import compiled

INPUTS = SOURCES + ABOUT + 2  # of the reshaping network, for each item; and the facts
FLOOR = 1e-3  # a source's share below this is as good as none
PIECE = 2048  # items
SEEN = SOURCES  # where the inputs say that the item is one of the user's own


class Weights(NamedTuple):
    """The two networks' weights as float32 arrays; hidden sizes may be 0."""

    gate_in: Array  # [hidden, FACTS]
    gate_bias: Array  # [hidden]
    gate_out: Array  # [sources, hidden]
    gate_start: Array  # [sources]: uniform, the half-lives, the contexts'
    shape_in: Array  # [INPUTS, hidden]
    shape_facts: Array  # [hidden, FACTS]
    shape_bias: Array  # [hidden]
    shape_out: Array  # [hidden]
    shape_seen: Array  # [1]: added for the user's own items


@compiled
def gate(weights: Weights, found: Found, half_lives: int, out: Array) -> None:
    """The sources' weights, which sum to one over those that have something to say."""
    hidden = np.zeros(len(weights.gate_bias), np.float32)
    for a in range(len(hidden)):
        total = weights.gate_bias[a]
        for b in range(len(found.facts)):
            total += weights.gate_in[a, b] * found.facts[b]
        hidden[a] = max(total, np.float32(0))
    top = np.float32(-np.inf)
    for m in range(len(out)):
        total = weights.gate_start[m]
        for a in range(len(hidden)):
            total += weights.gate_out[m, a] * hidden[a]
        if m > half_lives and not found.there[m - 1 - half_lives]:
            total = np.float32(-np.inf)
        out[m] = total
        top = max(top, total)
    total = np.float32(0)
    for m in range(len(out)):
        out[m] = np.exp(out[m] - top)
        total += out[m]
    for m in range(len(out)):
        out[m] /= total


@compiled
def inputs(store: Store, found: Found, slot: int, out: Array) -> None:
    """What the reshaping network sees of an item."""
    for s in range(SOURCES):
        share = found.share[slot, s]
        out[s] = 0.3 * (np.log(FLOOR + share) - np.log(FLOOR)) if share > 0 else 0.0
    for s in range(ABOUT):
        out[SOURCES + s] = found.about[slot, s]
    items = store.items
    for s in range(2):
        h = 0 if s == 0 else len(store.popular_total) // 2
        share = store.popular[h, found.items[slot]] / max(store.popular_total[h], 1e-30)
        out[SOURCES + ABOUT + s] = 0.3 * np.log1p(items * share)


@compiled
def _factors(store: Store, weight: Array) -> Array:
    """float32[H]: what a count of each half-life adds to its item's probability."""
    factor = np.zeros(len(store.popular_total), np.float32)
    for h in range(len(factor)):
        if store.popular_total[h] > 0:
            factor[h] = weight[1 + h] / store.popular_total[h]
    return factor


@compiled
def _popular(store: Store, weight: Array, out: Array) -> None:
    """out[i]: what is the same for every context."""
    items, factor = len(out), _factors(store, weight)
    for start in range(0, items, PIECE):  # a piece of `out` stays in the first-level cache
        stop = min(start + PIECE, items)
        for i in range(start, stop):
            out[i] = weight[0] / items
        for h in range(len(factor)):
            row, of_row = store.popular[h], factor[h]
            for i in range(start, stop):
                out[i] += of_row * row[i]


@compiled
def _add_known(
    store: Store, weights: Weights, found: Found, weight: Array, slots: Array, places: Array, out: Array
) -> None:
    """To out[places[j]], where items stand as if no context knew of them, what is known of those in slots[j]."""
    half_lives, hidden = len(store.popular_total), len(weights.shape_bias)
    base, units, seen = np.zeros(hidden, np.float32), np.zeros(hidden, np.float32), np.zeros(INPUTS, np.float32)
    for a in range(hidden):
        base[a] = weights.shape_bias[a]
        for b in range(len(found.facts)):
            base[a] += weights.shape_facts[a, b] * found.facts[b]
    for j in range(len(slots)):
        slot, place = slots[j], places[j]
        share = found.share[slot]
        for s in range(SOURCES):
            if share[s] != 0:
                out[place] += weight[1 + half_lives + s] * share[s]
        change = weights.shape_seen[0] * found.about[slot, 0]
        if hidden:
            inputs(store, found, slot, seen)
            units[:] = base
            for b in range(INPUTS):
                if seen[b] != 0:  # most contexts know little of most items
                    row, value = weights.shape_in[b], seen[b]
                    for a in range(hidden):
                        units[a] += value * row[a]
            for a in range(hidden):
                change += weights.shape_out[a] * max(units[a], np.float32(0))
        if change != 0:
            out[place] *= np.exp(change)


@compiled
def answer(
    store: Store,
    fading: Fading,
    keep: Array,
    weights: Weights,
    user: int,
    time: float,
    found: Found,
    weight: Array,
    out: Array,
) -> None:
    """out[i]: the probability of every item, up to a factor."""
    size = look(store, fading, keep, user, time, found)
    gate(weights, found, len(store.popular_total), weight)
    _popular(store, weight, out)
    _add_known(store, weights, found, weight, np.arange(size), found.items[:size], out)
    forget(found, size)


@compiled
def answer_some(
    store: Store,
    fading: Fading,
    keep: Array,
    weights: Weights,
    user: int,
    time: float,
    found: Found,
    weight: Array,
    candidates: Array,
    out: Array,
) -> None:
    """out[c]: the same of the candidates alone; what it costs does not grow with the number of items."""
    size = look(store, fading, keep, user, time, found)
    gate(weights, found, len(store.popular_total), weight)
    factor = _factors(store, weight)
    slots, places, known = np.empty(len(out), np.int64), np.empty(len(out), np.int32), 0
    for c in range(len(out)):
        item = candidates[c]
        out[c] = weight[0] / store.items
        for h in range(len(factor)):
            out[c] += factor[h] * store.popular[h, item]
        if found.slot[item] != NONE:
            slots[known], places[known] = found.slot[item], c
            known += 1
    _add_known(store, weights, found, weight, slots[:known], places[:known], out)
    forget(found, size)


@compiled
def walk(
    store: Store,
    fading: Fading,
    keep: Array,
    weights: Weights,
    user: Array,
    item: Array,
    time: Array,
    taken: Array,
    found: Found,
    candidates: Array,
    out: Array,
) -> None:
    """Score, then advance, event by event: out[n, C] of candidates [n, C], or out[n, I] where there are none of them;
    of the events those that no other thread has taken [n]."""
    weight = np.zeros(len(weights.gate_start), np.float32)
    for k in range(len(user)):
        if fetch_increment(taken, k) == 0:
            if len(candidates):
                answer_some(store, fading, keep, weights, user[k], time[k], found, weight, candidates[k], out[k])
            else:
                answer(store, fading, keep, weights, user[k], time[k], found, weight, out[k])
        take_in(store, fading, keep, user[k], item[k], time[k])


@compiled
def follow(store: Store, fading: Fading, keep: Array, user: Array, item: Array, time: Array) -> None:
    """Advance alone."""
    for k in range(len(user)):
        take_in(store, fading, keep, user[k], item[k], time[k])


@compiled
def peek(
    store: Store, fading: Fading, keep: Array, weights: Weights, user: Array, time: Array, found: Found, out: Array
) -> None:
    weight = np.zeros(len(weights.gate_start), np.float32)
    for k in range(len(user)):
        answer(store, fading, keep, weights, user[k], time[k], found, weight, out[k])
