"""Scores against plain sums and the networks as torch modules; by several threads, and of given candidates."""

import numpy as np
import pytest
import torch
from models.count_memory.reference_counts import HALF_LIVES, LOGS, Expected, Rules, make_memory, random_log
from models.every_model import make_log

from dynedge.data.windows import Window
from dynedge.models.capabilities import apply_with_undo
from dynedge.models.count_memory import scoring
from dynedge.models.count_memory.candidate_buffer import CandidateBuffer
from dynedge.models.count_memory.features import SEEN
from dynedge.models.count_memory.network_kernels import NEGLIGIBLE
from dynedge.ops.all_scores.by_block import BLOCK
from dynedge.ops.item_ranks import ranks


def popularity_shares(log, k, half_lives):
    """float[items, half-lives]: shares of the events before event k, newer ones with more weight."""
    ages, shares = k - 1 - np.arange(k), np.zeros((log.num_items, len(half_lives)))
    for h, half_life in enumerate(half_lives):
        shares[:, h] = np.bincount(log.item[:k], 2.0 ** (-ages / half_life), log.num_items)
    return shares / np.maximum(shares.sum(0), 1e-30)


@torch.no_grad()
def expected_scores(model, log, k):
    """(float[items], bool): log scores before event k, and whether rounding decides which ones are rescaled."""
    mixture, counts = model.mixture, Expected(log, k, Rules(model.counts))
    by_source, shares = counts.probabilities(), popularity_shares(log, k, model.counts.half_lives)
    query = torch.from_numpy(counts.query_features)
    logits = mixture.logits
    if mixture.gating_in is not None:
        logits = logits + mixture.gating_out @ mixture.gating_in(query).relu()
    used = torch.from_numpy(np.append(np.ones(1 + shares.shape[1], bool), counts.sums.sum(0) > 0))
    weight = logits.masked_fill(~used, -torch.inf).softmax(0)
    uniform = np.full((log.num_items, 1), 1 / log.num_items)
    probability = torch.from_numpy(np.concatenate((uniform, shares, by_source), 1)) @ weight
    is_candidate = torch.from_numpy(counts.sums.any(1))
    log_factor = mixture.rescaling_seen * torch.from_numpy(counts.item_features[:, SEEN])
    is_close = torch.zeros(1)
    if mixture.rescaling_in is not None:
        of_sources = 0.3 * np.log(1 + by_source / NEGLIGIBLE)
        of_popularity = 0.3 * np.log1p(log.num_items * shares)
        inputs = torch.from_numpy(np.concatenate((of_sources, counts.item_features, of_popularity), 1))
        inputs = torch.cat((inputs, query.expand(log.num_items, -1)), 1)
        hidden = mixture.rescaling_in(inputs).relu()
        if mixture.rescaling_second is not None:
            hidden = mixture.rescaling_second(hidden).relu()
        log_factor = log_factor + hidden @ mixture.rescaling_out
        most = model.counts.rescaled_items
        if is_candidate.sum() > most:
            threshold = probability[is_candidate].sort(descending=True).values[most - 1]
            is_close = ((probability / threshold - 1).abs() < 1e-5) & is_candidate
            is_rescaled = is_candidate & (probability >= threshold)
            log_factor = torch.where(is_rescaled, log_factor, log_factor[is_rescaled].mean())
    return torch.log(probability) + log_factor * is_candidate, bool(is_close.sum() > 1)


@pytest.mark.parametrize("name", LOGS)
@pytest.mark.parametrize(
    "config",
    [
        {},
        {"gating_hidden": 0},
        {"rescaling_hidden": 0},
        {"rescaling_second": 0},
        {"rescaled_items": 3},
        {"rescaled_items": 1, "occurrences": 3},
    ],
    ids=str,
)
def test_scores_are_the_mixture_of_the_sources_rescaled(name, config):
    log = LOGS[name]()
    model = make_memory(log, **config)
    scores, compared = model.score(Window(log, range(len(log))), None, model.start()).log(), 0
    model.double()
    for k in range(0, len(log), 3):
        expected, is_close = expected_scores(model, log, k)
        assert is_close or torch.allclose(scores[k].double(), expected, rtol=1e-4, atol=1e-4), k
        compared += not is_close
    assert compared > 0.8 * len(log) / 3


def assert_same(one, other):
    assert all(torch.equal(tensor, other[name]) for name, tensor in one.items())


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("config", [{}, {"rescaled_items": 2}, {"rescaling_hidden": 0}], ids=str)
def test_candidates_score_as_among_all_items(threads, config, monkeypatch):
    """To the bit, in one thread or several; also items that no context has seen, and items given twice."""
    log = make_log(events=300)
    model, candidates = make_memory(log, **config), torch.randint(13, (300, 7), generator=torch.manual_seed(0))
    candidates[:, 0], candidates[:, 3] = log.num_items - 1, candidates[:, 1]
    window, one, other = Window(log, range(300)), model.start(), model.start()
    monkeypatch.setattr(torch, "get_num_threads", lambda: 1)
    scores = model.score(window, None, one)
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
    assert torch.equal(model.score(window, candidates, other), scores.gather(1, candidates))
    assert len(model._scratch) == threads
    assert_same(one, other)
    everything = model.start()
    assert torch.equal(model.score(window, None, everything), scores)
    assert_same(one, everything)


