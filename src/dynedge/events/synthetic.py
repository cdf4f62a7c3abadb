"""Synthetic logs: deterministic, made in pieces, and shaped like real ones, from a demo to a billion events.

A small world is played forward, one event at a time, at a cost that does not grow with the log:

- A *pool* of sessions is under way at once. Each step one of them makes an event and the clock moves on; a
  session that ends gives its place to a new user's, or to that of a user who came before: the oftener someone
  came, the likelier they come again, so activity is heavy-tailed.
- Items belong to *clusters*. A cluster's living items stand in a *chart*, and a rank is drawn by a heavy-tailed
  law. A new item enters the chart anywhere and pushes what it meets down, an octave of ranks at a time; charts
  also churn. So items rise and fade.
- A user has a few *tastes* (clusters) and a *mood*, and both drift. The next item is one of the user's recent
  items, or the *follower* of the last item, or a draw from the chart. Every item has one follower a mood: who
  knows only the last item cannot tell which, who has followed the user can.
- Users and items are numbered as they first appear, on a schedule that ends at exactly the counts asked for.

The same recipe, seed and number of events give the same bits on any machine: all draws are integers, and no
function whose last bit differs between machines (a power, a logarithm, a matrix product) touches a column.

Legend: N users, M items, E events, P sessions in the pool, C clusters, A ranks in a chart, R recent items a user.
"""

from __future__ import annotations

import math
import os
import zlib
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from fractions import Fraction
from itertools import accumulate
from typing import Any, NamedTuple

import numpy as np
from numba import njit

from dynedge.errors import UsageError
from dynedge.events.log import Array, EventLog, Ids, LogWriter, read_log
from dynedge.progress import Progress

PIECE_BYTES = 32 << 20  # what is made, then written while the next piece is made; no value depends on it
FEWEST = 16  # a scaled-down log keeps so many users and items, if it has as many events
MICRO = 1_000_000


@dataclass(frozen=True)
class Law:
    """A heavy-tailed law over 0, 1, 2, …: octave o holds base·2^o values, and is `ratio` times as likely as o − 1.

    A ratio of 1 is Zipf's law in steps. Integers all through, so that it draws the same on every machine.
    """

    base: int
    ratio: float
    octaves: int

    def table(self) -> Array:
        """[base, cumulative probabilities of the octaves in 2^32nds]: what the kernel reads."""
        weights = [Fraction(str(self.ratio)) ** o for o in range(self.octaves)]
        cumulative = [int(part / sum(weights) * 2**32) for part in accumulate(weights)]
        return np.array([self.base, *cumulative], np.uint64)


@dataclass(frozen=True)
class Recipe:
    """A kind of log. Shares are probabilities; seconds are seconds."""

    about: str
    users: int
    items: int
    events: int
    split: str
    start: str  # the day of the first event
    gap: float  # mean seconds between two events of the log
    pool: int  # sessions under way at once
    shortest: int  # events in the shortest session
    session: Law  # events in a session, over the shortest
    clusters: int
    alive: int  # most items alive in one cluster
    popularity: Law  # ranks in a chart
    cluster: Law  # which cluster a taste is
    repeat: float  # share of events that take one of the user's recent items
    recency: Law  # which of them, the last first
    recent: int  # how many a user remembers
    follow: float  # share of events that take the last item's follower
    wander: float = 0.05  # share of events after which a session turns to another of its user's tastes
    drift: float = 0.1  # share of sessions before which a user takes up a new taste, or changes mood
    churn: float = 0.01  # share of chart draws after which two ranks change places
    pause: float = 0.0  # mean seconds between the end of a session and the next one's start
    grain: float = 1.0  # seconds a time is rounded down to
    users_by: float = 1.0  # the share of the log by which all users have appeared
    items_by: float = 1.0  # the same of the items
    dig: int = 1024  # ranks of a chart that open to a user with each event
    redraws: int = 0  # so often a session draws again rather than take an item it has had
    features: int = 0  # numbers with each event
    category: str = ""  # what an item's cluster is called, where the log tells it
    named: bool = False  # users, items and clusters have names, not numbers


