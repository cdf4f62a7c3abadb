"""The best of many items by their sketch are the best of all, whatever the vectors look like."""

import numpy as np
import pytest
import torch
from serving.small_run import make_events, make_run, open_live

from dynedge.inference.quantized_search import Sketch
from dynedge.models.base import Model


class Rows:
    """Stands for a model: item i's row is a given one."""

    def __init__(self, rows):
        self.rows = torch.from_numpy(rows)

    def item_rows(self, items, state):
        return self.rows[items]


KINDS = {
    "normal": lambda rng, n, d: rng.standard_normal((n, d)),
    "of all sizes": lambda rng, n, d: rng.standard_normal((n, d)) * 10.0 ** rng.integers(-6, 4, (n, 1)),
    "one large number each": lambda rng, n, d: np.where(np.arange(d) == rng.integers(d), 50.0, rng.random((n, d))),
    "zero": lambda rng, n, d: np.zeros((n, d)),
    "alike": lambda rng, n, d: np.repeat(rng.standard_normal((1, d)), n, 0) + 1e-5 * rng.standard_normal((n, d)),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("items", "width"), [(1, 1), (37, 5), (3000, 64), (20_000, 33)])
def test_the_best_are_the_best_of_all(kind, items, width, monkeypatch):
    if items == 20_000:
        monkeypatch.setattr("dynedge.inference.quantized_search.MANY", 1)  # by several threads
    rng = np.random.default_rng(items)
    rows = KINDS[kind](rng, items, width + 1).astype(np.float32)
    model = Rows(rows)
    sketch = Sketch(model, {}, items)
    for k in (1, 10):
        base, query = (rng.standard_normal(n).astype(np.float32) for n in (items, width + 1))
        base[rng.random(items) < 0.3] = -np.inf
        exact = base + rows.astype(np.float64) @ query
        expected = np.sort(exact)[::-1][:k]
        scores, found = sketch.best(torch.from_numpy(base), torch.from_numpy(query), k, model, {})
        tolerance = 1e-5 * max(1.0, np.abs(rows @ query).max())  # both sums are rounded
        np.testing.assert_allclose(scores, expected, atol=tolerance, rtol=1e-5)
        np.testing.assert_allclose(exact[found.numpy()], expected, atol=tolerance, rtol=1e-5)
        assert len(set(found.tolist())) == len(found)


@pytest.mark.parametrize("name", ["edge", "edge-paper"])
def test_a_sketch_follows_its_states(runs_folder, name):
    folder, events = make_run(runs_folder, name), make_events(runs_folder, 200)
    live, plain = open_live(folder), open_live(folder)
    live.make_searchable(1)
    assert live._sketch is not None
    for at in range(0, 200, 50):
        for one in (live, plain):
            one.observe(events[at : at + 50])
        asked = np.arange(0, len(live.users), 7)
        for filter_seen in (False, True) if name == "edge" else (False,):
            items, scores = live.recommend(asked, 10, filter_seen=filter_seen)
            expected, theirs = plain.recommend(asked, 10, filter_seen=filter_seen)
            np.testing.assert_allclose(scores, theirs, atol=2e-5)
            same = items == expected
            close = np.isclose(scores, np.roll(scores, 1, 1), atol=2e-5) | np.isclose(
                scores, np.roll(scores, -1, 1), atol=2e-5
            )
            assert (same | close).all()
    items, _ = live.recommend(asked, 5)
    supposed = events[0]._replace(user=str(live.users[0]))
    with live.supposing(supposed), plain.supposing(supposed):
        mine, theirs = (one.recommend(asked, 5)[1] for one in (live, plain))
        np.testing.assert_allclose(mine, theirs, atol=2e-5)
    assert np.array_equal(live.recommend(asked, 5)[0], items)


def test_models_without_such_scores_are_searched_plainly(runs_folder):
    live = open_live(make_run(runs_folder, "memory"))
    live.make_searchable(1)
    assert live._sketch is None
    with pytest.raises(NotImplementedError):
        Model.item_rows(live.model, torch.arange(1), live.state)
