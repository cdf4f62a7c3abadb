"""Recipes of synthetic logs, and their scaling to another number of events."""

from __future__ import annotations

from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import accumulate

import numpy as np

from dynedge.errors import UsageError
from dynedge.utils.array_type import Array

MIN_ENTITIES = 16  # users and items that a scaled-down log keeps at least, if it has as many events


@dataclass(frozen=True)
class HeavyTail:
    """Heavy-tailed distribution over 0, 1, 2, …: octave o has base·2^o values and `ratio` times the mass of o − 1.

    A ratio of 1 is Zipf's law in steps. It is sampled in integers, so that every machine gets the same samples.
    """

    base: int
    ratio: float
    octaves: int

    def table(self) -> Array:
        """Returns uint64 [base, cumulative probabilities of the octaves in units of 2^-32] for the kernels."""
        weights = [Fraction(str(self.ratio)) ** o for o in range(self.octaves)]
        cumulative = [int(part / sum(weights) * 2**32) for part in accumulate(weights)]
        return np.array([self.base, *cumulative], np.uint64)


@dataclass(frozen=True)
class Recipe:
    """Parameters of a synthetic log. Shares are probabilities, durations are seconds."""

    description: str
    users: int
    items: int
    events: int
    split: str
    start: str  # day of the first event
    mean_gap: float  # mean time between two events of the log
    active_sessions: int  # number of simultaneous sessions
    min_session: int  # events of the shortest session
    session_length: HeavyTail  # events of a session beyond the shortest
    clusters: int
    chart_size: int  # maximum number of items in a cluster's chart
    rank_popularity: HeavyTail  # distribution of ranks sampled from a chart
    cluster_popularity: HeavyTail  # distribution of the clusters of tastes
    repeat_share: float  # share of events with one of the user's recent items
    recency: HeavyTail  # distribution over them, the last first
    recent_items: int  # number of recent items stored per user
    successor_share: float  # share of events with the successor of the user's last item
    taste_switch_share: float = 0.05  # share of events after which a session changes to another taste
    drift_share: float = 0.1  # share of sessions before which a user gets a new taste, or another mood
    churn_share: float = 0.01  # share of chart samples after which two ranks are swapped
    session_pause: float = 0.0  # mean time added at the start of a session
    time_resolution: float = 1.0  # times are rounded down to a multiple
    users_introduced_by: float = 1.0  # share of the log after which all users have appeared
    items_introduced_by: float = 1.0  # the same for items
    ranks_per_event: int = 1024  # ranks of a chart that each event opens to its user
    redraws: int = 0  # maximum number of resamples for an item that the session has seen
    features: int = 0  # numeric features per event
    category_name: str = ""  # name of the item feature that holds the cluster; empty: none
    readable_names: bool = False  # external ids are names instead of numbers


