"""Checks that every model must pass: the contract, and one check for each capability that a model declares.

A model that uses future information must fail them: tests/evaluation/test_leaks.py has some that do.
"""

import numpy as np
import torch

from dynedge.data.log import EventLog
from dynedge.data.windows import Window
from dynedge.models import capabilities
from dynedge.models.base import Step
from dynedge.models.capabilities import apply_with_undo, capable
from dynedge.ops.item_ranks import ranks


def make_log(events=120, users=8, items=12, features=0, seed=0):
    """Users return to some items; times repeat; two items have no events, the last id among them."""
    rng = np.random.default_rng(seed)
    user = rng.zipf(1.5, events) % users
    item = np.where(rng.random(events) < 0.5, user % items, rng.integers(0, items, events))
    item[item == 0] = 1
    time = np.sort(rng.integers(0, events, events)).astype(np.float64)
    more = {"features": rng.standard_normal((events, features)), "num_users": users, "num_items": items + 1}
    return EventLog.from_arrays(user, item, time, **more)


def scores(model, log, chunk, until=None):
    """float[E, items]: the scores of all items before each event, from the first one to the chunk of `until`."""
    state, rows = model.start(), []
    with torch.no_grad():
        for at in range(0, len(log) if until is None else until + 1, chunk):
            window = Window(log, range(at, min(at + chunk, len(log))))
            rows.append(model.score(model.prepare(window), None, state).clone())
    return torch.cat(rows)


def state_after(model, log, end):
    """The state after the first `end` events."""
    state = model.start()
    with torch.no_grad():
        model.observe(Window(log, range(end)), state)
    return state


def assert_same_state(one, other):
    """Equal to the bit; a growable table may have more unused capacity in one of the two."""
    assert one.keys() == other.keys()
    for name, tensor in one.items():
        if name.endswith("_slots") and len(tensor) != len(other[name]):
            continue  # positions in a hash table follow from its capacity
        common = min(len(tensor), len(other[name])) if tensor.dim() else None
        assert torch.equal(tensor[:common] if common is not None else tensor, other[name][:common]), name
        if common is not None:
            assert not tensor[common:].any() and not other[name][common:].any(), name


# ---- the contract