RECIPES: dict[str, Recipe] = {
    "demo": Recipe(
        about="Listeners and songs with readable names and genres; made in seconds.",
        users=400,
        items=600,
        events=50_000,
        split="0.8,0.1,0.1",
        start="2024-01-01",
        gap=60.0,
        pool=6,
        shortest=3,
        session=Law(4, 0.5, 6),
        clusters=12,
        alive=128,
        popularity=Law(4, 0.8, 5),
        cluster=Law(4, 0.8, 2),
        repeat=0.2,
        recency=Law(2, 0.8, 4),
        recent=16,
        follow=0.5,
        churn=0.02,
        users_by=0.7,
        items_by=0.9,
        category="genre",
        named=True,
    ),
    "ml-25m-like": Recipe(
        about="MovieLens-25M: users rate everything in one sitting, nearly nothing twice.",
        users=162_538,
        items=59_048,
        events=24_999_849,
        split="0.7,0.1,0.2",
        start="1995-01-09",
        gap=1.0,
        pause=4000.0,
        pool=23,  # with this many at once, the longest path without active entities is about 3,000
        shortest=20,
        session=Law(20, 0.62, 6),
        clusters=24,
        alive=4096,
        popularity=Law(32, 0.6, 6),
        cluster=Law(8, 0.7, 2),
        repeat=0.0,
        recency=Law(1, 1.0, 1),
        recent=1,
        follow=0.4,
        churn=0.001,
        dig=1,  # obscure items are for the active, so that they link few sittings: the longest path stays near 210
        redraws=12,
    ),
    "taobao-like": Recipe(
        about="Taobao: nine days of shopping, four million items in 9,400 categories.",
        users=987_975,
        items=4_111_798,
        events=96_678_667,
        split="0.7,0.1,0.2",
        start="2017-11-25",
        gap=0.008,
        pool=2500,
        shortest=2,
        session=Law(4, 0.6, 7),
        clusters=9400,
        alive=1024,
        popularity=Law(8, 0.9, 8),
        cluster=Law(64, 0.8, 8),
        repeat=0.25,
        recency=Law(2, 0.7, 4),
        recent=16,
        follow=0.35,
        users_by=0.6,
        items_by=1.0,
        category="category",
    ),
    "lastfm-like": Recipe(
        about="lastfm-1K: years of listening; what was heard long ago is heard again.",
        users=1_000,
        items=980,
        events=1_293_103,
        split="0.8,0.1,0.1",
        start="2005-02-14",
        gap=100.0,
        pool=6,
        shortest=4,
        session=Law(8, 0.6, 6),
        clusters=18,
        alive=128,
        popularity=Law(4, 0.9, 5),
        cluster=Law(6, 0.9, 2),
        repeat=0.45,
        recency=Law(8, 0.9, 4),
        recent=64,
        follow=0.3,
        churn=0.005,
        users_by=0.3,
        items_by=0.3,
    ),
    "reddit-like": Recipe(
        about="Reddit: a month of posts, four in five where the user posted last, 172 numbers each.",
        users=10_000,
        items=984,
        events=672_447,
        split="0.8,0.1,0.1",
        start="2017-01-01",
        gap=4.0,
        grain=0.001,
        pool=200,
        shortest=1,
        session=Law(2, 0.6, 6),
        clusters=21,
        alive=128,
        popularity=Law(2, 0.7, 6),
        cluster=Law(3, 0.7, 3),
        repeat=0.8,
        recency=Law(1, 0.06, 4),
        recent=16,
        follow=0.07,
        churn=0.005,
        users_by=0.3,
        items_by=0.3,
        features=172,
    ),
    "billion": Recipe(
        about="A thousand million events of ten million users, made and written in pieces.",
        users=10_000_000,
        items=5_000_000,
        events=1_000_000_000,
        split="0.7,0.1,0.2",
        start="2020-01-01",
        gap=0.03,
        grain=0.001,
        pool=2000,
        shortest=2,
        session=Law(4, 0.6, 7),
        clusters=8192,
        alive=1024,
        popularity=Law(8, 0.9, 8),
        cluster=Law(64, 0.8, 8),
        repeat=0.25,
        recency=Law(2, 0.7, 3),
        recent=8,
        follow=0.35,
        users_by=0.8,
    ),
}


