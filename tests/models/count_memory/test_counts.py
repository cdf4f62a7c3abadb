"""What a query counts against plain sums over all earlier events: probabilities of all sources, and features."""

import numpy as np
import pytest
import torch
from models.count_memory.reference_counts import LOGS, Expected, Rules, make_memory
from models.every_model import assert_no_leak, make_log

from dynedge.data.windows import Window
from dynedge.errors import UsageError
from dynedge.models.count_memory.candidate_buffer import add_rows, clear
from dynedge.models.count_memory.candidates import collect_candidates
from dynedge.models.count_memory.config import CONTEXTS, MemoryConfig
from dynedge.models.count_memory.contexts import CONTEXT_SOURCES, SOURCE, decay_factors
from dynedge.models.count_memory.features import ITEM_FEATURES, item_features
from dynedge.models.count_memory.queries import query_of

FAST, SLOW = 1.5, 4.0  # half-lives so short that the small logs outlive them
LIMITS = {
    "reached": {"occurrences": 3, "history_events": 4},
    "partly reached": {"occurrences": 17, "history_events": 11},
    "not reached": {},
}


def queries(model, log, size):
    """Yields (k, index, query) for every event k of a log that is appended in windows of a size."""
    state = model.start()
    for start in range(0, len(log), size):
        window = Window(log, range(start, min(start + size, len(log))))
        events = model._append(window, state)
        for k in range(len(window)):
            yield start + k, model._index(state), query_of(events, k)
        model._finish(events, state)


def counted(model, index, query, items):
    """(probabilities [items, sources], query features, {candidate: its features}) of a query."""
    with model._scratch_memory(1) as (buffer,):
        others, size = collect_candidates(index, model.settings, query, buffer)
        found, of_items = buffer.items[:size], np.empty((ITEM_FEATURES, size), np.float32)
        add_rows(buffer, others, np.arange(size))
        assert len(set(found.tolist())) == size
        probabilities = np.zeros((items, CONTEXT_SOURCES))
        with np.errstate(invalid="ignore"):
            probabilities[found] = np.where(buffer.totals > 0, buffer.sums[:size] / buffer.totals, 0)
        item_features(index, model.settings, query, buffer, np.arange(size), np.empty((3, size), np.int64), of_items)
        features = dict(zip(found.tolist(), of_items.T, strict=True))
        query_features = buffer.query_features.copy()
        clear(buffer, size)
        assert (buffer.slot == -1).all()
    return probabilities, query_features, features


def assert_as_expected(log, rules, sizes, model):
    expected = [Expected(log, k, rules) for k in range(len(log))]
    for size in sizes:
        for k, index, query in queries(model, log, size):
            probabilities, of_query, of_items = counted(model, index, query, log.num_items)
            where = f"event {k}, windows of {size}"
            right = expected[k]
            np.testing.assert_allclose(probabilities, right.probabilities(), rtol=1e-5, atol=1e-7, err_msg=where)
            np.testing.assert_allclose(of_query, right.query_features, rtol=1e-5, atol=1e-6, err_msg=where)
            assert of_items.keys() >= set(np.flatnonzero(right.sums.any(1)).tolist())
            for item, features in of_items.items():
                np.testing.assert_allclose(features, right.item_features[item], rtol=1e-5, atol=1e-6, err_msg=where)


def with_short_half_lives(model):
    model.settings = model.settings._replace(fast_decay=decay_factors(FAST), log_decay=decay_factors(SLOW))
    return model


@pytest.mark.parametrize("limits", LIMITS)
@pytest.mark.parametrize("name", LOGS)
def test_counts_are_sums_over_earlier_events(name, limits):
    log = LOGS[name]()
    model = with_short_half_lives(make_memory(log, **LIMITS[limits]))
    assert_as_expected(log, Rules(model.counts, FAST, SLOW), (1, 7, len(log)), model)


def test_the_default_half_lives():
    log = LOGS["returning users"]()
    model = make_memory(log)
    assert_as_expected(log, Rules(model.counts), (len(log),), model)


@pytest.mark.parametrize("context", CONTEXTS)
def test_a_context_alone(context):
    log = LOGS["repeated items"]()
    model = make_memory(log, contexts=(context,), occurrences=17, history_events=6)
    assert_as_expected(log, Rules(model.counts), (len(log),), model)


def test_the_small_logs_reach_every_source_and_the_limits():
    """The comparisons above are not of zeros, and each limit leaves something out."""
    limited, unlimited = np.zeros(CONTEXT_SOURCES), np.zeros(CONTEXT_SOURCES)
    for name in ("returning users", "repeated items"):
        log = LOGS[name]()
        for k in range(0, len(log), 3):
            limited += Expected(log, k, Rules(MemoryConfig(**LIMITS["reached"]))).sums.sum(0)
            unlimited += Expected(log, k, Rules()).sums.sum(0)
    assert (unlimited > 0).all()
    without_limits = [SOURCE["recent", "plain"], SOURCE["recent", "context-decayed"], SOURCE["now", "log-decayed"]]
    assert np.flatnonzero(limited == unlimited).tolist() == without_limits


@pytest.mark.parametrize("limits", LIMITS)
def test_no_later_event_changes_a_score(limits):
    log = LOGS["repeated items"]()
    model = with_short_half_lives(make_memory(log, **LIMITS[limits]))
    assert_no_leak(model, log, chunks=(1, 7, len(log)), tries=len(log) // 2)


def test_scores_are_those_of_any_window_size():
    """To the bit."""
    log = LOGS["returning users"]()
    model = make_memory(log, occurrences=17)
    results = []
    for size in (1, 7, len(log)):
        state = model.start()
        windows = [Window(log, range(at, min(at + size, len(log)))) for at in range(0, len(log), size)]
        results.append((torch.cat([model.score(window, None, state) for window in windows]), state))
    for scores, state in results[1:]:
        assert torch.equal(scores, results[0][0])
        assert all(torch.equal(tensor, state[name]) for name, tensor in results[0][1].items())


def test_an_unknown_context_is_an_error():
    with pytest.raises(
        UsageError, match="'next' is not a context; choose from user, user_last, elapsed, last, last_two"
    ):
        make_memory(make_log(), contexts=("user", "next"))
