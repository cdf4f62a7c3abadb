"""The recurrence against a reference implementation that processes one event at a time in plain Python."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from dynedge.data.id_index import IdIndex
from dynedge.data.log import EventLog
from dynedge.data.windows import Window
from dynedge.errors import UsageError
from dynedge.evaluation.protocol import rank_events
from dynedge.models import candidate_rows as candidates
from dynedge.models.base import LogShape, State, Step
from dynedge.models.edge import recurrence
from dynedge.models.edge.config import PAPER, RecurrenceConfig
from dynedge.models.edge.dnode_constraint import DNodeConstraint
from dynedge.plan.links import Linker
from dynedge.plan.schedule import build_schedule

pytestmark = [pytest.mark.slow, pytest.mark.slow]

STEP = Step(0, 0, 0)


def make_log(events=60, users=7, items=9, seed=0, features=2, categories=True):
    rng = np.random.default_rng(seed)
    log = EventLog.from_arrays(
        rng.zipf(1.5, events) % users,
        rng.integers(0, items, events),
        np.sort(rng.integers(0, 3 * events, events)),
        features=rng.standard_normal((events, features)),
        num_users=users,
        num_items=items + 2,  # two items without events
    )
    if categories:
        codes = rng.integers(-1, 3, (items + 2, 1)).astype(np.int32)
        object.__setattr__(log, "item_categories", codes)
        object.__setattr__(log, "category_ids", (IdIndex.from_ids(["a", "b", "c"]),))
    return log


def make_model(log, train_end=None, **config):
    settings = {"dim": 5, "windows": 4, "dropout": 0.0, **config}
    model = recurrence.Recurrence.create(RecurrenceConfig(**settings), log, train_end or len(log), seed=1).double()
    with torch.no_grad():
        for parameter in model.parameters():  # not zero, so that nothing is right by accident
            parameter.copy_(torch.randn(parameter.shape, generator=torch.Generator().manual_seed(3)) * 0.4)
    return model


def reference_run(model, log, events):
    """(scores of all items before each event float64[events, items], final states), without windows or arrays."""
    gru, d = model.gru, model.config.dim
    start = [[model.psi[s][row] if (row := int(r)) >= 0 else model.xi[s] for r in model.psi_row(s)] for s in (0, 1)]
    state, time, last, scores = [list(side) for side in start], [{}, {}], {}, []
    past = {user: [] for user in range(log.num_users)}  # (item, time), oldest first

    def bonus(user, item, now):
        """By the item's recency in events (2/3 octaves), count (up to 4), and time since (powers of ten)."""
        times = [time for other, time in past[user] if other == item]
        if not times:
            return torch.zeros((), dtype=torch.float64)
        age = len(past[user]) - max(k for k, (other, _) in enumerate(past[user]) if other == item)  # 1: the last
        since = now - times[-1]
        recency, count = min(int(1.5 * np.log2(age)), 11), min(len(times), 4) - 1
        gap_bin = 0 if since <= 0 else min(1 + int(np.log10(1 + since)), 7)
        return model.bonus[(recency * 4 + count) * 8 + gap_bin]

    def gap(now, before):
        return [float(np.log1p(now - before)), 1.0] if before is not None else [0.0, 0.0]

    def embedding(item):
        return model.items(torch.tensor([model.shape.items if item is None else item]))[0]

    for k in events:
        ids, now = (int(log.user[k]), int(log.item[k])), float(log.time[k])
        head = [state[0][ids[0]], embedding(last.get(ids[0]))]
        if model.config.time_gaps:
            head.append(torch.tensor(gap(now, time[0].get(ids[0])), dtype=torch.float64))
        query = model.head(torch.cat(head))
        score = torch.stack([query[:d] @ vector for vector in state[1]])
        if model.config.candidate_id:
            score = score + model.candidate[:, :-1] @ query[d:] + model.candidate[:, -1]
        if model.bonus is not None:
            score = score + torch.stack([bonus(ids[0], item, now) for item in range(log.num_items)])
        past[ids[0]].append((ids[1], now))
        scores.append(score)
        old = [state[s][ids[s]] for s in (0, 1)]
        for s in (0, 1):
            feature = [embedding(ids[1])]
            if model.event is not None:
                feature.append(model.event(torch.tensor(log.features[k]).double()))
            if model.config.time_gaps:
                feature.append(torch.tensor(gap(now, time[s].get(ids[s])), dtype=torch.float64))
            gi = gru.other[s] @ old[1 - s] + gru.feature[s] @ torch.cat(feature) + gru.bias[s]
            gh = gru.own[s] @ old[s] + gru.own_bias[s]
            reset, update = torch.sigmoid(gi[:d] + gh[:d]), torch.sigmoid(gi[d : 2 * d] + gh[d : 2 * d])
            new = torch.tanh(gi[2 * d :] + reset * gh[2 * d :])
            state[s][ids[s]] = (1 - update) * new + update * old[s]
        for s in (0, 1):
            time[s][ids[s]] = now
        last[ids[0]] = ids[1]
    return torch.stack(scores), state