def changed_after(log, k, rng):
    """The log with other users, items, times and features after event k, and another item at k itself.

    The user and the time of event k are part of the query, so they stay.
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
            changed = scores(model, changed_after(log, k, rng), chunk, until=k)
            same = torch.equal(changed[: k + 1].nan_to_num(), expected[: k + 1].nan_to_num())
            assert same, f"scores up to event {k} depend on what happens at it or after it (chunks of {chunk})"


def assert_score_query_equals_score(model, log):
    """A query at the time of the next event gets the scores that the event gets, and leaves the state as it is."""
    at = len(log) // 2
    state = state_after(model, log, at)
    with torch.no_grad():
        before = state.clone()
        user, time = torch.tensor([int(log.user[at])]), torch.tensor([float(log.time[at])])
        query_scores = model.score_query(user, time, None, state)
        some = model.score_query(user, time, torch.tensor([[3, 1, log.num_items - 1]]), state)
        assert all(torch.equal(before[name], state[name]) for name in state), "score_query changed the state"
        event_scores = model.score(model.prepare(Window(log, range(at, at + 1))), None, state)
    assert torch.allclose(query_scores, event_scores, atol=1e-5, rtol=1e-5)
    assert torch.allclose(some[0], query_scores[0, [3, 1, log.num_items - 1]], atol=1e-6, rtol=1e-6)


def assert_observe_advances_like_score(model, log):
    """Observing gives the state that scoring gives, and it depends on the events unless the state is empty."""
    window = Window(log, range(len(log) // 2))
    observed, scored = model.start(), model.start()
    with torch.no_grad():
        model.observe(window, observed)
        model.score(model.prepare(window), None, scored)
    assert observed.keys() == scored.keys()
    assert all(torch.equal(observed[name], scored[name]) for name in scored)
    if observed:
        start = model.start()
        assert any(not torch.equal(observed[name], start[name]) for name in start if len(observed[name]))
    else:
        users, times = torch.arange(log.num_users), torch.full((log.num_users,), float(log.time[-1]))
        with torch.no_grad():
            early, late = (model.score_query(users, at, None, observed) for at in (times, times + 100))
        assert torch.equal(early, late), "without a state, scores may not change over time"


def assert_candidates_are_columns(model, log):
    """Scores of candidates are columns of the scores of all items."""
    candidates = torch.randint(log.num_items, (len(log), 5), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        batch = model.prepare(Window(log, range(len(log))))
        some, every = (model.score(batch, which, model.start()) for which in (candidates, None))
    assert torch.allclose(some, every.gather(1, candidates), atol=1e-6, rtol=1e-6)


def assert_batches_follow_windows(model, log):
    """One batch per window, in order, also from a later window on."""
    windows = model.training_windows(len(log) * 3 // 4)
    assert (windows[0].start, windows[-1].stop) == (0, len(log) * 3 // 4)
    first = len(windows) // 2
    every, later = list(model.batches(log, windows)), list(model.batches(log, windows, first))
    assert (len(every), len(later)) == (len(windows), len(windows) - first)
    for expected, batch in zip([*windows, *windows[first:]], [*every, *later], strict=True):
        window = getattr(batch, "window", batch)
        assert not isinstance(window, Window) or window.events == expected


def assert_continued_batch_advances_like_observe(model, log):
    """Learning from a window after training leaves the state that observing it leaves."""
    at = len(log) * 3 // 4
    learned, observed = state_after(model, log, at), state_after(model, log, at)
    window = Window(log, range(at, at + 20))
    batch = model.continued_batch(window, learned)
    model.loss(batch, learned, Step(0, 0, at))
    model.after_step(batch, learned)
    with torch.no_grad():
        model.observe(window, observed)
    for name in observed:
        if observed[name].is_floating_point():  # the reference kernels of training round differently
            assert torch.allclose(learned[name], observed[name], atol=1e-5, rtol=1e-5), name
        else:
            assert torch.equal(learned[name], observed[name]), name


CONTRACT = [
    assert_no_leak,
    assert_score_query_equals_score,
    assert_observe_advances_like_score,
    assert_candidates_are_columns,
    assert_batches_follow_windows,
    assert_continued_batch_advances_like_observe,
]


# ---- capabilities


def assert_growable(model, log):
    """New users and items get rows; users without events are alike; growing in two steps gives the bits of one."""
    state = state_after(model, log, len(log))
    users, items, stepwise = log.num_users + 2, log.num_items + 3, state.clone()
    times = torch.full((users,), float(log.time[-1]), dtype=torch.float64)
    with torch.no_grad():
        model.grow(users, items, state)
        after = model.score_query(torch.arange(users), times, None, state)
        assert after.shape == (users, items)
        assert torch.allclose(after[-1], after[-2], atol=1e-6), "users without events are alike"
        model.grow(users - 1, items - 1, stepwise)
        model.grow(users, items, stepwise)
        assert torch.equal(model.score_query(torch.arange(users), times, None, stepwise), after)
        grown = EventLog.from_arrays(
            [users - 1, 0], [1, items - 1], times[:2], features=np.zeros((2, log.features.shape[1])),
            num_users=users, num_items=items,
        )  # fmt: skip
        model.observe(Window(grown, range(2)), state)
        assert not torch.equal(model.score_query(torch.arange(users), times, None, state), after)


def assert_searchable(model, log):
    """Base and inner products with the item matrix give the scores of a query."""
    state = state_after(model, log, len(log) // 2)
    for user in range(log.num_users):
        times = torch.tensor([float(log.time[-1])], dtype=torch.float64)
        with torch.no_grad():
            base, query = model.query_vector(user, float(times), state)
            by_search = base + model.item_matrix(torch.arange(log.num_items), state) @ query
            expected = model.score_query(torch.tensor([user]), times, None, state)[0]
        assert torch.allclose(by_search, expected, atol=1e-4, rtol=1e-4)


def assert_explainable(model, log):
    """Shares are a distribution over named sources; the nearest item is one of the user's own."""
    end = len(log) // 2
    state, items = state_after(model, log, end), torch.arange(log.num_items)
    sources = set()
    for user in range(log.num_users):
        with torch.no_grad():
            explanations = model.explain(user, float(log.time[-1]), items, state)
        assert len(explanations) == len(items)
        own = set(log.item[:end][log.user[:end] == user].tolist())
        for one in explanations:
            assert abs(sum(one.shares.values()) - 1) < 1e-4
            assert all(share >= -1e-6 for share in one.shares.values())
            assert one.nearest_item == -1 or one.nearest_item in own
            sources |= {name for name, share in one.shares.items() if share > 0.01}
    assert sources, "no source has any share"


