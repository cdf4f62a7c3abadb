"""Scores of events and queries: the unnormalised probabilities of given items, or of all.

Events of a window are in the index before they are scored, and a score reads only what is before its own clock, so
threads score any of them in any order. Popularity alone is a running count: a thread has its own copy.

Legend: n events or queries, C items to score given by the caller, I items.
"""

from __future__ import annotations

import numpy as np

from dynedge.models.count_memory.candidate_buffer import CandidateBuffer, clear
from dynedge.models.count_memory.contexts import CountSettings
from dynedge.models.count_memory.event_index import NONE, EventIndex
from dynedge.models.count_memory.network_kernels import NetworkWeights
from dynedge.models.count_memory.popularity import Popularity, count_popularity
from dynedge.models.count_memory.probabilities import (
    global_probability,
    mix_and_rescale,
    mix_global_sources,
    popularity_factors,
)
from dynedge.models.count_memory.queries import Events, Query, query_of
from dynedge.utils.array_type import Array
from dynedge.utils.numba_compile import compiled


@compiled
def score_events(
    index: EventIndex,
    popularity: Popularity,
    settings: CountSettings,
    networks: NetworkWeights,
    events: Events,
    start: int,
    stop: int,
    buffer: CandidateBuffer,
    candidates: Array,
    out: Array,
) -> None:
    """Scores the events start to stop - 1 of a window: out[n, C] for candidates [n, C], or out[n, I] where empty.

    `popularity` is that before event `start`, and advances to `stop`, unless the events are queries.
    """
    for k in range(start, stop):
        given = candidates[k] if len(candidates) else np.empty(0, np.int64)
        score_query(index, popularity, settings, networks, query_of(events, k), buffer, given, out[k])
        if events.step:
            count_popularity(popularity, settings.weight_growth, events.item[k : k + 1])


@compiled(inline="always")
def score_query(
    index: EventIndex,
    popularity: Popularity,
    settings: CountSettings,
    networks: NetworkWeights,
    query: Query,
    buffer: CandidateBuffer,
    candidates: Array,
    out: Array,
) -> None:
    """Writes out[C], the unnormalised probability of the given items, or out[I] of all items where out is as long."""
    size, gates = mix_and_rescale(index, popularity, settings, networks, query, buffer)
    if len(candidates):
        factor = popularity_factors(popularity.total, gates)
        for c in range(len(candidates)):
            slot = buffer.slot[candidates[c]]
            if slot == NONE:
                out[c] = global_probability(gates, factor, index.num_items, popularity.counts[candidates[c]])
            else:
                out[c] = buffer.probability[slot]
    else:
        mix_global_sources(popularity, gates, popularity_factors(popularity.total, gates), index.num_items, 0, out)
        for slot in range(size):
            out[buffer.items[slot]] = buffer.probability[slot]
    clear(buffer, size)
