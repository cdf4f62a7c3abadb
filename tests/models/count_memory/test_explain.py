"""Explanations against plain sums: what each source adds to an item's probability, and the nearest recent item."""

import numpy as np
import pytest
import torch
from models.count_memory.reference_counts import HALF_LIVES, LOGS, Expected, Rules, make_memory

from dynedge.data.windows import Window
from dynedge.models.count_memory import contexts as c
from dynedge.models.count_memory.event_index import popularity_of
from dynedge.models.count_memory.explain import REASON_OF_CONTEXT, explain_items, shares_by_reason


def contributions(model, user, time, items, state):
    out, nearest = (
        np.zeros((len(items), 1 + len(HALF_LIVES) + c.CONTEXT_SOURCES), np.float32),
        np.zeros(len(items), int),
    )
    index, weights = model._index(state), model.mixture.weights()
    arguments = index, popularity_of(index), model.settings, weights, user, time, items
    with model._scratch_memory(1) as (buffer,):
        explain_items(*arguments, buffer, out, nearest)
    return out, nearest


def expected_nearest(counts, item):
    """The item of the user's last ten that has `item` near the largest share of its occurrences, or -1."""
    best, nearest = 0.0, -1
    for r, other in enumerate(counts.recent):
        occurrences = counts.occurrences(other)[: counts.rules.near_occurrences(r)]
        near = [
            counts.item[x]
            for j in occurrences
            for x in (*counts.before(j)[: c.NEAR_DISTANCE], *counts.after(j)[: c.NEAR_DISTANCE])
        ]
        share = c.NEAR_DECAY**r * near.count(item) / len(occurrences)
        if share > best * (1 + 1e-9) and other != item:
            best, nearest = share, other
    return nearest


@pytest.mark.parametrize("name", LOGS)
@pytest.mark.parametrize("occurrences", [9, 512])
def test_sources_add_up_to_the_score_and_the_nearest_item_is_found(name, occurrences):
    log = LOGS[name]()
    model = make_memory(log, rescaling_hidden=0, occurrences=occurrences)
    with torch.no_grad():
        model.mixture.rescaling_seen.zero_()
    state, items = model.start(), np.arange(log.num_items)
    for k in range(len(log)):
        if k % 6 == 0:
            user, time = int(log.user[k]), float(log.time[k])
            by_source, nearest = contributions(model, user, time, items, state)
            query = torch.tensor([user]), torch.tensor([time], dtype=torch.float64)
            scores = model.score_query(*query, None, state)[0].numpy()
            np.testing.assert_allclose(by_source.sum(1), scores, rtol=1e-4)
            counts = Expected(log, k, Rules(model.counts))
            assert nearest.tolist() == [expected_nearest(counts, item) for item in items.tolist()], k
            shares = counts.probabilities()
            given = by_source[:, 1 + len(HALF_LIVES) :]
            assert not given[shares == 0].any()
            totals = np.maximum(given.sum(0), 1e-30)
            np.testing.assert_allclose(
                (given / totals)[:, shares.any(0)], shares[:, shares.any(0)], rtol=1e-4, atol=1e-6
            )
        model.observe(Window(log, range(k, k + 1)), state)


def test_shares_are_grouped_by_reason():
    first = 1 + len(HALF_LIVES)
    for (context, _), source in c.SOURCE.items():
        row = np.zeros(first + c.CONTEXT_SOURCES, np.float32)
        row[0] = row[first + source] = 0.5
        expected = dict.fromkeys(("history", "followed", "near", "popular"), 0.0)
        expected["popular"] += 0.5
        expected[REASON_OF_CONTEXT[context]] += 0.5
        assert shares_by_reason(row, len(HALF_LIVES)) == expected
    assert sum(shares_by_reason(np.zeros_like(row), len(HALF_LIVES)).values()) == 0
