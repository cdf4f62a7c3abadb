"""The world that is played forward, and the compiled rules it is played by.

Legend: N users, M items, E events, P sessions in the pool, C clusters, A ranks in a chart, R recent items a user.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any, NamedTuple

import numpy as np

from dynedge.data.synthetic.recipes import Recipe
from dynedge.utils.arrays import Array
from dynedge.utils.compile import compiled

PIECE_BYTES = 32 << 20  # what is made, then written while the next piece is made; no value depends on it
MICRO = 1_000_000

MOODS = 7
CLUSTER = 7  # the column of `link` after the moods: eight integers, half a cache line an item
TASTES = 3
MOOD = 3  # the column of `user` after the tastes
USER, LEFT, NOW, LAST, SERIAL = range(5)  # of `slot`: who, events left, cluster, last item or -1, which session
CLOCK, USERS, ITEMS, SESSIONS = range(4)  # of `tally`: microseconds since the start, and how many so far
LATENTS = 8
NEWCOMER = 16  # a new user may dig as if they had done so many events
SEEN = 8192  # items a session remembers, where it cares; two items in one place cost a redraw, no more


class World(NamedTuple):
    rng: Array  # uint64[1]
    tally: Array  # int64[4]
    slot: Array  # int32[P, 5]
    seen: Array  # int32[P, SEEN]: the last session that took an item of this remainder
    user: Array  # int32[N, 4]
    done: Array  # int32[N]: events so far
    recent: Array  # int32[N, R], a ring
    past: Array  # int32[N], a ring: whose the last N sessions were
    link: Array  # int32[M, 8]
    chart: Array  # int32[C, A], the most popular first
    alive: Array  # int32[C]: how many ranks are taken
    latent: Array  # int64[LATENTS]: what is behind an event; a scratch
    loading: Array  # int64[LATENTS, F]: how the features show it


class Rules(NamedTuple):
    """A recipe in integers: shares in 65536ths, times in microseconds."""

    events: int
    users: int
    items: int
    users_by: int
    items_by: int
    shortest: int
    repeat: int
    follow: int  # of `repeat` and `follow` together
    wander: int
    drift: int
    churn: int
    dig: int
    redraws: int
    start: int
    gap: int
    pause: int
    grain: int
    session: Array
    popularity: Array
    cluster: Array
    recency: Array


def new_world(name: str, recipe: Recipe, seed: int) -> World:
    seen = SEEN if recipe.redraws else 1
    bits = seed * int(STEP) + (zlib.crc32(name.encode()) << 32)  # two recipes of one seed should not walk in step
    rng = np.array([_mix(np.uint64(bits % 2**64))], np.uint64)
    loading = np.array(
        [[_below(rng, 3) - 1 for _ in range(recipe.features)] for _ in range(LATENTS)], np.int64
    ).reshape(LATENTS, recipe.features)
    return World(
        rng=rng,
        tally=np.zeros(4, np.int64),
        slot=np.zeros((recipe.pool, 5), np.int32),
        seen=np.zeros((recipe.pool, seen), np.int32),
        user=np.zeros((recipe.users, TASTES + 1), np.int32),
        done=np.zeros(recipe.users, np.int32),
        recent=np.zeros((recipe.users, recipe.recent), np.int32),
        past=np.zeros(recipe.users, np.int32),
        link=np.zeros((recipe.items, MOODS + 1), np.int32),
        chart=np.zeros((recipe.clusters, recipe.alive), np.int32),
        alive=np.zeros(recipe.clusters, np.int32),
        latent=np.zeros(LATENTS, np.int64),
        loading=loading,
    )


def _rules(recipe: Recipe) -> Rules:
    def share(p: float) -> int:
        return round(p * 65536)

    def micro(seconds: float) -> int:
        return round(seconds * MICRO)

    return Rules(
        events=recipe.events,
        users=recipe.users,
        items=recipe.items,
        users_by=max(1, int(recipe.users_by * recipe.events)),
        items_by=max(recipe.items, int(recipe.items_by * recipe.events)),
        shortest=recipe.shortest,
        repeat=share(recipe.repeat),
        follow=share(recipe.repeat + recipe.follow),
        wander=share(recipe.wander),
        drift=share(recipe.drift),
        churn=share(recipe.churn),
        dig=recipe.dig,
        redraws=recipe.redraws,
        start=micro(datetime.fromisoformat(recipe.start).replace(tzinfo=UTC).timestamp()),
        gap=micro(recipe.gap),
        pause=micro(recipe.pause),
        grain=micro(recipe.grain),
        session=recipe.session.table(),
        popularity=recipe.popularity.table(),
        cluster=recipe.cluster.table(),
        recency=recipe.recency.table(),
    )


class Piece(NamedTuple):
    user: Array  # int32[n]
    item: Array  # int32[n]
    time: Array  # float64[n]
    features: Array  # float32[n, F]
    source: Array  # int32[n], see _choose; empty unless asked for


def make_pieces(recipe: Recipe, world: World, *, sources: bool = False) -> Iterator[Piece]:
    """Play the world forward from its start, a piece at a time."""
    rules = _rules(recipe)
    size = max(1, PIECE_BYTES // (16 + 4 * recipe.features))
    for first in range(0, recipe.events, size):
        n = min(size, recipe.events - first)
        piece = Piece(
            user=np.empty(n, np.int32),
            item=np.empty(n, np.int32),
            time=np.empty(n, np.float64),
            features=np.empty((n, recipe.features), np.float32),
            source=np.empty(n if sources else 0, np.int32),
        )
        _play(rules, world, first, piece)
        yield piece


# The kernel. An event costs a few draws and about two cache misses (its item's links, its cluster's chart).

U27, U30, U31, U32, U48 = (np.uint64(k) for k in (27, 30, 31, 32, 48))
LOW32 = np.uint64(2**32 - 1)
STEP, MIX1, MIX2 = (np.uint64(k) for k in (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB))

# Quantiles of the exponential law, and how much slower each hour of the day is (in 8ths). Rounded to 1024ths, far
# coarser than the last bit in which two machines' logarithms may differ.
EXPONENTIAL = np.array([round(-math.log(1 - (k + 0.5) / 1024) * 1024) for k in range(1024)], np.int64)
HOURS = np.array([9, 12, 16, 20, 22, 20, 15, 11, 9, 8, 7, 7, 6, 6, 7, 7, 7, 6, 6, 5, 5, 5, 6, 7], np.int64)


# No kernel allocates, so none needs reference counts: counting them at each call made an event four times dearer.
kernel = compiled(_nrt=False)


@kernel
def _mix(z: Any) -> Any:
    z = (z ^ (z >> U30)) * MIX1
    z = (z ^ (z >> U27)) * MIX2
    return z ^ (z >> U31)


@kernel
def _draw(rng: Array) -> Any:
    """64 random bits: splitmix64."""
    rng[0] += STEP
    return _mix(rng[0])


@kernel
def _below(rng: Array, n: int) -> Any:
    """0 … n − 1, for n up to 2^32."""
    return np.int64(((_draw(rng) >> U32) * np.uint64(n)) >> U32)


@kernel
def _chance(rng: Array, share: int) -> Any:
    return np.int64(_draw(rng) >> U48) < share


@kernel
def _heavy(rng: Array, law: Array) -> Any:
    """A draw from a Law's table."""
    bits = _draw(rng)
    octave = 0
    while bits >> U32 >= law[octave + 1]:
        octave += 1
    size = law[0] << np.uint64(octave)
    return np.int64(size - law[0] + (((bits & LOW32) * size) >> U32))


