"""Quantized search returns the exact top k, for any distribution of vectors."""

import numpy as np
import pytest
import torch
from serving.small_run import make_events, make_run

from dynedge.inference.quantized_search import QuantizedSearch
from dynedge.inference.rules import Rules
from dynedge.inference.session import Session
from dynedge.models.capabilities import Searchable, capable


class FixedRows:
    """A model whose item matrix is given."""

    def __init__(self, rows):
        self.rows = torch.from_numpy(rows)

    def item_matrix(self, items, state):
        return self.rows[items]


DISTRIBUTIONS = {
    "normal": lambda rng, n, d: rng.standard_normal((n, d)),
    "norms of all sizes": lambda rng, n, d: rng.standard_normal((n, d)) * 10.0 ** rng.integers(-6, 4, (n, 1)),
    "one large component": lambda rng, n, d: np.where(np.arange(d) == rng.integers(d), 50.0, rng.random((n, d))),
    "zeros": lambda rng, n, d: np.zeros((n, d)),
    "nearly equal": lambda rng, n, d: (
        np.repeat(rng.standard_normal((1, d)), n, 0) + 1e-5 * rng.standard_normal((n, d))
    ),
}


@pytest.mark.parametrize("distribution", DISTRIBUTIONS)
@pytest.mark.parametrize(("items", "width"), [(1, 1), (37, 5), (3000, 64), (20_000, 33)])
def test_top_k_is_the_exact_top_k(distribution, items, width, monkeypatch):
    if items == 20_000:
        monkeypatch.setattr("dynedge.inference.quantized_search.PARALLEL_ITEMS", 1)  # several threads
    rng = np.random.default_rng(items)
    rows = DISTRIBUTIONS[distribution](rng, items, width + 1).astype(np.float32)
    model = FixedRows(rows)
    search = QuantizedSearch(model, {}, items)
    for k in (1, 10):
        base, query = (rng.standard_normal(n).astype(np.float32) for n in (items, width + 1))
        base[rng.random(items) < 0.3] = -np.inf
        exact = base + rows.astype(np.float64) @ query
        expected = np.sort(exact[base > -np.inf])[::-1][:k]
        scores, best = search.top_k(torch.from_numpy(base), torch.from_numpy(query), k, {})
        tolerance = 1e-5 * max(1.0, np.abs(rows @ query).max())  # both sums are rounded
        np.testing.assert_allclose(scores, expected, atol=tolerance, rtol=1e-5)
        np.testing.assert_allclose(exact[best.numpy()], expected, atol=tolerance, rtol=1e-5)
        assert len(set(best.tolist())) == len(best)


def test_the_best_item_is_found_where_all_rounding_errors_add_up():
    """Of two items with nearly the same score, all components of the better one are rounded down, the other's up."""
    rows = np.array([[127, *[10.49] * 8, 0.5], [127, *[10.51] * 8, 0.0]], np.float32)  # scales are 1; bias last
    search, query = QuantizedSearch(FixedRows(rows), {}, 2), torch.tensor([0.0, *[1.0] * 9])
    scores, best = search.top_k(torch.zeros(2), query, 1, {})
    assert best.tolist() == [0]
    assert scores.tolist() == pytest.approx([8 * 10.49 + 0.5])


@pytest.mark.parametrize("name", ["edge", "edge-paper-large"])
def test_quantized_search_follows_state_updates(runs_folder, name):
    folder, events = make_run(runs_folder, name), make_events(runs_folder, 200)
    session, plain = Session.open(folder), Session.open(folder)
    session.enable_quantized_search(1)
    assert session._search is not None
    for at in range(0, 200, 50):
        for one in (session, plain):
            one.observe(events[at : at + 50])
        users = np.arange(0, len(session.users), 7)
        for filter_seen in (False, True) if name == "edge" else (False,):
            items, scores = session.top_items(users, 10, rules=Rules(filter_seen=filter_seen))
            expected, theirs = plain.top_items(users, 10, rules=Rules(filter_seen=filter_seen))
            np.testing.assert_allclose(scores, theirs, atol=2e-5)
            same = items == expected
            close = np.isclose(scores, np.roll(scores, 1, 1), atol=2e-5) | np.isclose(
                scores, np.roll(scores, -1, 1), atol=2e-5
            )
            assert (same | close).all()
    items, _ = session.top_items(users, 5)
    event = events[0]._replace(user=str(session.users[0]))
    before = session._search._codes.copy(), session._search._scale_bias.copy()
    with session.hypothetical(event), plain.hypothetical(event):
        mine, theirs = (one.top_items(users, 5)[1] for one in (session, plain))
        np.testing.assert_allclose(mine, theirs, atol=2e-5)
        assert not np.array_equal(session._search._scale_bias, before[1])
    assert np.array_equal(session.top_items(users, 5)[0], items)
    assert np.array_equal(session._search._codes, before[0])
    assert np.array_equal(session._search._scale_bias, before[1])


def test_models_without_query_vectors_do_not_use_quantized_search(runs_folder):
    session = Session.open(make_run(runs_folder, "memory"))
    session.enable_quantized_search(1)
    assert session._search is None
    assert capable(session.model, Searchable) is None
