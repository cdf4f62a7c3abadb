"""Compiled simulator of a synthetic log, one event at a time.

Legend: n events of a chunk, F features, R recent items of a user.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from dynedge.data.synthetic.recipes import Recipe
from dynedge.data.synthetic.sampling import (
    MIX1,
    MIX2,
    U32,
    U48,
    chance,
    kernel,
    mix_bits,
    random_below,
    random_bits,
    sample_heavy_tail,
)
from dynedge.data.synthetic.world import (
    CLOCK,
    CLUSTER,
    CURRENT_CLUSTER,
    EVENTS_LEFT,
    ITEMS,
    LAST_ITEM,
    LATENTS,
    MICROSECONDS,
    MOOD,
    MOODS,
    SEEN_SLOTS,
    SESSION_NUMBER,
    SESSIONS,
    TASTES,
    USER,
    USERS,
    Rules,
    World,
    rules_of,
)
from dynedge.utils.array_type import Array

CHUNK_BYTES = 32 << 20  # size of a chunk; no value depends on it
NEWCOMER_EVENTS = 16  # added to a user's event count when the open ranks of a chart are computed

# Quantiles of the exponential distribution in units of 1/1024, far coarser than the last bit, in which the logarithms
# of two machines may differ; and the length of gaps in each hour of the day, in eighths.
EXPONENTIAL = np.array([round(-math.log(1 - (k + 0.5) / 1024) * 1024) for k in range(1024)], np.int64)
HOUR_SLOWDOWN = np.array([9, 12, 16, 20, 22, 20, 15, 11, 9, 8, 7, 7, 6, 6, 7, 7, 7, 6, 6, 5, 5, 5, 6, 7], np.int64)


class Chunk(NamedTuple):
    """Some consecutive events."""

    user: Array  # int32[n]
    item: Array  # int32[n]
    time: Array  # float64[n]
    features: Array  # float32[n, F]
    source: Array  # int32[n], see _choose_item; empty unless requested


def simulate(recipe: Recipe, world: World, *, sources: bool = False) -> Iterator[Chunk]:
    """Yields the events of a recipe from its initial state on, in chunks."""
    rules = rules_of(recipe)
    size = max(1, CHUNK_BYTES // (16 + 4 * recipe.features))
    for first in range(0, recipe.events, size):
        n = min(size, recipe.events - first)
        chunk = Chunk(
            user=np.empty(n, np.int32),
            item=np.empty(n, np.int32),
            time=np.empty(n, np.float64),
            features=np.empty((n, recipe.features), np.float32),
            source=np.empty(n if sources else 0, np.int32),
        )
        _simulate(rules, world, first, chunk)
        yield chunk


@kernel
def _advance_clock(rules: Rules, world: World, mean: int) -> None:
    """Advances the clock by an exponential gap, longer at night."""
    hour = (rules.start + world.counters[CLOCK]) // (3600 * MICROSECONDS) % 24
    gap = mean * EXPONENTIAL[np.int64(random_bits(world.rng) & np.uint64(1023))] >> 10
    world.counters[CLOCK] += gap * HOUR_SLOWDOWN[hour] >> 3


@kernel
def _sample_cluster(rules: Rules, world: World) -> Any:
    return sample_heavy_tail(world.rng, rules.cluster_popularity) % len(world.chart_length)


@kernel
def _sample_taste(world: World, user: int) -> Any:
    """Returns one of the user's tastes: the first with probability 1/2, the others with 1/4 each."""
    return world.profile[user, max(0, random_below(world.rng, 4) - 1)]


@kernel
def _new_user(rules: Rules, world: World) -> Any:
    user = world.counters[USERS]
    world.counters[USERS] += 1
    for taste in range(TASTES):
        world.profile[user, taste] = _sample_cluster(rules, world)
    world.profile[user, MOOD] = random_below(world.rng, MOODS)
    return user


@kernel
def _returning_user(world: World) -> Any:
    """Returns the user of a random past session; with probability 1/4 any user, so that all remain reachable."""
    if random_below(world.rng, 4) == 0:
        return random_below(world.rng, world.counters[USERS])
    return world.past_users[random_below(world.rng, min(world.counters[SESSIONS], len(world.past_users)))]


