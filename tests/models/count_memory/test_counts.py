"""The probabilities of all sources against plain sums over all earlier events."""

import numpy as np
import pytest
from models.count_memory.reference_counts import HALF_LIVES, expected_probabilities, make_memory
from models.every_model import make_log

from dynedge.data.windows import Window
from dynedge.errors import UsageError
from dynedge.models.count_memory.candidates import clear, collect_candidates
from dynedge.models.count_memory.contexts import CONTEXT_SOURCES


def test_probabilities_are_sums_over_earlier_events():
    log = make_log(events=90, users=5, items=9)
    model = make_memory(log)
    state, buffer = model.start(), model._buffer
    for k in range(len(log)):
        counts = model._counts(state, 1)
        size = collect_candidates(counts, model.settings, int(log.user[k]), float(log.time[k]), buffer)
        given = np.zeros((log.num_items, CONTEXT_SOURCES))
        given[buffer.items[:size]] = buffer.probability[:size]
        clear(buffer, size)
        assert (buffer.slot == -1).all()
        # Counts that have decayed to less than a millionth are taken as 0.
        np.testing.assert_allclose(given, expected_probabilities(log, k), rtol=2e-5, atol=2e-6, err_msg=f"event {k}")
        model.score(Window(log, range(k, k + 1)), None, state)


def test_popularity_decays_by_its_half_lives():
    log = make_log(events=200)
    model = make_memory(log)
    state = model.start()
    model.score(Window(log, range(len(log))), None, state)
    ages = len(log) - 1 - np.arange(len(log))
    for h, half_life in enumerate(HALF_LIVES):
        weights = np.bincount(log.item, 2.0 ** (-ages / half_life), log.num_items)
        given = state["popularity"][h].double().numpy() / float(state["popularity_total"][h])
        np.testing.assert_allclose(given, weights / weights.sum(), rtol=1e-4, atol=1e-9)


def test_an_unknown_context_is_an_error():
    with pytest.raises(
        UsageError, match="'next' is not a context; choose from user, last, last_two, user_last, near"
    ):
        make_memory(make_log(), contexts=("user", "next"))
