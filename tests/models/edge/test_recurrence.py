"""The recurrence against its reference implementation, in windows of any size."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from models.edge.reference_recurrence import STEP, loss_of_event, make_log, make_model, reference_loss, reference_run

from dynedge.data.windows import Window, cut_windows
from dynedge.errors import UsageError
from dynedge.evaluation.protocol import rank_events
from dynedge.models import candidate_states as candidates
from dynedge.models.base import LogShape, State
from dynedge.models.edge import popularity, recurrence
from dynedge.models.edge.config import PAPER_LARGE, PAPER_SMALL
from dynedge.ops.decaying_columns import as_powers

pytestmark = pytest.mark.slow


SETTINGS = [
    {},
    {"time_gaps": False, "candidate_id_up_to": 0, "history": False, "successors": False},
    {"popularity": False},
    {"copy_path": False},
    {"successors": False},
    {"history": False},
    {"copy_path": True, "candidate_id_up_to": 0},
    {"dim": 3},
    {"dim": 70},
    {"item_id": False, "categories": False, "event_features": False},
    {"active_users": 5, "active_items": 4},
]


def score_chunks(model, log, chunk, end=None):
    """(scores of all items before each event, the state at the end), in windows of `chunk` events."""
    state, scores = model.start(), []
    with torch.no_grad():
        for start in range(0, end or len(log), chunk):
            window = Window(log, range(start, min(start + chunk, end or len(log))))
            scores.append(model.score(model.prepare(window), None, state))
    return torch.cat(scores), state


@pytest.mark.parametrize("settings", [*SETTINGS, *({**one, "user_features": True} for one in SETTINGS[:2])])
@pytest.mark.parametrize("chunk", [1, 7, 1000])
def test_scores_and_states_equal_the_reference(settings, chunk):
    log = make_log(user_features="user_features" in settings)
    model = make_model(log, **settings)
    assert (model.users is not None) == ("user_features" in settings)
    with torch.no_grad():
        expected, states = reference_run(model, log, range(len(log)))
    scores, state = score_chunks(model, log, chunk)
    assert torch.allclose(scores, expected, atol=1e-10, rtol=0)
    for side, name in enumerate(("user", "item")):
        moved = state[f"{name}_moved"]
        assert moved.any()
        assert torch.allclose(state[name][moved], torch.stack(states[side])[moved], atol=1e-10, rtol=0)


def test_scores_equal_the_reference_across_chunks_of_candidates():
    log = make_log(events=3 * candidates.CHUNK + 17, users=20, items=12)
    model = make_model(log)
    with torch.no_grad():
        expected, _ = reference_run(model, log, range(len(log)))
    assert torch.allclose(score_chunks(model, log, 1000)[0], expected, atol=1e-10, rtol=0)


@given(k=st.integers(0, 59), seed=st.integers(0, 5), chunk=st.sampled_from([1, 16, 100]))
@hypothesis_settings(max_examples=25)
def test_a_later_event_changes_no_earlier_score(k, seed, chunk):
    log = make_log(seed=seed)
    model = make_model(log)
    changed = make_log(seed=seed)
    rng = np.random.default_rng(seed + 100)
    changed.user[k:] = rng.integers(0, 7, 60 - k)
    changed.item[k + 1 :] = rng.integers(0, 9, 59 - k)  # the item of event k itself stays
    changed.features[k:] = rng.standard_normal((60 - k, 2))
    one, two = score_chunks(model, log, chunk)[0], score_chunks(model, changed, chunk)[0]
    assert torch.equal(one[:k], two[:k])


def test_the_item_of_an_event_does_not_change_the_events_scores():
    log, other = make_log(), make_log()
    other.item[30] = (int(log.item[30]) + 1) % 9
    model = make_model(log)
    assert torch.equal(score_chunks(model, log, 100)[0][:31], score_chunks(model, other, 100)[0][:31])


@pytest.mark.parametrize("user_features", [False, True])
def test_score_query_equals_score_and_does_not_change_the_state(user_features):
    log = make_log(user_features=user_features)
    model = make_model(log)
    expected, _ = score_chunks(model, log, 1000)
    _, state = score_chunks(model, log, 7, end=40)
    before = state.clone()
    with torch.no_grad():
        user, time = torch.tensor([int(log.user[40])]), torch.tensor([log.time[40]])
        scores = model.score_query(user, time, None, state)
        candidate_scores = model.score_query(user, time, torch.tensor([[3, 1]]), state)
    assert torch.allclose(scores[0], expected[40], atol=1e-10, rtol=0)
    assert torch.equal(candidate_scores[0], scores[0][[3, 1]])
    assert all(torch.equal(before[name], state[name]) for name in state)


def test_queries_are_scored_in_float32_under_bfloat16_autocast():
    """In bfloat16 many of a few hundred items would have equal scores."""
    log = make_log(events=60, items=300)
    model = make_model(log).float()
    state = model.start()
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        model.score(model.prepare(Window(log, range(40))), None, state)
        model.candidate.normal_()
        scores = model.score_query(torch.tensor([1, 2]), torch.tensor([1e9, 1e9], dtype=torch.float64), None, state)
    assert scores.dtype == torch.float32
    assert min(len(row.unique()) for row in scores) > 290


@pytest.mark.parametrize("user_features", [False, True])
def test_the_loss_and_all_gradients_equal_the_reference(user_features):
    log = make_log(events=30, user_features=user_features)
    model = make_model(log, windows=1)
    reference_loss(model, log).backward()
    expected = {name: _dense(parameter.grad) for name, parameter in model.named_parameters()}
    model.zero_grad()
    (batch,) = model.batches(log, model.training_windows(len(log)))
    loss = model.loss(batch, model.start(), STEP)
    loss.total.backward()
    assert loss.total.item() == pytest.approx(reference_loss(model, log).item(), abs=1e-12)
    for name, parameter in model.named_parameters():
        assert torch.allclose(_dense(parameter.grad), expected[name], atol=1e-11, rtol=0), name


@pytest.mark.parametrize(("least", "windows"), [(0, 4), (15, 4), (16, 3), (25, 2), (99, 1)])
def test_a_small_log_has_fewer_windows_of_a_minimum_size(least, windows):
    events = 60
    log = make_log(events=events)
    model = make_model(log, windows=4, min_window_events=least, dnodes_share=0.1)
    sizes = [len(window) for window in model.training_windows(events)]
    assert (len(sizes), sum(sizes)) == (windows, events)
    assert min(sizes) >= min(least, events)
    batches = list(model.batches(log, model.training_windows(events)))
    assert [len(batch.window) for batch in batches] == sizes
    assert max(batch.dnodes for batch in batches) <= math.ceil(0.1 * events / windows)


@pytest.mark.parametrize("changed", [{}, {"full_softmax_up_to": 0}, {"full_softmax_up_to": 0, "listed_events": 10}])
@pytest.mark.parametrize("balanced", [False, True])
def test_windows_of_equal_work_are_shorter_where_users_have_more_items(changed, balanced):
    """Where events list no items, windows have equal numbers of events all the same."""
    log = make_log(events=400, users=3, items=80)
    model = make_model(log, windows=5, balanced_windows=balanced, **changed)
    windows = model.training_windows(400)
    sizes = [len(events) for events in windows]
    assert windows == model.plan.windows and sum(sizes) == 400
    if balanced and "listed_events" not in changed:
        assert sizes == sorted(sizes, reverse=True) and sizes[0] > 80 > sizes[-1]
    else:
        assert windows == cut_windows(400, 5)
    assert [len(batch.window) for batch in model.batches(log, windows)] == sizes


def test_batches_from_a_later_window_on_are_those_of_the_whole_epoch():
    log = make_log()
    model = make_model(log, windows=4, dnodes=2)
    windows = model.training_windows(len(log))
    whole, resumed = list(model.batches(log, windows)), list(model.batches(log, windows, 2))
    assert len(resumed) == 2
    starts = np.cumsum([0, *(batch.dnodes for batch in whole)])
    assert [batch.first_phi for batch in whole] == starts[:-1].tolist()
    assert starts[-1] > 2
    for mine, other in zip(resumed, whole[2:], strict=True):
        assert mine.first_phi == other.first_phi
        assert len(mine.lists.item) > 0
        assert all(torch.equal(*pair) for pair in zip(mine.lists, other.lists, strict=True))


def test_the_penalty_of_dnodes_is_part_of_what_is_trained_and_not_of_the_reported_loss():
    log = make_log()
    totals = []
    for alpha in (0.0, 1.0, 2.0):
        model = make_model(log, windows=1, dnodes=3, solver="penalty", alpha=alpha)
        batch = next(model.batches(log, model.training_windows(len(log))))
        assert batch.dnodes == 3
        loss = model.loss(batch, model.start(), STEP)
        assert loss.log["residual"] > 0
        totals.append(float(loss.total.detach()) - float(loss.log["loss"]))
    assert totals[0] == pytest.approx(0, abs=1e-6)
    assert 0 < totals[1] == pytest.approx(totals[2] / 2, rel=1e-3)


def _dense(grad):
    return torch.zeros(()) if grad is None else grad.to_dense() if grad.is_sparse else grad


@pytest.mark.parametrize("lists", [False, True])
@pytest.mark.parametrize("share", [1, 2, None])
def test_the_sampled_softmax_uses_candidates_as_they_were_before_the_event(share, lists, monkeypatch):
    """The loss equals that of the same negatives scored by the reference; also where chunks share negatives.

    Listed items are candidates too, not weighted and with their bonus, which sampled ones do not have.
    """
    if share:
        monkeypatch.setattr(recurrence, "MAX_NEGATIVES", 2 * 6 // share)
    log = make_log(events=200, users=15, items=40)
    options = {"listed_events": 200 if lists else 0, "negatives_per_event": share is None}
    model = make_model(log, windows=1, negatives=6, full_softmax_up_to=0, **options)
    assert (model.bonus is not None) == lists
    (batch,) = model.batches(log, model.training_windows(len(log)))
    with torch.no_grad():
        total = model.loss(batch, model.start(), STEP).total.item()
        with_bonus, _ = reference_run(model, log, range(len(log)))
        if lists:
            model.bonus.zero_()
        scores, _ = reference_run(model, log, range(len(log)))
    rows = 2 // share if share else len(log)  # without `share`, every event has its own
    negatives = torch.randint(log.num_items, (rows, 6), generator=STEP.generator())
    expected = 0.0
    for k, item in enumerate(log.item.tolist()):
        sampled = negatives[k // candidates.CHUNK // share if share else k].tolist()
        others = [scores[k, j] + np.log(log.num_items / 6) for j in sampled if j != item]
        others += [with_bonus[k, j] for j in np.flatnonzero(with_bonus[k] != scores[k]) if j != item]
        true = with_bonus[k, item]
        expected += float(loss_of_event(model, torch.stack([true, *others]), 0))
    assert total == pytest.approx(expected / len(log), abs=1e-10)


def test_the_gradients_of_negatives_per_event_equal_the_reference():
    log = make_log(events=40)
    plain = {"history": False, "successors": False, "popularity": False, "sampling_correction": False}
    model = make_model(log, windows=1, negatives=4, full_softmax_up_to=0, negatives_per_event=True, **plain)
    negatives = torch.randint(log.num_items, (40, 4), generator=STEP.generator())
    scores, _ = reference_run(model, log, range(40))
    losses = []
    for k, item in enumerate(log.item.tolist()):
        others = [scores[k, j] for j in negatives[k].tolist() if j != item]
        losses.append(loss_of_event(model, torch.stack([scores[k, item], *others]), 0))
    parameters = [model.xi, model.gru.own, model.candidate, model.items.tables[0]]
    expected = torch.autograd.grad(torch.stack(losses).mean(), parameters)
    (batch,) = model.batches(log, model.training_windows(40))
    model.loss(batch, model.start(), STEP).total.backward()
    for parameter, grad in zip(parameters, expected, strict=True):
        assert torch.allclose(_dense(parameter.grad), _dense(grad), atol=1e-12)


def test_states_carry_over_from_window_to_window_without_gradient():
    log = make_log()
    models, end_states = (make_model(log, windows=1), make_model(log, windows=6)), []
    for model in models:
        state = model.start()
        for batch in model.batches(log, model.training_windows(len(log))):
            assert not model.loss(batch, state, STEP).total.isnan()
        assert not state["user"].requires_grad
        end_states.append(state)
    assert torch.allclose(end_states[0]["user"], end_states[1]["user"], atol=1e-10, rtol=0)
    resumed = list(models[1].batches(log, models[1].training_windows(len(log)), first=4))
    assert [batch.window.events.start for batch in resumed] == [40, 50]


def test_a_restored_model_scores_the_same_and_needs_no_events():
    log = make_log()
    model = make_model(log, dnodes=3, active_users=5)
    model.float()
    empty = make_log(events=0)
    restored = recurrence.Recurrence.restore(model.config, LogShape.of(empty), model.state_dict())
    assert torch.equal(score_chunks(model, log, 10)[0], score_chunks(restored, log, 10)[0])


def test_a_user_added_later_has_no_user_features():
    log = make_log(user_features=True)
    log.user_categories[0] = -1
    model = make_model(log)
    state = model.start()
    model.grow(log.num_users + 1, log.num_items, state)
    users = torch.tensor([0, log.num_users])
    with torch.no_grad():
        scores = model.score_query(users, torch.zeros(2, dtype=torch.float64), None, state)
        assert torch.equal(scores[0], scores[1])
        assert torch.equal(model.users(users)[0], torch.cat([table[-1] for table in model.users.tables]))


@pytest.mark.parametrize("events", [0, 1])
def test_logs_of_no_event_and_of_one(events):
    log = make_log(events=events)
    model = make_model(log, windows=3, dnodes=2)
    state = model.start()
    for batch in model.batches(log, model.training_windows(len(log))):
        model.loss(batch, state, STEP).total.backward()
    assert len(rank_events(model, log, range(events), model.start())) == events


def test_thresholds_that_make_every_entity_active_are_refused():
    with pytest.raises(UsageError, match="--active-users 0 and --active-items 0 make every user and item"):
        make_model(make_log(), active_users=0, active_items=0)


def test_events_between_active_entities_write_no_state_and_still_train():
    log = make_log()
    model = make_model(log, active_users=3, active_items=5, windows=1)
    (batch,) = model.batches(log, model.training_windows(len(log)))
    assert set(batch.schedule.event.tolist()) < set(range(len(log))), "some events write no state"
    model.loss(batch, model.start(), STEP).total.backward()
    assert model.psi[0].grad.to_dense().abs().sum() > 0
    assert model.psi[1].grad.to_dense().abs().sum() > 0


def test_the_recipe_edge_paper_has_the_published_settings():
    assert (PAPER_LARGE.active_users, PAPER_LARGE.active_items, PAPER_LARGE.windows) == (200, 100, 300)
    assert round(PAPER_LARGE.dnodes_share * 96_678_667 * 0.7 / 300) == pytest.approx(160, rel=0.02)  # Taobao
    assert (PAPER_SMALL.active_users, PAPER_SMALL.active_items) == (None, None)
    assert round(PAPER_SMALL.dnodes_share * 672_447 * 0.8 / 300) == pytest.approx(160, rel=0.02)  # Reddit
    for paper in (PAPER_SMALL, PAPER_LARGE):
        assert (paper.dim, paper.method, paper.negatives, paper.negatives_per_event) == (64, "longest-path", 10, True)
        assert not (paper.evolve_active or paper.time_gaps or paper.candidate_id_up_to)


@pytest.mark.parametrize("name", ["dropout", "profile_dropout"])
def test_dropout_applies_in_training_only(name):
    log = make_log(events=30)
    model = make_model(log, windows=1, **{name: 0.5})
    (batch,) = model.batches(log, model.training_windows(len(log)))
    torch.manual_seed(0)
    noisy = model.train().loss(batch, model.start(), STEP).total.item()
    exact = reference_loss(model, log).item()
    assert model.eval().loss(batch, model.start(), STEP).total.item() == pytest.approx(exact, abs=1e-12)
    assert noisy != pytest.approx(exact, abs=1e-6)


def test_a_cloned_state_shares_no_memory():
    state = State(a=torch.zeros(2))
    other = state.clone()
    other["a"] += 1
    assert state["a"].sum() == 0


def test_popularity_scores_of_all_items_are_the_products_of_their_columns():
    rng, rate = np.random.default_rng(0), popularity.rates(64, torch.device("cpu"))
    state = popularity.empty(50, rate, torch.zeros(1))
    state[popularity.CLOCK] += 10**6
    state[popularity.EVENT][:40] = torch.from_numpy(10**6 - (10 ** (6 * rng.random(40))).astype(np.int64))
    state[popularity.COUNTS][:40] = torch.from_numpy(1 + rng.exponential(5, (40, len(rate.counts)))).float()
    weights = torch.from_numpy(rng.normal(size=rate.width)).float()
    clock = state[popularity.CLOCK]
    columns = popularity.columns(state[popularity.COUNTS], state[popularity.EVENT], clock, rate)
    expected = as_powers(columns, popularity.decay(1, clock, rate)) @ weights
    scores = torch.full((50,), torch.nan)
    counted = [state[name].numpy() for name in (popularity.COUNTS, popularity.EVENT, popularity.CLOCK)]
    popularity.fill_scores(*counted, rate.ages.float().numpy(), weights.numpy(), scores.numpy())
    torch.testing.assert_close(scores, expected, rtol=1e-5, atol=1e-5)
    assert scores[:40].abs().max() > 1
    assert not scores[40:].any()


def test_a_model_with_a_profile_keeps_the_full_softmax_when_items_are_added():
    log = make_log(events=40)
    model = make_model(log, full_softmax_up_to=log.num_items)
    assert model.profile is not None
    assert make_model(log, full_softmax_up_to=log.num_items - 1).profile is None  # the lists are thinned there
    state = model.start()
    model.grow(log.num_users, log.num_items + 3, state)
    model.requires_grad_()
    loss = model.loss(model.continued_batch(Window(log, range(40)), state), state, STEP)
    loss.total.backward()
    assert model.sample_negatives(model.prepare(Window(log, range(1))), STEP) is None
    assert model.profile.items.grad[: log.num_items - 2].any()