RECIPES: dict[str, Recipe] = {
    "demo": Recipe(
        description="Listeners and songs with readable names and genres; generated in seconds.",
        users=400,
        items=600,
        events=50_000,
        split="0.8,0.1,0.1",
        start="2024-01-01",
        mean_gap=60.0,
        active_sessions=6,
        min_session=3,
        session_length=HeavyTail(4, 0.5, 6),
        clusters=12,
        chart_size=128,
        rank_popularity=HeavyTail(4, 0.8, 5),
        cluster_popularity=HeavyTail(4, 0.8, 2),
        repeat_share=0.2,
        recency=HeavyTail(2, 0.8, 4),
        recent_items=16,
        successor_share=0.5,
        churn_share=0.02,
        users_introduced_by=0.7,
        items_introduced_by=0.9,
        category_name="genre",
        readable_names=True,
    ),
    "ml-25m-like": Recipe(
        description="MovieLens-25M: users rate in one sitting, almost no item twice.",
        users=162_538,
        items=59_048,
        events=24_999_849,
        split="0.7,0.1,0.2",
        start="1995-01-09",
        mean_gap=1.0,
        session_pause=4000.0,
        active_sessions=23,  # gives a longest path without active entities of about 3,000
        min_session=20,
        session_length=HeavyTail(20, 0.62, 6),
        clusters=24,
        chart_size=4096,
        rank_popularity=HeavyTail(32, 0.6, 6),
        cluster_popularity=HeavyTail(8, 0.7, 2),
        repeat_share=0.0,
        recency=HeavyTail(1, 1.0, 1),
        recent_items=1,
        successor_share=0.4,
        churn_share=0.001,
        ranks_per_event=1,  # only active users reach rare items, which then link few sessions: longest path about 210
        redraws=12,
    ),
    "taobao-like": Recipe(
        description="Taobao: nine days of shopping, four million items in 9,400 categories.",
        users=987_975,
        items=4_111_798,
        events=96_678_667,
        split="0.7,0.1,0.2",
        start="2017-11-25",
        mean_gap=0.008,
        active_sessions=2500,
        min_session=2,
        session_length=HeavyTail(4, 0.6, 7),
        clusters=9400,
        chart_size=1024,
        rank_popularity=HeavyTail(8, 0.9, 8),
        cluster_popularity=HeavyTail(64, 0.8, 8),
        repeat_share=0.25,
        recency=HeavyTail(2, 0.7, 4),
        recent_items=16,
        successor_share=0.35,
        users_introduced_by=0.6,
        items_introduced_by=1.0,
        category_name="category",
    ),
    "lastfm-like": Recipe(
        description="lastfm-1K: years of listening with many long-range repeats.",
        users=1_000,
        items=980,
        events=1_293_103,
        split="0.8,0.1,0.1",
        start="2005-02-14",
        mean_gap=100.0,
        active_sessions=6,
        min_session=4,
        session_length=HeavyTail(8, 0.6, 6),
        clusters=18,
        chart_size=128,
        rank_popularity=HeavyTail(4, 0.9, 5),
        cluster_popularity=HeavyTail(6, 0.9, 2),
        repeat_share=0.45,
        recency=HeavyTail(8, 0.9, 4),
        recent_items=64,
        successor_share=0.3,
        churn_share=0.005,
        users_introduced_by=0.3,
        items_introduced_by=0.3,
    ),
    "reddit-like": Recipe(
        description="Reddit: a month of posts, four in five to the user's last subreddit, 172 features each.",
        users=10_000,
        items=984,
        events=672_447,
        split="0.8,0.1,0.1",
        start="2017-01-01",
        mean_gap=4.0,
        time_resolution=0.001,
        active_sessions=200,
        min_session=1,
        session_length=HeavyTail(2, 0.6, 6),
        clusters=21,
        chart_size=128,
        rank_popularity=HeavyTail(2, 0.7, 6),
        cluster_popularity=HeavyTail(3, 0.7, 3),
        repeat_share=0.8,
        recency=HeavyTail(1, 0.06, 4),
        recent_items=16,
        successor_share=0.07,
        churn_share=0.005,
        users_introduced_by=0.3,
        items_introduced_by=0.3,
        features=172,
    ),
    "billion": Recipe(
        description="One billion events of ten million users, generated in chunks.",
        users=10_000_000,
        items=5_000_000,
        events=1_000_000_000,
        split="0.7,0.1,0.2",
        start="2020-01-01",
        mean_gap=0.03,
        time_resolution=0.001,
        active_sessions=2000,
        min_session=2,
        session_length=HeavyTail(4, 0.6, 7),
        clusters=8192,
        chart_size=1024,
        rank_popularity=HeavyTail(8, 0.9, 8),
        cluster_popularity=HeavyTail(64, 0.8, 8),
        repeat_share=0.25,
        recency=HeavyTail(2, 0.7, 3),
        recent_items=8,
        successor_share=0.35,
        users_introduced_by=0.8,
    ),
}


def scaled(recipe: Recipe, events: int | None) -> Recipe:
    """Returns the recipe with users, items and clusters scaled to another number of events."""
    if events is None:
        events = recipe.events
    if not 1 <= events < 2**32:
        raise UsageError(f"--events {events} should be between 1 and {2**32 - 1}.")

    def scale(count: int) -> int:
        return min(events, max(MIN_ENTITIES, round(count * events / recipe.events)))

    users, items = scale(recipe.users), scale(recipe.items)
    return replace(
        recipe,
        events=events,
        users=users,
        items=items,
        active_sessions=max(1, min(recipe.active_sessions, users // 4)),
        clusters=max(
            1, min(recipe.clusters, items // MIN_ENTITIES, max(4, round(recipe.clusters * events / recipe.events)))
        ),
    )
