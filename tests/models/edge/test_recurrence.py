"""The recurrence against one event at a time in plain Python, and the promises every model makes."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
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
        num_items=items + 2,  # two items that never happen
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
        for parameter in model.parameters():  # away from zeros, so that nothing is right by accident
            parameter.copy_(torch.randn(parameter.shape, generator=torch.Generator().manual_seed(3)) * 0.4)
    return model


def one_by_one(model, log, events):
    """float64[events, items]: scores of all items before each event, and the states after; no windows, no arrays."""
    gru, d = model.gru, model.config.dim
    start = [[model.psi[s][row] if (row := int(r)) >= 0 else model.xi[s] for r in model.psi_row(s)] for s in (0, 1)]
    state, time, last, found = [list(side) for side in start], [{}, {}], {}, []
    had = {user: [] for user in range(log.num_users)}  # (item, time), oldest first

    def bonus(user, item, now):
        """By how many of the user's events ago, how often, and how long ago: in 2/3 octaves, to 4, in tens."""
        times = [at for other, at in had[user] if other == item]
        if not times:
            return torch.zeros((), dtype=torch.float64)
        ago = len(had[user]) - max(k for k, (other, _) in enumerate(had[user]) if other == item)  # 1: the last
        since = now - times[-1]
        late, often = min(int(1.5 * np.log2(ago)), 11), min(len(times), 4) - 1
        return model.bonus[(late * 4 + often) * 8 + (0 if since <= 0 else min(1 + int(np.log10(1 + since)), 7))]

    def gap(now, before):
        return [float(np.log1p(now - before)), 1.0] if before is not None else [0.0, 0.0]

    def embedded(item):
        return model.items(torch.tensor([model.shape.items if item is None else item]))[0]

    for k in events:
        ids, now = (int(log.user[k]), int(log.item[k])), float(log.time[k])
        head = [state[0][ids[0]], embedded(last.get(ids[0]))]
        if model.config.time_gaps:
            head.append(torch.tensor(gap(now, time[0].get(ids[0])), dtype=torch.float64))
        wanted = model.head(torch.cat(head))
        score = torch.stack([wanted[:d] @ vector for vector in state[1]])
        if model.config.candidate_id:
            score = score + model.candidate[:, :-1] @ wanted[d:] + model.candidate[:, -1]
        if model.bonus is not None:
            score = score + torch.stack([bonus(ids[0], item, now) for item in range(log.num_items)])
        had[ids[0]].append((ids[1], now))
        found.append(score)
        old = [state[s][ids[s]] for s in (0, 1)]
        for s in (0, 1):
            feature = [embedded(ids[1])]
            if model.event is not None:
                feature.append(model.event(torch.tensor(log.features[k]).double()))
            if model.config.time_gaps:
                feature.append(torch.tensor(gap(now, time[s].get(ids[s])), dtype=torch.float64))
            gi = gru.other[s] @ old[1 - s] + gru.feature[s] @ torch.cat(feature) + gru.bias[s]
            gh = gru.own[s] @ old[s] + gru.own_bias[s]
            reset, update = torch.sigmoid(gi[:d] + gh[:d]), torch.sigmoid(gi[d : 2 * d] + gh[d : 2 * d])
            fresh = torch.tanh(gi[2 * d :] + reset * gh[2 * d :])
            state[s][ids[s]] = (1 - update) * fresh + update * old[s]
        for s in (0, 1):
            time[s][ids[s]] = now
        last[ids[0]] = ids[1]
    return torch.stack(found), state


SWITCHES = [
    {},
    {"time_gaps": False, "candidate_id": False, "history": False},
    {"item_id": False, "categories": False, "event_features": False},
    {"active_users": 5, "active_items": 4},
]


def scored(model, log, chunk, end=None):
    state, found = model.start(), []
    with torch.no_grad():
        for at in range(0, end or len(log), chunk):
            window = Window(log, range(at, min(at + chunk, end or len(log))))
            found.append(model.score(model.prepare(window), None, state))
    return torch.cat(found), state


@pytest.mark.parametrize("switches", SWITCHES)
@pytest.mark.parametrize("chunk", [1, 7, 1000])
def test_scores_and_states_are_those_of_one_event_at_a_time(switches, chunk):
    log = make_log()
    model = make_model(log, **switches)
    with torch.no_grad():
        expected, states = one_by_one(model, log, range(len(log)))
    found, state = scored(model, log, chunk)
    assert torch.allclose(found, expected, atol=1e-10, rtol=0)
    for side, name in enumerate(("user", "item")):
        moved = state[f"{name}_moved"]
        assert moved.any()
        assert torch.allclose(state[name][moved], torch.stack(states[side])[moved], atol=1e-10, rtol=0)