@kernel
def _pass_time(rules: Rules, world: World, mean: int) -> None:
    hour = (rules.start + world.tally[CLOCK]) // (3600 * MICRO) % 24
    gap = mean * EXPONENTIAL[np.int64(_draw(world.rng) & np.uint64(1023))] >> 10
    world.tally[CLOCK] += gap * HOURS[hour] >> 3


@kernel
def _some_cluster(rules: Rules, world: World) -> Any:
    return _heavy(world.rng, rules.cluster) % len(world.alive)


@kernel
def _some_taste(world: World, user: int) -> Any:
    """The first taste half of the time, each of the others a quarter."""
    return world.user[user, max(0, _below(world.rng, 4) - 1)]


@kernel
def _new_user(rules: Rules, world: World) -> Any:
    user = world.tally[USERS]
    world.tally[USERS] += 1
    for taste in range(TASTES):
        world.user[user, taste] = _some_cluster(rules, world)
    world.user[user, MOOD] = _below(world.rng, MOODS)
    return user


@kernel
def _returning_user(world: World) -> Any:
    """Whose a past session was; now and then anyone, so that nobody is forgotten for good."""
    if _below(world.rng, 4) == 0:
        return _below(world.rng, world.tally[USERS])
    return world.past[_below(world.rng, min(world.tally[SESSIONS], len(world.past)))]