SETTINGS = [
    {},
    {"time_gaps": False, "candidate_id": False, "history": False},
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


@pytest.mark.parametrize("settings", SETTINGS)
@pytest.mark.parametrize("chunk", [1, 7, 1000])
def test_scores_and_states_equal_the_reference(settings, chunk):
    log = make_log()
    model = make_model(log, **settings)
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


def test_score_query_equals_score_and_does_not_change_the_state():
    log = make_log()
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


def reference_loss(model, log):
    """The mean of -log softmax over all items, one event at a time."""
    scores, _ = reference_run(model, log, range(len(log)))
    return torch.nn.functional.cross_entropy(scores, torch.from_numpy(log.item).long())


def test_the_loss_and_all_gradients_equal_the_reference():
    log = make_log(events=30)
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


def _dense(grad):
    return torch.zeros(()) if grad is None else grad.to_dense() if grad.is_sparse else grad


@pytest.mark.parametrize("solver", ["penalty", "augmented", "refresh", "refresh-penalty"])
def test_dnodes_change_no_loss_where_phi_equals_the_state(solver):
    log = make_log(events=50)
    exact, with_dnodes = make_model(log, windows=3), make_model(log, windows=3, dnodes=6, solver=solver)
    assert sum(map(len, with_dnodes.plan.dnodes)) >= 10
    shared = {name: tensor for name, tensor in exact.state_dict().items() if not name.startswith("dnode_constraint")}
    with_dnodes.load_state_dict(shared, strict=False)
    state = exact.start()
    with torch.no_grad():
        for number, batch in enumerate(exact.batches(log, exact.training_windows(len(log)))):
            _fill_phi(with_dnodes, number, batch, state, exact)
            exact.loss(batch, state, STEP)
    losses = [_losses(model, log) for model in (exact, with_dnodes)]
    assert [loss for loss, _ in losses[1]] == pytest.approx([loss for loss, _ in losses[0]], abs=1e-10)
    assert all(residual < 1e-10 for _, residual in losses[1])


def _fill_phi(with_dnodes, number, batch, state, exact):
    """Sets φ of one window to the states that the model without d-nodes computes."""
    arena = exact.forward_window(batch, state).arena
    row_of, schedule = {}, batch.schedule
    sides = np.repeat(np.arange(len(schedule.blocks) - 1) & 1, np.diff(schedule.blocks))
    for row, (event, side) in enumerate(zip(schedule.event.tolist(), sides.tolist(), strict=True)):
        row_of[2 * event + side] = row
    first_phi, phi = with_dnodes._first_phi[number], with_dnodes.dnode_constraint.phi.data
    for k, node in enumerate(with_dnodes.plan.dnodes[number].tolist()):
        phi[first_phi + k] = arena[schedule.first_written + row_of[node]]


def _losses(model, log):
    """(loss, residual) of each window."""
    state = model.start()
    with torch.no_grad():
        batches = model.batches(log, model.training_windows(len(log)))
        logged = [model.loss(batch, state, STEP).log for batch in batches]
    return [(numbers["loss"], numbers["residual"]) for numbers in logged]


def test_refresh_reaches_the_exact_states_with_constant_parameters():
    log = make_log(events=50)
    model = make_model(log, windows=2, dnodes=5, solver="refresh")
    residuals = [max(residual for _, residual in _losses(model, log)) for _ in range(8)]
    assert residuals[0] > 0.1
    assert residuals[-1] < 1e-12, "after as many epochs as the longest chain of d-nodes, φ is the state"


def test_the_penalty_of_each_solver():
    phi, states = torch.tensor([[1.0, 2.0], [0.0, 0.0]]), torch.tensor([[0.0, 0.0], [3.0, 4.0]])
    rows, gap = torch.tensor([0, 1]), torch.tensor([[1.0, 2.0], [-3.0, -4.0]])
    for solver, expected in [("penalty", 0.5 * 2 * 30.0), ("refresh", 0.0), ("refresh-penalty", 30.0)]:
        constraint = DNodeConstraint(phi, solver, alpha=2.0)
        total, residual = constraint.penalty(rows, constraint.read(rows), states)
        assert total.item() == expected
        assert residual == pytest.approx((5**0.5 + 5) / 2)
        assert torch.equal(constraint.phi, states if solver.startswith("refresh") else phi)
    constraint = DNodeConstraint(phi, "augmented", alpha=2.0)
    assert constraint.penalty(rows, constraint.read(rows), states)[0].item() == 30.0
    assert torch.equal(constraint.multiplier, 2 * gap)
    assert constraint.penalty(rows, constraint.read(rows), states)[0].item() == 30.0 + 60.0


@pytest.mark.parametrize("share", [1, 2])
def test_the_sampled_softmax_uses_candidates_as_they_were_before_the_event(share, monkeypatch):
    """The loss equals that of the same negatives scored by the reference; also where chunks share negatives."""
    monkeypatch.setattr(recurrence, "MAX_NEGATIVES", 2 * 6 // share)
    log = make_log(events=200, users=15, items=40)
    model = make_model(log, windows=1, negatives=6, full_softmax_up_to=0)
    (batch,) = model.batches(log, model.training_windows(len(log)))
    with torch.no_grad():
        total = model.loss(batch, model.start(), STEP).total.item()
        scores, _ = reference_run(model, log, range(len(log)))
    negatives = torch.randint(log.num_items, (2 // share, 6), generator=STEP.generator())
    expected = 0.0
    for k, item in enumerate(log.item.tolist()):
        chunk_negatives = negatives[k // candidates.CHUNK // share].tolist()
        others = [scores[k, j] + np.log(log.num_items / 6) for j in chunk_negatives if j != item]
        expected += float(torch.logsumexp(torch.stack([scores[k, item], *others]), 0) - scores[k, item])
    assert total == pytest.approx(expected / len(log), abs=1e-10)


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
    assert (PAPER.active_users, PAPER.active_items, PAPER.dim, PAPER.windows) == (200, 100, 64, 300)
    assert (PAPER.method, PAPER.solver, PAPER.candidate_id, PAPER.time_gaps) == (
        "longest-path",
        "penalty",
        False,
        False,
    )


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 6)), max_size=40), st.integers(0, 3))
def test_candidate_columns_read_the_row_before_each_event(pairs, active):
    """Every (event, candidate) pair reads the row that Schedule.rows_before returns."""
    user = np.array([u for u, _ in pairs], np.int32)
    item = np.array([i for _, i in pairs], np.int32)
    mask = np.arange(8) < active
    prev = Linker(np.zeros(5, bool), mask)(user, item)
    schedule = build_schedule(user, item, prev, np.zeros(0, np.int64))
    chunks = -(-len(pairs) // candidates.CHUNK)
    negatives = [7, 0, 3, 5, 1, 0]  # one of them twice
    items = np.tile(np.array(negatives, np.int32), (chunks, 1))
    columns = candidates.candidate_columns(schedule, item, items, 8)
    for k in range(len(pairs)):
        chunk = k // candidates.CHUNK
        is_read = (columns.since[chunk] < k) & (k <= columns.until[chunk])
        numbers = columns.candidate[chunk, is_read].sort().values.tolist()
        assert numbers == list(range(len(negatives))), "each is read once"
        for column in is_read.nonzero().flatten().tolist():
            candidate = negatives[columns.candidate[chunk, column]]
            row = int(schedule.rows_before(candidate, k))
            outside = schedule.rows + int(np.searchsorted(columns.outside.numpy(), candidate))
            assert columns.item[chunk, column] == candidate
            assert columns.row[chunk, column] == (outside if row < 0 else row)


def test_a_cloned_state_shares_no_memory():
    state = State(a=torch.zeros(2))
    other = state.clone()
    other["a"] += 1
    assert state["a"].sum() == 0


def test_dropout_applies_in_training_only():
    log = make_log(events=30)
    model = make_model(log, windows=1, dropout=0.5)
    (batch,) = model.batches(log, model.training_windows(len(log)))
    torch.manual_seed(0)
    noisy = model.train().loss(batch, model.start(), STEP).total.item()
    exact = reference_loss(model, log).item()
    assert model.eval().loss(batch, model.start(), STEP).total.item() == pytest.approx(exact, abs=1e-12)
    assert noisy != pytest.approx(exact, abs=1e-6)