def assert_undoable(model, log):
    """Undoing an event restores the state to the bit; before that, it is as if the event had been observed."""
    state = state_after(model, log, len(log) // 2)
    for k in range(len(log) // 2, len(log) // 2 + 10):
        window, before = Window(log, range(k, k + 1)), state.clone()
        with torch.no_grad():
            undo = apply_with_undo(model, window, state)
            observed = before.clone()
            model.observe(window, observed)
            assert_same_state(state, observed)
            undo()
            assert_same_state(state, before)
            model.observe(window, state)


def assert_has_vectors(model, log):
    """Finite vectors for all users and items; they change with events where the model has a state."""
    state = state_after(model, log, len(log) * 3 // 4)
    with torch.no_grad():
        before, after = model.vectors(model.start()), model.vectors(state)
    assert (len(after[0]), len(after[1])) == (log.num_users, log.num_items)
    assert all(torch.isfinite(part).all() for part in after)
    for one, other in zip(before, after, strict=True):
        assert torch.equal(one, other) == (not state)


def assert_has_states(model, log):
    """An event changes the states of its user and its item, and of nobody else."""
    end = len(log) // 2
    state, sizes = state_after(model, log, end), (log.num_users, log.num_items)
    with torch.no_grad():
        before = [model.entity_states(side, torch.arange(size), state) for side, size in enumerate(sizes)]
        model.observe(Window(log, range(end, end + 1)), state)
        after = [model.entity_states(side, torch.arange(size), state) for side, size in enumerate(sizes)]
    for entity, one, other in zip((log.user[end], log.item[end]), before, after, strict=True):
        changed = (one != other).any(1).nonzero().flatten().tolist()
        assert changed in ([int(entity)], [])  # an active entity may keep its vector
    assert any((one != other).any() for one, other in zip(before, after, strict=True))


def assert_remembers_seen(model, log):
    """The items that users interacted with, and no others."""
    end = len(log) // 2
    with torch.no_grad():
        seen = model.seen_items(torch.arange(log.num_users), state_after(model, log, end))
    expected = torch.zeros(log.num_users, log.num_items, dtype=torch.bool)
    expected[np.array(log.user[:end]), np.array(log.item[:end])] = True
    assert torch.equal(seen, expected)
    assert expected.any() and not expected.all()


def assert_calibrated(model, log):
    """The ranks under an option are those of the scores once the option is set."""
    window, true = Window(log, range(len(log))), torch.from_numpy(log.item).long()
    options, before = model.calibration_options(), {k: v.clone() for k, v in model.state_dict().items()}
    with torch.no_grad():
        by_option = model.calibration_ranks(model.prepare(window), None, true, model.start())
        assert by_option.shape == (len(options), len(log))
        for option, expected in zip(options, by_option, strict=True):
            assert model.set_calibration(option)
            assert np.array_equal(ranks(model.score(model.prepare(window), None, model.start()), true), expected)
    model.load_state_dict(before)
    assert not np.array_equal(by_option[0], by_option[-1])


def assert_shares_graph(model, log):
    """Inputs follow from the step alone and have the same shapes in windows of a size; the loss is that of them."""
    windows = model.training_windows(len(log) * 3 // 4)
    batches, state, step = list(model.batches(log, windows)), model.start(), Step(3, 1, 4)
    inputs, again = (model.eval().step_inputs(batches[0], step) for _ in range(2))
    assert all(map(torch.equal, inputs, again)) and all(len(part) for part in inputs)
    assert torch.equal(model.loss(batches[0], state, step).total, model.loss_of(*inputs).total)
    others = [batch for batch, events in zip(batches, windows, strict=True) if len(events) == len(windows[0])]
    for batch in others[1:]:
        assert [part.shape for part in model.step_inputs(batch, step)] == [part.shape for part in inputs]
    for batch in batches:
        model.after_step(batch, state)
    replayed = model.start()
    model.observe(Window(log, range(windows[-1].stop)), replayed)
    assert all(torch.equal(state[name], replayed[name]) for name in replayed)


def assert_graph_capturable(model, log):
    """Negatives follow from the step alone; a loss with them given is the loss that samples them itself."""
    batch = next(iter(model.batches(log, model.training_windows(len(log) * 3 // 4))))
    assert not model.is_graph_capturable(batch), "on a CPU there is nothing to capture"
    step = Step(3, 1, 4)
    negatives, again = (model.sample_negatives(batch, step) for _ in range(2))
    if negatives is not None:
        assert torch.equal(negatives, again)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    sampled = model.eval().loss(batch, model.start(), step).total
    model.load_state_dict(before)  # a loss may replace φ by the states that it has computed
    assert torch.equal(sampled, model.loss(batch, model.start(), Step(3, 1, 4, negatives)).total)


def assert_trains_segments(model, log):
    """A sweep advances what batches read: those of later windows, given its state, are those of the whole epoch."""
    windows = model.training_windows(len(log) * 3 // 4)
    first = len(windows) // 2
    model.prepare_segments(log, windows, [range(len(windows))])
    state = model.start()
    with torch.no_grad():
        model.sweep(log, windows, range(first), state)
    later = list(model.segment_batches(log, windows, range(first, len(windows)), state))
    whole = list(model.batches(log, windows))[first:]
    assert len(later) == len(whole) > 0
    rows, none = model.rows_read(later[0], state), model.rows_read(None, state)
    assert rows.keys() == none.keys() and not any(len(part) for part in none.values())
    parameters = dict(model.named_parameters())
    for name, numbers in rows.items():
        assert bool(((numbers >= 0) & (numbers < len(parameters[name]))).all())
    for name, starts in model.window_rows().items():
        assert list(starts) == sorted(starts) and starts[-1] == len(model.state_dict()[name])


CHECKS = {
    capabilities.Growable: assert_growable,
    capabilities.Searchable: assert_searchable,
    capabilities.Explainable: assert_explainable,
    capabilities.Undoable: assert_undoable,
    capabilities.GraphCapturable: assert_graph_capturable,
    capabilities.SharesGraph: assert_shares_graph,
    capabilities.TrainsSegments: assert_trains_segments,
    capabilities.Calibrated: assert_calibrated,
    capabilities.HasVectors: assert_has_vectors,
    capabilities.HasStates: assert_has_states,
    capabilities.RemembersSeen: assert_remembers_seen,
}


def capabilities_of(model):
    return [capability for capability in CHECKS if capable(model, capability) is not None]
