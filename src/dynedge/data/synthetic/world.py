"""State of the simulation, and a recipe in the integers that the kernels read.

Legend: N users, M items, P active sessions, C clusters, A ranks in a chart, R recent items of a user, F features.
"""

from __future__ import annotations

import zlib
from datetime import UTC, datetime
from typing import NamedTuple

import numpy as np

from dynedge.data.synthetic.recipes import Recipe
from dynedge.data.synthetic.sampling import STEP, mix_bits, random_below
from dynedge.utils.array_type import Array

MICROSECONDS = 1_000_000
MOODS = 7
CLUSTER = 7  # column of `item_table` after the moods: eight integers, half a cache line per item
TASTES = 3
MOOD = 3  # column of `profile` after the tastes
USER, EVENTS_LEFT, CURRENT_CLUSTER, LAST_ITEM, SESSION_NUMBER = range(5)  # columns of `sessions`
CLOCK, USERS, ITEMS, SESSIONS = range(4)  # of `counters`: microseconds since the start, and numbers so far
LATENTS = 8
SEEN_SLOTS = 8192  # hash slots of the items that a session has seen; a collision only costs a redraw


class World(NamedTuple):
    """State of the simulation. The constants above number the columns of its tables."""

    rng: Array  # uint64[1]
    counters: Array  # int64[4]
    sessions: Array  # int32[P, 5]: the active sessions
    seen: Array  # int32[P, SEEN_SLOTS]: the last session with an item of this hash
    profile: Array  # int32[N, 4]: each user's tastes and mood
    event_count: Array  # int32[N]: events of each user so far
    recent: Array  # int32[N, R]: ring buffers of each user's last items
    past_users: Array  # int32[N]: ring buffer of the users of the last N sessions
    item_table: Array  # int32[M, 8]: each item's successor in each mood, and its cluster
    chart: Array  # int32[C, A]: each cluster's items, most popular first
    chart_length: Array  # int32[C]: number of items in each chart
    latent: Array  # int64[LATENTS]: scratch for the factors of an event's features
    loading: Array  # int64[LATENTS, F]: factor loadings of the features


class Rules(NamedTuple):
    """A recipe in integers, for the kernels: shares in units of 1/65536, times in microseconds."""

    events: int
    users: int
    items: int
    users_introduced_by: int
    items_introduced_by: int
    min_session: int
    repeat_share: int
    successor_share: int  # cumulative: the sum of repeat_share and successor_share
    taste_switch_share: int
    drift_share: int
    churn_share: int
    ranks_per_event: int
    redraws: int
    start: int
    mean_gap: int
    session_pause: int
    time_resolution: int
    session_length: Array
    rank_popularity: Array
    cluster_popularity: Array
    recency: Array


def initial_world(name: str, recipe: Recipe, seed: int) -> World:
    """Returns the state before the first event. `name` is hashed into the seed."""
    seen = SEEN_SLOTS if recipe.redraws else 1
    bits = seed * int(STEP) + (zlib.crc32(name.encode()) << 32)  # recipes with equal seeds differ
    rng = np.array([mix_bits(np.uint64(bits % 2**64))], np.uint64)
    loading = np.array(
        [[random_below(rng, 3) - 1 for _ in range(recipe.features)] for _ in range(LATENTS)], np.int64
    ).reshape(LATENTS, recipe.features)
    return World(
        rng=rng,
        counters=np.zeros(4, np.int64),
        sessions=np.zeros((recipe.active_sessions, 5), np.int32),
        seen=np.zeros((recipe.active_sessions, seen), np.int32),
        profile=np.zeros((recipe.users, TASTES + 1), np.int32),
        event_count=np.zeros(recipe.users, np.int32),
        recent=np.zeros((recipe.users, recipe.recent_items), np.int32),
        past_users=np.zeros(recipe.users, np.int32),
        item_table=np.zeros((recipe.items, MOODS + 1), np.int32),
        chart=np.zeros((recipe.clusters, recipe.chart_size), np.int32),
        chart_length=np.zeros(recipe.clusters, np.int32),
        latent=np.zeros(LATENTS, np.int64),
        loading=loading,
    )


def rules_of(recipe: Recipe) -> Rules:
    """Converts a recipe to integers for the kernels."""

    def share(p: float) -> int:
        return round(p * 65536)

    def micro(seconds: float) -> int:
        return round(seconds * MICROSECONDS)

    return Rules(
        events=recipe.events,
        users=recipe.users,
        items=recipe.items,
        users_introduced_by=max(1, int(recipe.users_introduced_by * recipe.events)),
        items_introduced_by=max(recipe.items, int(recipe.items_introduced_by * recipe.events)),
        min_session=recipe.min_session,
        repeat_share=share(recipe.repeat_share),
        successor_share=share(recipe.repeat_share + recipe.successor_share),
        taste_switch_share=share(recipe.taste_switch_share),
        drift_share=share(recipe.drift_share),
        churn_share=share(recipe.churn_share),
        ranks_per_event=recipe.ranks_per_event,
        redraws=recipe.redraws,
        start=micro(datetime.fromisoformat(recipe.start).replace(tzinfo=UTC).timestamp()),
        mean_gap=micro(recipe.mean_gap),
        session_pause=micro(recipe.session_pause),
        time_resolution=micro(recipe.time_resolution),
        session_length=recipe.session_length.table(),
        rank_popularity=recipe.rank_popularity.table(),
        cluster_popularity=recipe.cluster_popularity.table(),
        recency=recipe.recency.table(),
    )
