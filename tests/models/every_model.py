"""What every model promises, as checks that a new one passes without writing a test.

A model that peeks must fail them: tests/ranking/test_leaks.py plants some that do.
"""

import numpy as np
import torch

from dynedge.data.log import EventLog
from dynedge.data.windows import Window


def make_log(events=120, users=8, items=12, features=0, seed=0):
    """Users return to some items; times repeat; two items are never seen, the last id among them."""
    rng = np.random.default_rng(seed)
    user = rng.zipf(1.5, events) % users
    item = np.where(rng.random(events) < 0.5, user % items, rng.integers(0, items, events))
    item[item == 0] = 1
    time = np.sort(rng.integers(0, events, events)).astype(np.float64)
    more = {"features": rng.standard_normal((events, features)), "num_users": users, "num_items": items + 1}
    return EventLog.from_arrays(user, item, time, **more)


def scores(model, log, chunk):
    """float[E, items]: the scores of all items before each event, from the first event on."""
    state, found = model.start(), []
    with torch.no_grad():
        for at in range(0, len(log), chunk):
            window = Window(log, range(at, min(at + chunk, len(log))))
            found.append(model.score(model.prepare(window), None, state).clone())
    return torch.cat(found)


def changed_after(log, k, rng):
    """The log with other users, items, times and features after event k, and another item at k itself.

    Who event k is of, and when, is the question that is asked, so it stays.
    """
    user, item, time, features = (np.array(column) for column in (log.user, log.item, log.time, log.features))
    later = len(log) - k - 1
    user[k + 1 :] = rng.integers(0, log.num_users, later)
    time[k + 1 :] = time[k] + np.sort(rng.integers(0, 50, later))
    item[k] = (item[k] + rng.integers(1, log.num_items)) % log.num_items
    item[k + 1 :] = rng.integers(0, log.num_items, later)
    features[k:] = rng.standard_normal(features[k:].shape)
    more = {"num_users": log.num_users, "num_items": log.num_items, "features": features}
    return EventLog.from_arrays(user, item, time, **more)


def assert_no_leak(model, log, chunks=(1, 7, 1000), tries=8, seed=0):
    """Whatever happens from event k's own item on, no bit of the scores up to and including event k's changes."""
    rng = np.random.default_rng(seed)
    for chunk in chunks:
        expected = scores(model, log, chunk)
        for k in rng.choice(len(log), tries, replace=False).tolist():
            found = scores(model, changed_after(log, k, rng), chunk)
            same = torch.equal(found[: k + 1].nan_to_num(), expected[: k + 1].nan_to_num())
            assert same, f"scores up to event {k} see what happens at it or after it (chunks of {chunk})"


def assert_peek_is_score(model, log, at=None):
    """A question about the next event gets the scores the event gets, and moves nothing."""
    at = len(log) // 2 if at is None else at
    state = model.start()
    with torch.no_grad():
        model.score(model.prepare(Window(log, range(at))), None, state)
        before = state.clone()
        user, time = torch.tensor([int(log.user[at])]), torch.tensor([float(log.time[at])])
        peeked = model.score_query(user, time, None, state)
        some = model.score_query(user, time, torch.tensor([[3, 1, log.num_items - 1]]), state)
        assert all(torch.equal(before[name], state[name]) for name in state), "peek moved the state"
        scored = model.score(model.prepare(Window(log, range(at, at + 1))), None, state)
    assert torch.allclose(peeked, scored, atol=1e-5, rtol=1e-5)
    assert torch.allclose(some[0], peeked[0, [3, 1, log.num_items - 1]], atol=1e-6, rtol=1e-6)


def assert_observe_is_score(model, log):
    """A state that only watched the events is the state that was asked about each of them too."""
    window = Window(log, range(len(log) // 2))
    watched, scored = model.start(), model.start()
    with torch.no_grad():
        model.observe(window, watched)
        model.score(model.prepare(window), None, scored)
    assert watched.keys() == scored.keys()
    assert all(torch.equal(watched[name], scored[name]) for name in scored)


def assert_seen_is_what_users_had(model, log):
    """What a model says its users have had, they have had, and nothing else; it may say that it does not know."""
    end, state, users = len(log) // 2, model.start(), torch.arange(log.num_users)
    with torch.no_grad():
        model.observe(Window(log, range(end)), state)
        seen = model.seen_items(users, state)
    if seen is not None:
        had = torch.zeros(log.num_users, log.num_items, dtype=torch.bool)
        had[np.array(log.user[:end]), np.array(log.item[:end])] = True
        assert torch.equal(seen, had)


def assert_candidates_are_columns(model, log):
    """Scores of some candidates are those of all items, picked."""
    candidates = torch.randint(log.num_items, (len(log), 5), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        window = model.prepare(Window(log, range(len(log))))
        some, every = (model.score(window, which, model.start()) for which in (candidates, None))
    assert torch.allclose(some, every.gather(1, candidates), atol=1e-6, rtol=1e-6)