def test_scores_across_the_chunks_that_share_candidates():
    log = make_log(events=3 * candidates.CHUNK + 17, users=20, items=12)
    model = make_model(log)
    with torch.no_grad():
        expected, _ = one_by_one(model, log, range(len(log)))
    assert torch.allclose(scored(model, log, 1000)[0], expected, atol=1e-10, rtol=0)


@given(k=st.integers(0, 59), seed=st.integers(0, 5), chunk=st.sampled_from([1, 16, 100]))
@settings(max_examples=25)
def test_a_later_event_changes_no_earlier_score(k, seed, chunk):
    log = make_log(seed=seed)
    model = make_model(log)
    changed = make_log(seed=seed)
    rng = np.random.default_rng(seed + 100)
    changed.user[k:] = rng.integers(0, 7, 60 - k)
    changed.item[k + 1 :] = rng.integers(0, 9, 59 - k)  # event k's own answer is not known before it either
    changed.features[k:] = rng.standard_normal((60 - k, 2))
    one, two = scored(model, log, chunk)[0], scored(model, changed, chunk)[0]
    assert torch.equal(one[:k], two[:k])


def test_the_answer_does_not_change_its_own_score():
    log, other = make_log(), make_log()
    other.item[30] = (int(log.item[30]) + 1) % 9
    model = make_model(log)
    assert torch.equal(scored(model, log, 100)[0][:31], scored(model, other, 100)[0][:31])


def test_peek_is_what_score_says_and_moves_nothing():
    log = make_log()
    model = make_model(log)
    expected, _ = scored(model, log, 1000)
    _, state = scored(model, log, 7, end=40)
    before = state.clone()
    with torch.no_grad():
        found = model.score_query(torch.tensor([int(log.user[40])]), torch.tensor([log.time[40]]), None, state)
        some = model.score_query(
            torch.tensor([int(log.user[40])]), torch.tensor([log.time[40]]), torch.tensor([[3, 1]]), state
        )
    assert torch.allclose(found[0], expected[40], atol=1e-10, rtol=0)
    assert torch.equal(some[0], found[0][[3, 1]])
    assert all(torch.equal(before[name], state[name]) for name in state)


def test_answers_are_exact_also_where_training_is_in_bfloat16():
    """In bfloat16 a few hundred items' scores are full of ties."""
    log = make_log(events=60, items=300)
    model = make_model(log).float()
    state = model.start()
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        model.score(model.prepare(Window(log, range(40))), None, state)
        model.candidate.normal_()
        found = model.score_query(torch.tensor([1, 2]), torch.tensor([1e9, 1e9], dtype=torch.float64), None, state)
    assert found.dtype == torch.float32
    assert min(len(row.unique()) for row in found) > 290


def exact_loss(model, log):
    """The mean of -log softmax over all items, one event at a time."""
    found, _ = one_by_one(model, log, range(len(log)))
    return torch.nn.functional.cross_entropy(found, torch.from_numpy(log.item).long())


def test_the_loss_and_every_gradient_are_those_of_one_event_at_a_time():
    log = make_log(events=30)
    model = make_model(log, windows=1)
    exact_loss(model, log).backward()
    expected = {name: _dense(parameter.grad) for name, parameter in model.named_parameters()}
    model.zero_grad()
    (prepared,) = model.batches(log, model.training_windows(len(log)))
    loss = model.loss(prepared, model.start(), STEP)
    loss.total.backward()
    assert loss.total.item() == pytest.approx(exact_loss(model, log).item(), abs=1e-12)
    for name, parameter in model.named_parameters():
        assert torch.allclose(_dense(parameter.grad), expected[name], atol=1e-11, rtol=0), name


def _dense(grad):
    return torch.zeros(()) if grad is None else grad.to_dense() if grad.is_sparse else grad


