"""The counts and probabilities of every context, as plain sums over all earlier events; and a small model."""

import math

import numpy as np
import torch

from dynedge.models.base import LogShape
from dynedge.models.count_memory.config import StandaloneMemoryConfig
from dynedge.models.count_memory.contexts import (
    CONTEXT_HALF_LIFE,
    CONTEXT_SOURCES,
    EARLIER_DECAY,
    FIRST_SOURCE,
    LOG_HALF_LIFE,
    NEAR_DECAY,
    NEAR_DISTANCE,
    NEAR_POWER,
    RECENT_ITEMS,
)
from dynedge.models.count_memory.model import CountMemory

HALF_LIVES = (1e12, 30.0, 4.0)


def history(log, user, end):
    """The user's items before event `end`, oldest first."""
    return [int(log.item[k]) for k in range(end) if log.user[k] == user]


def increments(log, end):
    """Every increment of every table, in order: (table, context, item, weight, event)."""
    for k in range(end):
        user, item = int(log.user[k]), int(log.item[k])
        past = history(log, user, k)[::-1]
        yield "user", user, item, 1.0, k
        if past:
            yield "last", past[0], item, 1.0, k
            yield "user_last", (user, past[0]), item, 1.0, k
        if len(past) > 1:
            yield "last_two", (past[1], past[0]), item, 1.0, k
        for r, other in enumerate(past[:NEAR_DISTANCE]):
            yield "near", other, item, NEAR_DECAY**r, k
            yield "near", item, other, NEAR_DECAY**r, k


def row_probabilities(log, table, context, end):
    """{item: [plain, context-decayed, log-decayed, recency]} of a row before event `end`, and its plain total."""
    mine = [
        (item, weight, event)
        for name, key, item, weight, event in increments(log, end)
        if (name, key) == (table, context)
    ]
    n, counts_of = len(mine), {}
    totals = np.zeros(3)
    for place, (item, weight, event) in enumerate(mine):
        context_age, log_age = n - 1 - place, end - event
        decays = [1.0, 2.0 ** (-context_age / CONTEXT_HALF_LIFE), 2.0 ** (-log_age / LOG_HALF_LIFE)]
        counts = weight * np.array(decays)
        totals += counts
        counts_of.setdefault(item, [np.zeros(3), context_age])
        counts_of[item][0] += counts
        counts_of[item][1] = context_age
    probabilities = {
        item: [*(counts / totals), 1 / (1 + age) / (math.log(n) + 1)] for item, (counts, age) in counts_of.items()
    }
    return probabilities, totals[:1].sum()


def expected_probabilities(log, k):
    """float[items, sources] for the query of event k."""
    user, out = int(log.user[k]), np.zeros((log.num_items, CONTEXT_SOURCES))
    past = history(log, user, k)[::-1]

    def add_row(table, context, first, sources, weight=1.0):
        for item, values in row_probabilities(log, table, context, k)[0].items():
            out[item, first : first + sources] += weight * np.array(values[:sources])

    def add_rows(table, contexts, decay, power, first, sources):
        rows = [
            (context, decay**r * row_probabilities(log, table, context, k)[1] ** power)
            for r, context in enumerate(contexts)
            if context is not None
        ]
        rows = [(context, weight) for context, weight in rows if row_probabilities(log, table, context, k)[0]]
        total = sum(weight for _, weight in rows)
        for context, weight in rows:
            add_row(table, context, first, sources, weight / total)

    add_row("user", user, FIRST_SOURCE["user"], 4)
    if past:
        add_row("last", past[0], FIRST_SOURCE["last"], 4)
        add_row("user_last", (user, past[0]), FIRST_SOURCE["user_last"], 4)
        add_rows("last", past[1:5], EARLIER_DECAY, 0.0, FIRST_SOURCE["earlier"], 3)
        add_rows("near", past[:RECENT_ITEMS], NEAR_DECAY, 1 - NEAR_POWER, FIRST_SOURCE["near"], 3)
    if len(past) > 1:
        add_row("last_two", (past[1], past[0]), FIRST_SOURCE["last_two"], 4)
    return out


def make_memory(log, **config):
    """A count memory with random parameters, so that nothing is right because it is zero."""
    torch.manual_seed(0)
    model = CountMemory(
        StandaloneMemoryConfig(**{"half_lives": HALF_LIVES, "windows": 3, **config}), LogShape.of(log)
    )
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=torch.Generator().manual_seed(3)) * 0.4)
    return model
