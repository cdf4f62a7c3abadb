"""Contexts: in which earlier events the next item of a user is looked for, and how these are weighted.

Each context finds earlier events in the event index and turns them into probabilities of the next item in a few ways,
here called sources: by plain counts, by counts that decay with every event of the context or of the log, by recency.

    user        the user's own items
    user_last   what followed the last item, the last two and the last three items in this user's events
    elapsed     the user's own items, each event by the time since then
    last        what followed the last item
    last_two    what followed the last two items
    after_gap   what followed the last item after a gap like this one, the time since the user's last event
    similar     what followed the last item of users with other recent items in common
    earlier     as `last`, for the four items before the last one
    near        what occurred near the last ten items, before or after
    session     of these, what occurred in one session, for items of the user's session
    alike       of these, what users met who have met others of the last ten items there too
    peers       where users of the last three items are now
    recent      the latest items of the whole log
    now         of these, what users have lately met after a gap like this one

Two more kinds of source do not depend on the user: the uniform distribution, and popularity at several half-lives.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from dynedge.errors import UsageError
from dynedge.models.count_memory.config import CONTEXTS, MemoryConfig
from dynedge.models.count_memory.event_index import GAP_STEPS, RECENT_EVENTS
from dynedge.utils.array_type import Array

# Sources of a context. `user_last` has PLAIN, RECENCY and its own two; others have the first ones of their line.
SOURCES = {
    "user": ("plain", "context-decayed", "log-decayed", "recency"),
    "user_last": ("plain", "recency", "last two", "last three"),
    "elapsed": ("plain",),
    "last": ("plain", "context-decayed", "fast", "log-decayed", "recency"),
    "last_two": ("plain", "recency", "log-decayed"),
    "after_gap": ("plain",),
    "similar": ("plain", "log-decayed"),
    "earlier": ("plain", "log-decayed"),
    "near": ("plain", "log-decayed"),
    "session": ("plain", "same time"),
    "alike": ("plain",),
    "peers": ("plain", "log-decayed"),
    "recent": ("plain", "context-decayed"),
    "now": ("log-decayed",),
}
SOURCE = {
    (context, kind): number
    for number, (context, kind) in enumerate((context, kind) for context in CONTEXTS for kind in SOURCES[context])
}
CONTEXT_SOURCES = len(SOURCE)

RECENT_ITEMS = 10  # of the user that are read
EARLIER_ITEMS, PEER_ITEMS = 5, 3  # of these, by `earlier` (without the last) and by `peers`
SIMILAR_DISTANCE = 5  # events before the last item in which common items are looked for
NEAR_DISTANCE = 5  # events of a user that are near each other
NEAR_DECAY, NEAR_POWER, EARLIER_DECAY = 0.8, 0.7, 0.8
CONTEXT_HALF_LIFE, RECENT_HALF_LIFE = 3.0, 8.0  # in events of the context
FAST_HALF_LIFE, LOG_HALF_LIFE = 300.0, 2000.0  # in events of the log
SESSION = 1800.0  # seconds between events of a session
ELAPSED_POWER = 0.5  # of the time since an event, by which `elapsed` divides
PROFILE = 16  # latest occurrences of an item whose gaps are compared with the query's
HABIT_EVENTS, HABIT_DECAY = 30, 0.9  # of the user, from which habits are estimated; factor of an older one


class CountSettings(NamedTuple):
    """How earlier events are found and weighted."""

    contexts: Array  # bool[contexts]: which are in use
    context_decay: Array  # float32[ages], see decay_factors
    recent_decay: Array  # float32[ages]
    fast_decay: Array  # float32[ages]
    log_decay: Array  # float32[ages]
    gap_likeness: Array  # float32[differences]: by the difference of two codes of gaps
    weight_growth: Array  # float64[H]: of an event's weight in the popularity, per event
    near_weights: Array  # float32[2 NEAR_DISTANCE + 1]: of items by distance; the occurrence is in the middle
    near_items: int  # number of last items that `near`, `session` and `alike` read, RECENT_ITEMS at most
    history_events: int  # latest events of the user that are read
    occurrences: Array  # int64[RECENT_ITEMS]: latest occurrences of the last items that are read, newest item first
    near_occurrences: Array  # int64[RECENT_ITEMS]: of these, by `similar`, `near`, `session`, `alike` and `peers`
    peers: int  # of these, by `peers`
    rescaled_items: int  # most probable candidates that are rescaled


def count_settings(config: MemoryConfig) -> CountSettings:
    """Returns the settings for a config."""
    for name in config.contexts:
        if name not in CONTEXTS:
            raise UsageError(f"model.contexts: {name!r} is not a context; choose from {', '.join(CONTEXTS)}.")
    near = (NEAR_DECAY ** np.arange(NEAR_DISTANCE)).astype(np.float32)
    most = config.occurrences
    quarter = max(most // 4, 1)
    return CountSettings(
        contexts=np.array([name in config.contexts for name in CONTEXTS]),
        context_decay=decay_factors(CONTEXT_HALF_LIFE),
        recent_decay=decay_factors(RECENT_HALF_LIFE),
        fast_decay=decay_factors(FAST_HALF_LIFE),
        log_decay=decay_factors(LOG_HALF_LIFE),
        gap_likeness=decay_factors(GAP_STEPS),
        weight_growth=2.0 ** (1 / np.asarray(config.half_lives, np.float64)),
        near_weights=near_weights(near, near),
        near_items=RECENT_ITEMS,
        history_events=config.history_events,
        occurrences=np.array([most] + [quarter] * (RECENT_ITEMS - 1)),
        near_occurrences=np.maximum(quarter >> (np.arange(RECENT_ITEMS) // 3), 1),
        peers=max(most // 8, 1),
        rescaled_items=config.rescaled_items,
    )


def near_weights(before: Array, after: Array) -> Array:
    """Returns the weights of items by their distance, given those 1, 2.. events before and after an occurrence."""
    return np.concatenate((before[::-1], [0.0], after)).astype(np.float32)


def max_candidates(settings: CountSettings, items: int) -> int:
    """Returns the largest number of candidates that a query can have."""
    read = np.minimum(settings.occurrences, items).sum() * (1 + 2 * NEAR_DISTANCE)
    return int(min(items, settings.history_events + read + PEER_ITEMS * settings.peers + RECENT_EVENTS))


def decay_factors(half_life: float) -> Array:
    """Returns float32[ages]: 2^(-age / half-life), and 0 from where that is below a millionth."""
    ages = np.arange(int(20 * half_life) + 2)
    return np.append(2.0 ** (-ages[:-1] / half_life), 0.0).astype(np.float32)