@kernel
def _drift(rules: Rules, world: World, user: int) -> None:
    """Occasionally gives a user a new first taste, or another mood."""
    if chance(world.rng, rules.drift_share):
        for taste in range(TASTES - 1, 0, -1):
            world.profile[user, taste] = world.profile[user, taste - 1]
        world.profile[user, 0] = _sample_cluster(rules, world)
    if chance(world.rng, rules.drift_share):
        world.profile[user, MOOD] = random_below(world.rng, MOODS)


@kernel
def _start_session(rules: Rules, world: World, k: int, session: int) -> None:
    """Replaces a session by one of a new user, if one is due, or of a returning user."""
    due = min(rules.users, len(world.sessions) + rules.users * k // rules.users_introduced_by)
    if world.counters[USERS] < due:
        user = _new_user(rules, world)
    else:
        user = _returning_user(world)
        _drift(rules, world, user)
    world.past_users[world.counters[SESSIONS] % len(world.past_users)] = user
    world.counters[SESSIONS] += 1
    world.sessions[session, USER] = user
    world.sessions[session, EVENTS_LEFT] = rules.min_session + sample_heavy_tail(world.rng, rules.session_length)
    world.sessions[session, CURRENT_CLUSTER] = _sample_taste(world, user)
    world.sessions[session, LAST_ITEM] = -1
    world.sessions[session, SESSION_NUMBER] = world.counters[SESSIONS]
    _advance_clock(rules, world, rules.session_pause)


@kernel
def _nonempty_cluster(world: World, cluster: int) -> Any:
    """Returns the cluster, or that of the first item if the cluster has no items yet."""
    return cluster if world.chart_length[cluster] else world.item_table[0, CLUSTER]


@kernel
def _sample_rank(rules: Rules, world: World, user: int, cluster: int) -> Any:
    """Returns a rank of a cluster's chart; more ranks are open to more active users."""
    ranks = min(world.chart_length[cluster], rules.ranks_per_event * (world.event_count[user] + NEWCOMER_EVENTS))
    rank = sample_heavy_tail(world.rng, rules.rank_popularity)
    return rank if rank < ranks else rank % ranks


@kernel
def _new_item(world: World, cluster: int) -> Any:
    """Inserts a new item at a random rank of its cluster's chart; displaced items move down an octave each."""
    item = world.counters[ITEMS]
    world.counters[ITEMS] += 1
    world.item_table[item, CLUSTER] = cluster
    for mood in range(MOODS):
        world.item_table[item, mood] = item  # no successor yet
    length = world.chart_length[cluster]
    rank, entering = random_below(world.rng, length + 1), item
    while rank < length:
        world.chart[cluster, rank], entering = entering, world.chart[cluster, rank]
        rank += rank + 1 + random_below(world.rng, 2)
    if length < world.chart.shape[1]:  # else the last displaced item leaves the chart
        world.chart[cluster, length] = entering
        world.chart_length[cluster] += 1
    return item


@kernel
def _sample_chart(rules: Rules, world: World, user: int, cluster: int) -> Any:
    """Returns a random item of a chart and its rank; occasionally swaps it with another item."""
    rank = _sample_rank(rules, world, user, cluster)
    item = world.chart[cluster, rank]
    if chance(world.rng, rules.churn_share):
        other = random_below(world.rng, min(world.chart_length[cluster], 2 * rank + 2))
        world.chart[cluster, rank], world.chart[cluster, other] = world.chart[cluster, other], item
    return item, rank


@kernel
def _successor(rules: Rules, world: World, user: int, last: int) -> Any:
    """Returns the item's successor in the user's mood: an item of its cluster, resampled with probability 1/256."""
    mood = world.profile[user, MOOD]
    if world.item_table[last, mood] == last or random_below(world.rng, 256) == 0:
        cluster = world.item_table[last, CLUSTER]
        world.item_table[last, mood] = world.chart[cluster, _sample_rank(rules, world, user, cluster)]
    return world.item_table[last, mood]


@kernel
def _choose_item(rules: Rules, world: World, k: int, session: int) -> Any:
    """Returns the next item of a session and its source.

    Sources: -1 a new item, 0 the successor, 1 + b the recent item b back, 1 + R + r rank r of the chart.
    """
    user, last = world.sessions[session, USER], world.sessions[session, LAST_ITEM]
    cluster = world.sessions[session, CURRENT_CLUSTER]
    left = rules.items - world.counters[ITEMS]
    # Selection sampling: every position before items_introduced_by is equally likely to introduce a new item.
    if left > 0 and (
        world.chart_length[cluster] == 0 or random_below(world.rng, rules.items_introduced_by - k) < left
    ):
        return _new_item(world, cluster), -1
    cluster = _nonempty_cluster(world, cluster)
    capacity = world.recent.shape[1]
    kind = np.int64(random_bits(world.rng) >> U48)
    if kind < rules.repeat_share and world.event_count[user] > 0:
        back = sample_heavy_tail(world.rng, rules.recency) % min(world.event_count[user], capacity)
        item, source = world.recent[user, (world.event_count[user] - 1 - back) % capacity], 1 + back
        cluster = world.item_table[item, CLUSTER]
    elif kind < rules.successor_share and last >= 0:
        item, source = _successor(rules, world, user, last), 0
        cluster = world.item_table[last, CLUSTER]  # that of the successor too, and already in the cache
    else:
        item, rank = _sample_chart(rules, world, user, cluster)
        source = 1 + capacity + rank
    for _ in range(rules.redraws):
        if world.seen[session, item % SEEN_SLOTS] != world.sessions[session, SESSION_NUMBER]:
            break
        cluster = _nonempty_cluster(world, _sample_cluster(rules, world))
        item, rank = _sample_chart(rules, world, user, cluster)
        source = 1 + capacity + rank
    world.sessions[session, CURRENT_CLUSTER] = cluster
    return item, source


@kernel
def _write_features(world: World, user: int, item: int, features: Array, row: int) -> None:
    """Writes features: a low-rank function of item, cluster and mood plus noise, in units of 2^-16."""
    for latent in range(LATENTS):
        world.latent[latent] = (
            (np.int64(mix_bits(np.uint64(item * LATENTS + latent)) >> U48) >> 1)
            + np.int64(mix_bits(np.uint64(world.item_table[item, CLUSTER] * LATENTS + latent) ^ MIX1) >> U48)
            + np.int64(mix_bits(np.uint64(world.profile[user, MOOD] * LATENTS + latent) ^ MIX2) >> U48)
            - 5 * 16384  # centres the sum
        )
    for f in range(features.shape[1]):
        noise = random_bits(world.rng)
        value = np.int64(noise >> U48) + np.int64((noise >> U32) & np.uint64(65535)) - 65535
        for latent in range(LATENTS):
            value += world.latent[latent] * world.loading[latent, f]
        features[row, f] = np.float32(value) * np.float32(2**-16)


@kernel
def _simulate(rules: Rules, world: World, first: int, out: Chunk) -> None:
    """Writes events first, first + 1, … to a chunk. An event costs a few samples and about two cache misses."""
    for row in range(len(out.user)):
        k = first + row
        session = random_below(world.rng, len(world.sessions))
        # When all remaining events are needed to introduce users, the session ends early.
        if world.sessions[session, EVENTS_LEFT] == 0 or rules.users - world.counters[USERS] >= rules.events - k:
            _start_session(rules, world, k, session)
        user = world.sessions[session, USER]
        item, source = _choose_item(rules, world, k, session)
        _advance_clock(rules, world, rules.mean_gap)
        out.user[row], out.item[row] = user, item
        now = rules.start + world.counters[CLOCK]
        out.time[row] = (now - now % rules.time_resolution) / MICROSECONDS
        if out.features.shape[1]:
            _write_features(world, user, item, out.features, row)
        if len(out.source):
            out.source[row] = source
        _record_event(rules, world, session, user, item)


@kernel
def _record_event(rules: Rules, world: World, session: int, user: int, item: int) -> None:
    """Updates the user's recent items and the session."""
    world.recent[user, world.event_count[user] % world.recent.shape[1]] = item
    world.event_count[user] += 1
    world.sessions[session, EVENTS_LEFT] -= 1
    world.sessions[session, LAST_ITEM] = item
    if rules.redraws:
        world.seen[session, item % SEEN_SLOTS] = world.sessions[session, SESSION_NUMBER]
    if chance(world.rng, rules.taste_switch_share):
        world.sessions[session, CURRENT_CLUSTER] = _sample_taste(world, user)