def synthesize(
    recipe: str,
    out: str | os.PathLike[str],
    *,
    seed: int = 0,
    events: int | None = None,
    force: bool = False,
    quiet: bool = False,
) -> EventLog:
    """Make a log by one of the RECIPES, write it to `out` and open it.

    With another number of `events`, users and items are scaled with it, so that each has as much to do as in the
    full log; the log spans less time, not sparser time. At least FEWEST of both remain, or one an event. Fewer
    clusters too, so that their charts keep their length, but four while there are items for them.
    """
    if recipe not in RECIPES:
        raise UsageError(f"there is no recipe '{recipe}'; the recipes are {', '.join(RECIPES)}.")
    chosen = _scaled(RECIPES[recipe], events)
    world = new_world(recipe, chosen, seed)
    with LogWriter(out, force=force) as writer:
        first_time, last_time = _write_events(writer, chosen, world, quiet)
        assert (world.tally[USERS], world.tally[ITEMS]) == (chosen.users, chosen.items)
        _write_ids(writer, chosen, world)
        writer.finish(
            events=chosen.events,
            users=chosen.users,
            items=chosen.items,
            rows_read=chosen.events,
            rejected=0,
            first_time=first_time,
            last_time=last_time,
            features=[f"f{k}" for k in range(chosen.features)],
            item_features=[chosen.category] if chosen.category else [],
            split=chosen.split,
            source={"recipe": recipe, "seed": seed, "events": chosen.events},
            time={"unit": "s"},
        )
    return read_log(out)