@pytest.mark.parametrize("solver", ["penalty", "augmented", "refresh", "refresh-penalty"])
def test_where_phi_equals_the_state_cuts_change_no_value(solver):
    log = make_log(events=50)
    exact, cut = make_model(log, windows=3), make_model(log, windows=3, dnodes=6, solver=solver)
    assert sum(map(len, cut.plan.dnodes)) >= 10
    shared = {name: tensor for name, tensor in exact.state_dict().items() if not name.startswith("dnode_constraint")}
    cut.load_state_dict(shared, strict=False)
    state = exact.start()
    with torch.no_grad():
        for number, prepared in enumerate(exact.batches(log, exact.training_windows(len(log)))):
            _fill_phi(cut, number, prepared, state, exact)
            exact.loss(prepared, state, STEP)
    losses = [_losses(model, log) for model in (exact, cut)]
    assert [loss for loss, _ in losses[1]] == pytest.approx([loss for loss, _ in losses[0]], abs=1e-10)
    assert all(residual < 1e-10 for _, residual in losses[1])


def _fill_phi(cut, number, prepared, state, exact):
    """Set φ of one window to the states an uncut run computes."""
    arena = exact.forward_window(prepared, state).arena
    row = {}
    schedule = prepared.schedule
    sides = np.repeat(np.arange(len(schedule.blocks) - 1) & 1, np.diff(schedule.blocks))
    for at, (event, side) in enumerate(zip(schedule.event.tolist(), sides.tolist(), strict=True)):
        row[2 * event + side] = at
    for at, code in enumerate(cut.plan.dnodes[number].tolist()):
        cut.dnode_constraint.phi.data[cut._first_phi[number] + at] = arena[
            prepared.schedule.first_written + row[code]
        ]


def _losses(model, log):
    state = model.start()
    with torch.no_grad():
        found = [
            model.loss(prepared, state, STEP).log for prepared in model.batches(log, model.training_windows(len(log)))
        ]
    return [(log["loss"], log["residual"]) for log in found]


def test_refresh_reaches_the_exact_states_when_parameters_stand_still():
    log = make_log(events=50)
    model = make_model(log, windows=2, dnodes=5, solver="refresh")
    residuals = [max(residual for _, residual in _losses(model, log)) for _ in range(8)]
    assert residuals[0] > 0.1
    assert residuals[-1] < 1e-12, "after as many passes as there are d-nodes in a row, φ is the state"


def test_the_solvers_add_what_they_say():
    phi, states = torch.tensor([[1.0, 2.0], [0.0, 0.0]]), torch.tensor([[0.0, 0.0], [3.0, 4.0]])
    rows, gap = torch.tensor([0, 1]), torch.tensor([[1.0, 2.0], [-3.0, -4.0]])
    for solver, expected in [("penalty", 0.5 * 2 * 30.0), ("refresh", 0.0), ("refresh-penalty", 30.0)]:
        ties = DNodeConstraint(phi, solver, alpha=2.0)
        total, residual = ties.penalty(rows, ties.read(rows), states)
        assert total.item() == expected
        assert residual == pytest.approx((5**0.5 + 5) / 2)
        assert torch.equal(ties.phi, states if solver.startswith("refresh") else phi)
    ties = DNodeConstraint(phi, "augmented", alpha=2.0)
    assert ties.penalty(rows, ties.read(rows), states)[0].item() == 30.0
    assert torch.equal(ties.multiplier, 2 * gap)
    assert ties.penalty(rows, ties.read(rows), states)[0].item() == 30.0 + 60.0


