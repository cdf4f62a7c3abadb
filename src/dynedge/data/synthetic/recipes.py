"""The recipes: what kinds of log there are, and how each is scaled to another number of events."""

from __future__ import annotations

from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import accumulate

import numpy as np

from dynedge.errors import UsageError
from dynedge.utils.arrays import Array

FEWEST = 16  # a scaled-down log keeps so many users and items, if it has as many events


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


def scaled(recipe: Recipe, events: int | None) -> Recipe:
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