@pytest.mark.parametrize("given", [False, True])
def test_threads_answer_queries_alike(given, monkeypatch):
    log = make_log(events=300)
    model, users = make_memory(log), torch.from_numpy(log.user.astype(np.int64))
    candidates = torch.randint(13, (300, 7), generator=torch.manual_seed(0)) if given else None
    state = model.start()
    model.observe(Window(log, range(300)), state)
    arguments = torch.from_numpy(log.time + log.time[-1]), candidates, state
    monkeypatch.setattr(torch, "get_num_threads", lambda: 1)
    scores = model.score_query(users, *arguments)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 3)
    assert torch.equal(model.score_query(users, *arguments), scores)
    assert len(model._scratch) == 3


@pytest.mark.parametrize("half_lives", [HALF_LIVES, (1e12, 300.0, 50.0, 20.0, 7.0)])
@pytest.mark.parametrize("items", [13, 2000])
def test_many_items(items, half_lives):
    """Those that no context has seen are scored together, to the bits of one by one."""
    log = random_log(60, 4, items - 1, seed=7, repeats=0.2)
    model = make_memory(log, half_lives=half_lives)
    window, every = Window(log, range(60)), torch.arange(items).expand(60, -1).contiguous()
    scores = model.score(window, None, model.start())
    assert torch.equal(model.score(window, every, model.start()), scores)
    model.double()
    for k in (0, 1, 59):
        expected, _ = expected_scores(model, log, k)
        assert torch.allclose(scores[k].double().log(), expected, rtol=1e-4, atol=1e-4), k


def ranks_by_scores(model, log, window):
    return ranks(model.score(window, None, model.start()), torch.from_numpy(log.item[window.events.start :]).long())


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize(
    "config", [{}, {"gating_hidden": 0}, {"rescaling_hidden": 0, "contexts": ("last",)}], ids=str
)
@pytest.mark.parametrize("items", [13, BLOCK, 2 * BLOCK + 1, 1000])
def test_ranks_are_those_of_the_scores(items, config, threads, monkeypatch):
    """Exactly, with the ties of items that have no events or the same ones."""
    log = random_log(250, 12, items, seed=items, repeats=0.3)
    model, window = make_memory(log, **config), Window(log, range(250))
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
    expected, state, again = ranks_by_scores(model, log, window), model.start(), model.start()
    found = model.rank(window, None, torch.from_numpy(log.item).long(), state)
    np.testing.assert_array_equal(found.numpy(), expected)
    assert len(set((2 * expected).tolist())) > 9, "many ranks"
    assert items < 1000 or (expected % 1 == 0.5).any(), "some are ties"
    model.observe(window, again)
    assert_same(state, again)


@pytest.mark.parametrize("part", ["logits", "rescaling_out"])
def test_ranks_where_scores_are_not_numbers(part):
    log = random_log(120, 6, 90, seed=1, repeats=0.3)
    model, window = make_memory(log), Window(log, range(120))
    getattr(model.mixture, part).data[0] = torch.nan
    expected = ranks_by_scores(model, log, window)
    found = model.rank(window, None, torch.from_numpy(log.item).long(), model.start())
    np.testing.assert_array_equal(found.numpy(), expected)


def test_ranks_of_events_whose_popularity_is_rescaled():
    log = random_log(300, 6, 150, seed=2, repeats=0.3)
    model, window = make_memory(log, half_lives=(1e12, 4.0, 0.6)), Window(log, range(300))
    found = model.rank(window, None, torch.from_numpy(log.item).long(), model.start())
    np.testing.assert_array_equal(found.numpy(), ranks_by_scores(model, log, window))


def test_parts_of_a_window_score_the_same_wherever_they_begin(monkeypatch):
    """Windows of every size up to a few parts of MIN_PART events; popularity is rescaled in between."""
    log = make_log(events=300)
    model = make_memory(log, half_lives=(1e12, 4.0, 0.6))
    monkeypatch.setattr(torch, "get_num_threads", lambda: 1)
    state = model.start()
    expected, start = model.score(Window(log, range(300)), None, state), 0
    assert state["event_weight"][2] < 2.0 ** (299 / 0.6)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 3)
    parts, again = [], model.start()
    for size in range(1, 24):
        parts.append(model.score(Window(log, range(start, start + size)), None, again))
        start += size
    assert torch.equal(torch.cat(parts), expected[:start])
    model.observe(Window(log, range(start, 300)), again)
    assert_same(state, again)