@pytest.mark.parametrize("share", [1, 2])
def test_sampled_softmax_reads_each_candidate_before_the_event(share, monkeypatch):
    """The drawn negatives, scored one event at a time, give the same loss; also where chunks share them."""
    monkeypatch.setattr(recurrence, "MAX_NEGATIVES", 2 * 6 // share)
    log = make_log(events=200, users=15, items=40)
    model = make_model(log, windows=1, negatives=6, full_softmax_up_to=0)
    (prepared,) = model.batches(log, model.training_windows(len(log)))
    with torch.no_grad():
        total = model.loss(prepared, model.start(), STEP).total.item()
        found, _ = one_by_one(model, log, range(len(log)))
    drawn = torch.randint(log.num_items, (2 // share, 6), generator=STEP.generator())
    expected = 0.0
    for k, item in enumerate(log.item.tolist()):
        drawn_here = drawn[k // candidates.CHUNK // share].tolist()
        others = [found[k, j] + np.log(log.num_items / 6) for j in drawn_here if j != item]
        expected += float(torch.logsumexp(torch.stack([found[k, item], *others]), 0) - found[k, item])
    assert total == pytest.approx(expected / len(log), abs=1e-10)


def test_states_carry_over_from_window_to_window_without_gradient():
    log = make_log()
    whole, parts = make_model(log, windows=1), make_model(log, windows=6)
    for model in (whole, parts):
        state = model.start()
        for prepared in model.batches(log, model.training_windows(len(log))):
            assert not model.loss(prepared, state, STEP).total.isnan()
        assert not state["user"].requires_grad
        model.kept = state
    assert torch.allclose(whole.kept["user"], parts.kept["user"], atol=1e-10, rtol=0)
    resumed = list(parts.batches(log, parts.training_windows(len(log)), first=4))
    assert [prepared.window.events.start for prepared in resumed] == [40, 50]


def test_a_restored_model_scores_the_same_and_needs_no_events():
    log = make_log()
    model = make_model(log, dnodes=3, active_users=5)
    model.float()
    empty = make_log(events=0)
    again = recurrence.Recurrence.restore(model.config, LogShape.of(empty), model.state_dict())
    assert torch.equal(scored(model, log, 10)[0], scored(again, log, 10)[0])


@pytest.mark.parametrize("events", [0, 1])
def test_tiny_logs(events):
    log = make_log(events=events)
    model = make_model(log, windows=3, dnodes=2)
    state = model.start()
    for prepared in model.batches(log, model.training_windows(len(log))):
        model.loss(prepared, state, STEP).total.backward()
    assert len(rank_events(model, log, range(events), model.start())) == events


def test_thresholds_that_make_everything_active_are_refused():
    with pytest.raises(UsageError, match="--active-users 0 and --active-items 0 make every user and item"):
        make_model(make_log(), active_users=0, active_items=0)


def test_events_between_active_entities_write_nothing_and_still_teach():
    log = make_log()
    model = make_model(log, active_users=3, active_items=5, windows=1)
    (prepared,) = model.batches(log, model.training_windows(len(log)))
    assert set(prepared.schedule.event.tolist()) < set(range(len(log))), "some events write nothing"
    model.loss(prepared, model.start(), STEP).total.backward()
    assert model.psi[0].grad.to_dense().abs().sum() > 0
    assert model.psi[1].grad.to_dense().abs().sum() > 0


def test_the_papers_recipe_is_the_papers():
    assert (PAPER.active_users, PAPER.active_items, PAPER.dim, PAPER.windows) == (200, 100, 64, 300)
    assert (PAPER.method, PAPER.solver, PAPER.candidate_id, PAPER.time_gaps) == (
        "longest-path",
        "penalty",
        False,
        False,
    )


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 6)), max_size=40), st.integers(0, 3))
def test_candidate_rows_against_reading_each_one(pairs, active):
    """Every (event, candidate) reads the row that Schedule.rows_before names, moved or not."""
    user = np.array([u for u, _ in pairs], np.int32)
    item = np.array([i for _, i in pairs], np.int32)
    mask = np.arange(8) < active
    prev = Linker(np.zeros(5, bool), mask)(user, item)
    schedule = build_schedule(user, item, prev, np.zeros(0, np.int64))
    chunks = -(-len(pairs) // candidates.CHUNK)
    drawn = [7, 0, 3, 5, 1, 0]  # one of them twice
    items = np.tile(np.array(drawn, np.int32), (chunks, 1))
    found = candidates.candidate_columns(schedule, item, items, 8)
    for k in range(len(pairs)):
        chunk = k // candidates.CHUNK
        read = (found.since[chunk] < k) & (k <= found.until[chunk])
        assert found.candidate[chunk, read].sort().values.tolist() == list(range(len(drawn))), "each is read once"
        for column in read.nonzero().flatten().tolist():
            wanted = drawn[found.candidate[chunk, column]]
            plain = int(schedule.rows_before(wanted, k))
            outside = schedule.rows + int(np.searchsorted(found.outside.numpy(), wanted))
            assert found.item[chunk, column] == wanted
            assert found.row[chunk, column] == (outside if plain < 0 else plain)


def test_state_clones_are_apart():
    state = State(a=torch.zeros(2))
    other = state.clone()
    other["a"] += 1
    assert state["a"].sum() == 0


def test_dropout_is_for_training_alone():
    log = make_log(events=30)
    model = make_model(log, windows=1, dropout=0.5)
    (prepared,) = model.batches(log, model.training_windows(len(log)))
    torch.manual_seed(0)
    noisy = model.train().loss(prepared, model.start(), STEP).total.item()
    exact = exact_loss(model, log).item()
    assert model.eval().loss(prepared, model.start(), STEP).total.item() == pytest.approx(exact, abs=1e-12)
    assert noisy != pytest.approx(exact, abs=1e-6)