def _scaled(recipe: Recipe, events: int | None) -> Recipe:
    """The recipe at another number of events."""
    if events is None:
        events = recipe.events
    if not 1 <= events < 2**32:
        raise UsageError(f"--events {events} should be between 1 and {2**32 - 1}.")

    def scale(count: int) -> int:
        return min(events, max(FEWEST, round(count * events / recipe.events)))

    users, items = scale(recipe.users), scale(recipe.items)
    return replace(
        recipe,
        events=events,
        users=users,
        items=items,
        pool=max(1, min(recipe.pool, users // 4)),
        clusters=max(
            1, min(recipe.clusters, items // FEWEST, max(4, round(recipe.clusters * events / recipe.events)))
        ),
    )


# The world, and the rules it is played by, as the kernel sees them.

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


# Writing.


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


def _write_events(writer: LogWriter, recipe: Recipe, world: World, quiet: bool) -> tuple[float, float]:
    """A second thread hashes and writes a piece while the next is made. Returns the first and the last time."""

    def write(piece: Piece) -> None:
        writer.column("user", np.int32).append(piece.user)
        writer.column("item", np.int32).append(piece.item)
        writer.column("time", np.float64).append(piece.time)
        if recipe.features:
            writer.column("features", np.float32, recipe.features).append(piece.features)

    times: list[float] = []
    writing: Future[None] | None = None
    with Progress("making events", recipe.events, quiet=quiet) as progress, ThreadPoolExecutor(1) as thread:
        for piece in make_pieces(recipe, world):
            times = [times[0] if times else float(piece.time[0]), float(piece.time[-1])]
            if writing is not None:
                writing.result()  # two pieces in memory, never more
            writing = thread.submit(write, piece)
            progress.advance(len(piece.user))
        assert writing is not None
        writing.result()
    return times[0], times[1]


def _write_ids(writer: LogWriter, recipe: Recipe, world: World) -> None:
    cluster = world.link[:, CLUSTER]
    writer.ids("user_ids", Ids.of(_people(recipe.users)) if recipe.named else _numbers(recipe.users))
    writer.ids("item_ids", Ids.of(_titles(cluster)) if recipe.named else _numbers(recipe.items))
    if recipe.category:
        found, place = _by_first_appearance(cluster)
        genres = list(GENRES)
        writer.column("item_categories", np.int32, 1).append(place[:, None])
        writer.ids("category_0_ids", Ids.of(genres[c] for c in found) if recipe.named else _numbers(len(found)))


def _by_first_appearance(values: Array) -> tuple[Array, Array]:
    """The distinct values as they first appear, and each value's place among them."""
    distinct, first, inverse = np.unique(values, return_index=True, return_inverse=True)
    order = np.argsort(first)
    place = np.empty(len(order), np.int32)
    place[order] = np.arange(len(order), dtype=np.int32)
    return distinct[order], place[inverse]


def _numbers(count: int) -> Ids:
    """Distinct numbers in no visible order, as a database would have given them out."""
    bits = max(4, count.bit_length() + 2)
    scattered = np.arange(count, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15) + np.uint64(0xD1B54A32D192ED03)
    return Ids((scattered & np.uint64(2**bits - 1)).astype(np.int64) + 1)  # an odd factor: one to one in 2^bits


# Names, for the demo.

FIRST_NAMES = (
    "Ada Amir Ana Ben Bo Carla Chen Dara Diego Elif Emma Farid Grace Hana Hugo Ines Ivan Jonas Jun Kofi Lena Leo Lin "
    "Maja Marco Mei Nadia Nils Noor Olga Omar Petra Ravi Rosa Sam Sofia Tariq Uma Yara Zoe"
)
LAST_NAMES = (
    "Abara Adler Bauer Costa Demir Dubois Eriksen Fischer Garcia Haddad Ito Jansen Kaya Khan Kim Kovac Larsen Lopez "
    "Meyer Moreau Nakano Novak Okafor Patel Petrov Quist Rahman Rossi Sato Silva Tanaka Tran Usman Varga Weber"
)
ADJECTIVES = (
    "Amber Blue Broken Crimson Distant Early Electric Empty Endless Fading Final Gentle Golden Hidden Hollow Iron "
    "Little Lonely Lost Lucky Midnight Northern Old Paper Quiet Restless Rising Sacred Silver Slow Southern Stolen "
    "Summer Sweet Velvet Wild Winter"
)
GENRES = {
    "ambient": "Tide Mist Orbit Glacier Stillness Lagoon Aurora Horizon",
    "blues": "Delta Whiskey Porch Freight Sorrow Crossroads Levee Moan",
    "classical": "Nocturne Sonata Prelude Elegy Serenade Fugue Rondo Aria",
    "country": "Prairie Truck Saddle Gravel Creek Barn Rodeo County",
    "disco": "Mirror Fever Boogie Glitter Groove Strobe Roller Dancefloor",
    "electronic": "Circuit Voltage Pixel Signal Machine Neon Pulse Static",
    "folk": "Meadow Lantern Orchard Shepherd Harvest Willow Ferry Hearth",
    "hip-hop": "Block Cipher Hustle Crown Corner Verse Sneaker Borough",
    "jazz": "Swing Cafe Saxophone Avenue Trio Smoke Brass Bebop",
    "metal": "Hammer Throne Ash Inferno Raven Chain Plague Anvil",
    "pop": "Heart Kiss Crush Weekend Sugar Balloon Radio Selfie",
    "rock": "Highway Engine Rebel Thunder Stone Garage Riot Amplifier",
}


def _people(count: int) -> list[str]:
    """Distinct names: the first names go round, the last names a step further each time."""
    first, last = FIRST_NAMES.split(), LAST_NAMES.split()
    names = []
    for k in range(count):
        turn, a = divmod(k, len(first))
        names.append(_numbered(f"{first[a]} {last[(turn + a) % len(last)]}", turn // len(last)))
    return names


def _titles(genre_of: Array) -> list[str]:
    """A distinct title for each item, made of its genre's nouns: no noun is in two genres."""
    adjectives, nouns = ADJECTIVES.split(), [words.split() for words in GENRES.values()]
    made = [0] * len(nouns)
    titles = []
    for genre in genre_of:
        turn, n = divmod(made[genre], len(nouns[genre]))
        made[genre] += 1
        adjective = adjectives[(11 * turn + 5 * n + 3 * genre) % len(adjectives)]  # their number is prime
        titles.append(_numbered(f"{adjective} {nouns[genre][n]}", turn // len(adjectives)))
    return titles


def _numbered(name: str, turn: int) -> str:
    """The second of a name is "Name 2"."""
    return f"{name} {turn + 1}" if turn else name


# The kernel. An event costs a few draws and about two cache misses (its item's links, its cluster's chart).

U27, U30, U31, U32, U48 = (np.uint64(k) for k in (27, 30, 31, 32, 48))
LOW32 = np.uint64(2**32 - 1)
STEP, MIX1, MIX2 = (np.uint64(k) for k in (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB))

# Quantiles of the exponential law, and how much slower each hour of the day is (in 8ths). Rounded to 1024ths, far
# coarser than the last bit in which two machines' logarithms may differ.
EXPONENTIAL = np.array([round(-math.log(1 - (k + 0.5) / 1024) * 1024) for k in range(1024)], np.int64)
HOURS = np.array([9, 12, 16, 20, 22, 20, 15, 11, 9, 8, 7, 7, 6, 6, 7, 7, 7, 6, 6, 5, 5, 5, 6, 7], np.int64)


# No kernel allocates, so none needs reference counts: counting them at each call made an event four times dearer.
kernel = njit(nogil=True, cache=True, _nrt=False)


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