def test_queries_score_as_the_next_event():
    """To the bit, of all items and of candidates; a query leaves the state as it is."""
    log = make_log(events=200)
    model = make_memory(log, rescaled_items=4)
    state, scores = model.start(), model.score(Window(log, range(200)), None, model.start())
    for k in range(200):
        if k % 5 == 0:
            before = state.clone()
            users = torch.from_numpy(np.array([(log.user[k] + 1) % log.num_users, log.user[k]])).long()
            times = torch.full((2,), float(log.time[k]), dtype=torch.float64)
            candidates = torch.randint(log.num_items, (2, 5), generator=torch.manual_seed(k))
            given = model.score_query(users, times, None, state)
            assert torch.equal(given[1], scores[k]), k
            assert torch.equal(model.score_query(users, times, candidates, state), given.gather(1, candidates))
            assert_same(before, state)
        model.observe(Window(log, range(k, k + 1)), state)


def test_scoring_observing_and_undoing_in_turn(monkeypatch):
    """Views of a state are cached: other states, events undone and states grown are seen."""
    log, results = make_log(events=300), []
    for threads in (1, 3):
        model, scores = make_memory(log), []
        monkeypatch.setattr(torch, "get_num_threads", lambda threads=threads: threads)
        state = model.start()
        for start in range(0, 300, 50):
            windows = [Window(log, range(start + k, start + k + 10)) for k in range(0, 50, 10)]
            scores += [model.score(windows[0], None, state), model.score(windows[1], None, state)]
            model.observe(windows[2], state)
            scores.append(model.score(windows[3], None, state.clone()))
            apply_with_undo(model, Window(log, range(start, start + 1)), state)()
            scores.append(model.score(windows[3], None, state))
            assert torch.equal(scores[-1], scores[-2])
            model.observe(windows[4], state)
        results.append((torch.cat(scores), state))
    assert torch.equal(results[0][0], results[1][0])
    assert_same(results[0][1], results[1][1])
    plain = model.start()
    model.observe(Window(log, range(300)), plain)
    assert_same(plain, state)


def poison(model):
    """Fills the scratch with values that no score survives."""
    assert model._scratch
    for buffer in model._scratch:
        for name, array in buffer._asdict().items():
            if name != "slot":
                array.fill(np.nan if array.dtype.kind == "f" else 1 << 30)
        assert (buffer.slot == -1).all()


@pytest.mark.parametrize("threads", [1, 3])
def test_what_the_scratch_holds_does_not_matter(threads, monkeypatch):
    log = make_log(events=120)
    clean, poisoned = make_memory(log, training_examples=60), make_memory(log, training_examples=60)
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
    users, items = torch.arange(log.num_users), torch.arange(log.num_items)
    times = torch.full((log.num_users,), float(log.time[-1]), dtype=torch.float64)
    results = []
    for model in (clean, poisoned):
        state, out = model.start(), []
        for start in range(0, 120, 20):
            if model is poisoned and start:
                poison(model)
            window = Window(log, range(start, start + 20))
            if start == 60:
                out += model._collect(window, 0, 15, state)
            else:
                out.append(model.score(window, None, state))
            for call in (model.score_query, model.explain):
                if model is poisoned:
                    poison(model)
                query = (users, times, None) if call == model.score_query else (1, float(times[0]), items)
                out.append(call(*query, state))
        results.append(out)
    for one, other in zip(*results, strict=True):
        assert torch.equal(one, other) if isinstance(one, torch.Tensor) else one == other


def test_scratch_follows_a_growing_number_of_items():
    log = make_log(events=100)
    model = make_memory(log)
    state = model.start()
    model.score(Window(log, range(50)), None, state)
    users, times = torch.arange(3), torch.full((3,), 1e3, dtype=torch.float64)
    for items in (14, 15, 16, 40, 41, 500):
        model.grow(log.num_users, items, state)
        scores = model.score_query(users, times, None, state)
        fresh = make_memory(log)
        fresh.grow(log.num_users, items, fresh.start())
        assert scores.shape == (3, items)
        assert torch.equal(fresh.score_query(users, times, None, state), scores)


def test_scores_after_an_exception_are_those_of_a_new_model(monkeypatch):
    """An exception may leave anything in the scratch memory of a query."""
    log = make_log()
    model = make_memory(log)
    with torch.no_grad():
        state = model.start()
        model.observe(Window(log, range(len(log))), state)
        query = torch.arange(3), torch.full((3,), 1e6, dtype=torch.float64), None, state
        expected = model.score_query(*query)

        def fail(*arguments):
            for part in arguments:
                if isinstance(part, CandidateBuffer):
                    part.slot[:] = 1
                    part.sums[:] = 7
            raise ValueError("a query that fails")

        with monkeypatch.context() as patch:
            patch.setattr(scoring, "score_events", fail)
            with pytest.raises(ValueError, match="a query that fails"):
                model.score_query(*query)
        assert torch.equal(model.score_query(*query), expected)