@kernel
def _drift(rules: Rules, world: World, user: int) -> None:
    if _chance(world.rng, rules.drift):
        for taste in range(TASTES - 1, 0, -1):
            world.user[user, taste] = world.user[user, taste - 1]
        world.user[user, 0] = _some_cluster(rules, world)
    if _chance(world.rng, rules.drift):
        world.user[user, MOOD] = _below(world.rng, MOODS)


@kernel
def _begin_session(rules: Rules, world: World, k: int, slot: int) -> None:
    due = min(rules.users, len(world.slot) + rules.users * k // rules.users_by)
    if world.tally[USERS] < due:
        user = _new_user(rules, world)
    else:
        user = _returning_user(world)
        _drift(rules, world, user)
    world.past[world.tally[SESSIONS] % len(world.past)] = user
    world.tally[SESSIONS] += 1
    world.slot[slot, USER] = user
    world.slot[slot, LEFT] = rules.shortest + _heavy(world.rng, rules.session)
    world.slot[slot, NOW] = _some_taste(world, user)
    world.slot[slot, LAST] = -1
    world.slot[slot, SERIAL] = world.tally[SESSIONS]
    _pass_time(rules, world, rules.pause)


@kernel
def _living(world: World, cluster: int) -> Any:
    """The cluster, or the first item's if no item of it was born yet."""
    return cluster if world.alive[cluster] else world.link[0, CLUSTER]


@kernel
def _chart_rank(rules: Rules, world: World, user: int, cluster: int) -> Any:
    """Who has done more digs deeper."""
    ranks = min(world.alive[cluster], rules.dig * (world.done[user] + NEWCOMER))
    rank = _heavy(world.rng, rules.popularity)
    return rank if rank < ranks else rank % ranks


@kernel
def _new_item(world: World, cluster: int) -> Any:
    """Enters its cluster's chart at any rank; what it meets there goes down an octave, and so on to the end."""
    item = world.tally[ITEMS]
    world.tally[ITEMS] += 1
    world.link[item, CLUSTER] = cluster
    for mood in range(MOODS):
        world.link[item, mood] = item  # nothing follows it yet
    alive = world.alive[cluster]
    rank, entering = _below(world.rng, alive + 1), item
    while rank < alive:
        world.chart[cluster, rank], entering = entering, world.chart[cluster, rank]
        rank += rank + 1 + _below(world.rng, 2)
    if alive < world.chart.shape[1]:  # else the last one met fades away
        world.chart[cluster, alive] = entering
        world.alive[cluster] += 1
    return item


@kernel
def _from_chart(rules: Rules, world: World, user: int, cluster: int) -> Any:
    """An item, and the rank it had."""
    rank = _chart_rank(rules, world, user, cluster)
    item = world.chart[cluster, rank]
    if _chance(world.rng, rules.churn):
        other = _below(world.rng, min(world.alive[cluster], 2 * rank + 2))
        world.chart[cluster, rank], world.chart[cluster, other] = world.chart[cluster, other], item
    return item, rank


@kernel
def _follower(rules: Rules, world: World, user: int, last: int) -> Any:
    """What follows an item in the user's mood: an item of its cluster, another one now and then."""
    mood = world.user[user, MOOD]
    if world.link[last, mood] == last or _below(world.rng, 256) == 0:
        cluster = world.link[last, CLUSTER]
        world.link[last, mood] = world.chart[cluster, _chart_rank(rules, world, user, cluster)]
    return world.link[last, mood]


@kernel
def _choose(rules: Rules, world: World, k: int, slot: int) -> Any:
    """The next item of a session, and its source: -1 new, 0 the follower, 1 + back recent, 1 + R + rank the chart."""
    user, cluster, last = world.slot[slot, USER], world.slot[slot, NOW], world.slot[slot, LAST]
    left = rules.items - world.tally[ITEMS]
    # Each position up to items_by is as likely as any other to bring a new item, and exactly enough of them do.
    if left > 0 and (world.alive[cluster] == 0 or _below(world.rng, rules.items_by - k) < left):
        return _new_item(world, cluster), -1
    cluster = _living(world, cluster)
    remembered = world.recent.shape[1]
    kind = np.int64(_draw(world.rng) >> U48)
    if kind < rules.repeat and world.done[user] > 0:
        back = _heavy(world.rng, rules.recency) % min(world.done[user], remembered)
        item, source = world.recent[user, (world.done[user] - 1 - back) % remembered], 1 + back
        cluster = world.link[item, CLUSTER]
    elif kind < rules.follow and last >= 0:
        item, source = _follower(rules, world, user, last), 0
        cluster = world.link[last, CLUSTER]  # the follower's too, and at hand
    else:
        item, rank = _from_chart(rules, world, user, cluster)
        source = 1 + remembered + rank
    for _ in range(rules.redraws):
        if world.seen[slot, item % SEEN] != world.slot[slot, SERIAL]:
            break
        cluster = _living(world, _some_cluster(rules, world))
        item, rank = _from_chart(rules, world, user, cluster)
        source = 1 + remembered + rank
    world.slot[slot, NOW] = cluster
    return item, source


@kernel
def _describe(world: World, user: int, item: int, features: Array, row: int) -> None:
    """Features: a low-rank picture of the item, its cluster and the user's mood, under noise, in 2^-16ths."""
    for latent in range(LATENTS):
        world.latent[latent] = (
            (np.int64(_mix(np.uint64(item * LATENTS + latent)) >> U48) >> 1)
            + np.int64(_mix(np.uint64(world.link[item, CLUSTER] * LATENTS + latent) ^ MIX1) >> U48)
            + np.int64(_mix(np.uint64(world.user[user, MOOD] * LATENTS + latent) ^ MIX2) >> U48)
            - 5 * 16384  # their mean
        )
    for f in range(features.shape[1]):
        noise = _draw(world.rng)
        value = np.int64(noise >> U48) + np.int64((noise >> U32) & np.uint64(65535)) - 65535
        for latent in range(LATENTS):
            value += world.latent[latent] * world.loading[latent, f]
        features[row, f] = np.float32(value) * np.float32(2**-16)


@kernel
def _play(rules: Rules, world: World, first: int, out: Piece) -> None:
    """Make events first, first + 1, … into a piece."""
    for row in range(len(out.user)):
        k = first + row
        slot = _below(world.rng, len(world.slot))
        # When every event left is needed for a user still to come, the session at hand gives way.
        if world.slot[slot, LEFT] == 0 or rules.users - world.tally[USERS] >= rules.events - k:
            _begin_session(rules, world, k, slot)
        user = world.slot[slot, USER]
        item, source = _choose(rules, world, k, slot)
        _pass_time(rules, world, rules.gap)
        out.user[row], out.item[row] = user, item
        now = rules.start + world.tally[CLOCK]
        out.time[row] = (now - now % rules.grain) / MICRO
        if out.features.shape[1]:
            _describe(world, user, item, out.features, row)
        if len(out.source):
            out.source[row] = source
        _remember(rules, world, slot, user, item)


@kernel
def _remember(rules: Rules, world: World, slot: int, user: int, item: int) -> None:
    world.recent[user, world.done[user] % world.recent.shape[1]] = item
    world.done[user] += 1
    world.slot[slot, LEFT] -= 1
    world.slot[slot, LAST] = item
    if rules.redraws:
        world.seen[slot, item % SEEN] = world.slot[slot, SERIAL]
    if _chance(world.rng, rules.wander):
        world.slot[slot, NOW] = _some_taste(world, user)
