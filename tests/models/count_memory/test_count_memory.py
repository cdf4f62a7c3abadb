"""The memory's counts, shares and mixture, against plain sums over all earlier events."""

import math

import numpy as np
import pytest
import torch
from models.every_model import make_log

from dynedge.data.windows import Window
from dynedge.evaluation.protocol import walk
from dynedge.models.base import State, Step
from dynedge.models.baselines import heuristics as rules
from dynedge.models.count_memory import contexts as store
from dynedge.models.count_memory import hash_table as table
from dynedge.models.count_memory import model as memory
from dynedge.models.count_memory.config import MemoryConfig
from dynedge.models.count_memory.contexts import (
    BY_CONTEXT,
    BY_LOG,
    FIRST,
    FIVE_FADE,
    NEAR_FADE,
    NEAR_POWER,
    REACH,
    RING,
)
from dynedge.models.edge.config import EdgeConfig, RecurrenceConfig
from dynedge.models.edge.model import Edge
from dynedge.models.edge.model import create as create_edge
from dynedge.models.modules import Shape
from dynedge.training.config import TrainingConfig
from dynedge.training.loop import fit
from dynedge.utils.tensor_io import select_prefix

HALF_LIVES = (1e12, 30.0, 4.0)


def history(log, user, end):
    return [int(log.item[k]) for k in range(end) if log.user[k] == user]


def visits(log, end):
    """Every count of every context, in order: (table, context, item, weight, event)."""
    for k in range(end):
        user, item = int(log.user[k]), int(log.item[k])
        past = history(log, user, k)[::-1]
        yield "user", user, item, 1.0, k
        if past:
            yield "last", past[0], item, 1.0, k
            yield "own", (user, past[0]), item, 1.0, k
        if len(past) > 1:
            yield "pair", (past[1], past[0]), item, 1.0, k
        for r, other in enumerate(past[:REACH]):
            yield "near", other, item, NEAR_FADE**r, k
            yield "near", item, other, NEAR_FADE**r, k


def shares(log, name, context, end):
    """{item: [plain, by context, by log, lately]} of a context before event `end`, and its plain total."""
    mine = [
        (item, weight, event)
        for which, key, item, weight, event in visits(log, end)
        if (which, key) == (name, context)
    ]
    n, found = len(mine), {}
    totals = np.zeros(3)
    for place, (item, weight, event) in enumerate(mine):
        lag, age = n - 1 - place, end - event
        counts = weight * np.array([1.0, 2.0 ** (-lag / BY_CONTEXT), 2.0 ** (-age / BY_LOG)])
        totals += counts
        found.setdefault(item, [np.zeros(3), lag])
        found[item][0] += counts
        found[item][1] = lag
    return {i: [*(c / totals), 1 / (1 + lag) / (math.log(n) + 1)] for i, (c, lag) in found.items()}, totals[:1].sum()


def expected_shares(log, k):
    """float[items, sources] of the question event k asks."""
    user, out = int(log.user[k]), np.zeros((log.num_items, store.SOURCES))
    past = history(log, user, k)[::-1]

    def put(name, context, first, ways, weight=1.0):
        for item, values in shares(log, name, context, k)[0].items():
            out[item, first : first + ways] += weight * np.array(values[:ways])

    def put_rows(name, contexts, fade, power, first, ways):
        rows = [(c, fade**r * shares(log, name, c, k)[1] ** power) for r, c in enumerate(contexts) if c is not None]
        rows = [(c, w) for c, w in rows if shares(log, name, c, k)[0]]
        total = sum(w for _, w in rows)
        for context, weight in rows:
            put(name, context, first, ways, weight / total)

    put("user", user, FIRST["user"], 4)
    if past:
        put("last", past[0], FIRST["last"], 4)
        put("own", (user, past[0]), FIRST["own"], 4)
        put_rows("last", past[1:5], FIVE_FADE, 0.0, FIRST["five"], 3)
        put_rows("near", past[:RING], NEAR_FADE, 1 - NEAR_POWER, FIRST["near"], 3)
    if len(past) > 1:
        put("pair", (past[1], past[0]), FIRST["pair"], 4)
    return out


def make_memory(log, **config):
    torch.manual_seed(0)
    model = memory.Memory(MemoryConfig(**{"half_lives": HALF_LIVES, "windows": 3, **config}), Shape.of(log))
    with torch.no_grad():
        for parameter in model.parameters():  # away from zero, so that nothing is right by accident
            parameter.copy_(torch.randn(parameter.shape, generator=torch.Generator().manual_seed(3)) * 0.4)
    return model


def test_shares_are_sums_over_earlier_events():
    log = make_log(events=90, users=5, items=9)
    model = make_memory(log)
    state, found = model.start(), model._found
    for k in range(len(log)):
        known = model._store(state, 1)
        size = store.look(known, model.fading, model.keep, int(log.user[k]), float(log.time[k]), found)
        given = np.zeros((log.num_items, store.SOURCES))
        given[found.items[:size]] = found.share[:size]
        store.forget(found, size)
        assert (found.slot == -1).all()
        # What has faded to less than a millionth is taken for nothing.
        np.testing.assert_allclose(given, expected_shares(log, k), rtol=2e-5, atol=2e-6, err_msg=f"event {k}")
        model.score(Window(log, range(k, k + 1)), None, state)


def test_popularity_fades_by_half_lives():
    log = make_log(events=200)
    model = make_memory(log)
    state = model.start()
    model.score(Window(log, range(len(log))), None, state)
    ages = len(log) - 1 - np.arange(len(log))
    for h, half_life in enumerate(HALF_LIVES):
        weights = np.bincount(log.item, 2.0 ** (-ages / half_life), log.num_items)
        given = state["popular"][h].double().numpy() / float(state["popular_total"][h])
        np.testing.assert_allclose(given, weights / weights.sum(), rtol=1e-4, atol=1e-9)


@pytest.mark.parametrize("config", [{}, {"gate": 0}, {"reshape": 0}, {"contexts": ("last",)}, {"contexts": ()}])
def test_what_is_learned_from_is_what_is_scored(config):
    """With so few items that all are candidates, the loss is that of the scores' own softmax.

    In float32 what sources say is kept with eight bits each.
    """
    log = make_log(events=150)
    for kind, bound in ((torch.float64, 1e-4), (torch.float32, 2e-3)):
        model = make_memory(log, examples=10**6, windows=1, **config).to(kind)
        state, (lesson,) = model.start(), model.windows(log, len(log))
        scores = model.score(lesson.window, None, model.start())
        wanted = torch.nn.functional.cross_entropy(scores, torch.from_numpy(log.item).long())
        given = model.loss(lesson, state, Step(0, 0, 0))
        assert given.log["loss"] == pytest.approx(float(wanted), rel=bound)
    model.passed(lesson, state)
    ended = model.start()
    model.score(lesson.window, None, ended)
    assert all(torch.equal(state[name], ended[name]) for name in state)


def test_lessons_are_the_same_each_epoch_and_from_any_window_on():
    """A run that is gone on with walks the events again; one that goes on by itself does not."""
    log = make_log(events=150)
    walked = make_memory(log, examples=50, windows=5)
    first, again = list(walked.windows(log, 120)), list(walked.windows(log, 120))
    assert all(one is other for one, other in zip(first, again, strict=True))
    resumed = list(make_memory(log, examples=50, windows=5).windows(log, 120, 3))
    for one, other in zip(first[3:], resumed, strict=True):
        assert one.window.events == other.window.events
        assert all(torch.equal(a, b) for a, b in zip(one.examples, other.examples, strict=True))
    assert [lesson.end is not None for lesson in resumed] == [False, True]
    assert all(torch.equal(first[-1].end[name], resumed[-1].end[name]) for name in first[-1].end)
    shorter = list(walked.windows(log, 100))
    assert shorter[-1].window.events.stop == 100


def test_before_the_span_only_what_users_had_and_what_is_popular_is_counted():
    log = make_log(events=150)
    whole, recent, longer = (
        list(make_memory(log, examples=20, windows=5, span=span).windows(log, 150)) for span in (150, 40, 10**9)
    )
    assert [len(lesson.examples.facts) for lesson in recent] == [0, 0, 0, 10, 10]
    for one, other in zip(whole, longer, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(one.examples, other.examples, strict=True))
    end, full = recent[-1].end, whole[-1].end
    assert end is not None and full is not None
    for name in full:
        same = name.startswith(("user.", "popular", "ring", "time", "clock"))
        assert torch.equal(end[name], full[name]) == same, name
    tail = make_memory(log)
    state = tail.start()
    tail.observe(Window(log, range(110, 150)), state)
    assert end["near.used"][1] >= state["near.used"][1]  # those, and what they came after


def test_both_networks_learn():
    log = make_log(events=2000, users=40, items=60)
    model = memory.create(MemoryConfig(windows=5), log, len(log), 0)
    optimiser = torch.optim.Adam(model.parameters(), 1e-2)
    losses = []
    for epoch in range(7):
        state, total = model.start(), 0.0
        for number, lesson in enumerate(model.windows(log, len(log))):
            loss = model.loss(lesson, state, Step(0, epoch, number))
            optimiser.zero_grad()
            loss.total.backward()
            assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())
            if epoch:
                optimiser.step()
            total += loss.log["loss"]
        losses.append(total)
    assert losses[-1] < 0.9 * losses[0]


def test_a_table_grows_and_finds_everything_again():
    state, rng = State(table.empty("t")), np.random.default_rng(0)
    by_context, by_log = table.fading(2.0), table.fading(1000.0)
    plain: dict[tuple[int, int], float] = {}
    for event in range(6000):
        if event % 500 == 0:
            table.make_room(state, "t", 500)
        key, item = int(rng.integers(0, 1500)) << 33, int(rng.integers(0, 4))
        table.add(table.of(state, "t"), key, item, 1.0, event, 0.0, by_context, by_log, 0)
        plain[key, item] = plain.get((key, item), 0) + 1
    whole = table.of(state, "t")
    assert len(whole.entry) > table.ROOM and len(whole.row) > table.ROOM
    for (key, item), count in plain.items():
        entry = table.find_entry(whole, table.find_row(whole, key), item)
        assert whole.entry_count[entry, table.COUNT] == count
    assert table.find_row(whole, 1) == -1
    assert table.find_entry(whole, 0, 77) == -1


def test_a_long_list_is_cut_to_what_matters_and_nothing_is_lost():
    state = State(table.empty("t"))
    by_context, by_log = table.fading(2.0), table.fading(1000.0)
    items = [0] * 5 + [1] * 4 + list(range(2, 9))  # the ninth item makes the list 9 long
    for event, item in enumerate(items):
        table.add(table.of(state, "t"), 7, item, 1.0, event, 0.0, by_context, by_log, 8)

    def listed():
        whole, found = table.of(state, "t"), []
        entry = whole.row[0, table.HEAD]
        while entry != -1:
            found.append(int(whole.entry[entry, table.ITEM]))
            entry = whole.entry[entry, table.NEXT]
        return found

    assert sorted(listed()) == [0, 1, 6, 7, 8]  # cut to four when the eighth came, the two counted most among them
    table.add(table.of(state, "t"), 7, 3, 1.0, len(items), 0.0, by_context, by_log, 8)
    whole = table.of(state, "t")
    assert 3 in listed()
    assert whole.entry_count[table.find_entry(whole, 0, 3), table.COUNT] == 2
    assert whole.used.tolist() == [1, 9]


def rule_by_hand(kind, unseen, log, k):
    """An order of all items by the rule's words, as a score."""
    user = int(log.user[k])
    past, score = history(log, user, k), np.zeros(log.num_items)
    counts = np.bincount(log.item[:k], minlength=log.num_items) / max(k, 1)
    if kind == "popular":
        score = counts.copy()
    elif kind == "recent":
        for place, item in enumerate(past):
            score[item] = 1 + place
    elif past:
        context = ("last", past[-1]) if kind == "next" else None
        for item, values in (shares(log, *context, k)[0] if context else {}).items():
            score[item] = values[0]
    if kind != "popular":
        score = score + 1e-6 * counts
    if unseen:
        score[past] = -1000.0  # last, in whatever order
    return score


@pytest.mark.parametrize("unseen", [False, True])
@pytest.mark.parametrize("kind", ["popular", "recent", "next"])
def test_a_rule_ranks_as_its_words_say(kind, unseen):
    log = make_log(events=120)
    model = rules.create(rules.RuleConfig(kind, 0.0, unseen), log, len(log), 0)
    found = model.score(Window(log, range(len(log))), None, model.start())
    for k in range(5, len(log)):
        wanted, given = rule_by_hand(kind, unseen, log, k), found[k].double().numpy()
        for i in range(log.num_items):
            for j in range(log.num_items):
                if wanted[i] > wanted[j] + 1e-7:  # what float32 can tell apart beside a share of one
                    assert given[i] > given[j], (k, i, j)


def test_a_rule_learns_nothing():
    log = make_log()
    model = rules.create(rules.RuleConfig("next"), log, len(log), 0)
    state, ended = model.start(), model.start()
    for number, lesson in enumerate(model.windows(log, len(log))):
        assert not model.loss(lesson, state, Step(0, 0, number)).total.requires_grad
        model.passed(lesson, state)
        model.observe(lesson.window, ended)
    assert all(torch.equal(state[name], ended[name]) for name in state)
    assert not [p for p in model.parameters() if p.requires_grad]


def make_edge(log, train_end):
    config = EdgeConfig(RecurrenceConfig(dim=4, windows=3), MemoryConfig(half_lives=HALF_LIVES))
    return create_edge(config, log, train_end, 0).eval()


def test_the_fused_scores_are_the_experts_added():
    log = make_log()
    model, window = make_edge(log, 90), Window(log, range(len(log)))
    model.weight.fill_(0.7)
    apart = model.memory.score(window, None, model.memory.start())
    evolved = model.recurrence.score(model.recurrence.prepare(window), None, model.recurrence.start())
    with torch.no_grad():
        fused = model.score(model.prepare(window), None, model.start())
    assert torch.allclose(fused, apart + 0.7 * evolved, atol=1e-5)


def test_the_best_epoch_chooses_its_weight_on_more_events_at_last(monkeypatch):
    log = make_log(events=400)
    config = TrainingConfig(epochs=2, patience=0, split="0.6,0.3,0.1", valid_events=10, device="cpu")
    told, choose = [], Edge.calibrate

    def calibrate(model, log, events, state, among):
        chosen = choose(model, log, events, state, among)
        model.weight.fill_(len(events) / 100)
        told.append((events, {name: tensor.clone() for name, tensor in model.state_dict().items()}))
        return chosen

    monkeypatch.setattr(Edge, "calibrate", calibrate)
    course = fit(make_edge(log, 240), log, config)
    assert [events for events, _ in told] == [range(240, 250)] * 2 + [range(240, 290)]
    kept = select_prefix(course.best.tensors, "model")
    assert kept["weight"] == 0.5
    assert all(
        torch.equal(tensor, told[course.best.epoch][1][name]) for name, tensor in kept.items() if name != "weight"
    )
    assert all(torch.equal(tensor, told[1][1][name]) for name, tensor in course.model.state_dict().items())


@pytest.mark.parametrize("threads", [1, 3])
def test_candidates_score_as_they_do_among_all(threads, monkeypatch):
    """To the bit, the ones that no context knows of and the ones named twice among them; in one thread or several."""
    log = make_log(events=300)
    model, some = make_memory(log), torch.randint(log.num_items, (300, 7), generator=torch.manual_seed(0))
    window, one, other = Window(log, range(300)), model.start(), model.start()
    every = model.score(window, None, one)
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
    assert torch.equal(model.score(window, some, other), every.gather(1, some))
    assert len(model._rooms(other, 1)) == threads
    assert torch.equal(model.score(window, None, model.start()), every)
    assert all(torch.equal(tensor, other[name]) for name, tensor in one.items()), "the states move alike"


def test_copies_are_given_up_when_the_state_moves_without_them(monkeypatch):
    """Observed, supposed, another state, a window at a time: as if there had never been any."""
    log = make_log(events=300)
    alone, helped, found = make_memory(log), make_memory(log), []
    for model, threads in ((alone, 1), (helped, 3)):
        monkeypatch.setattr(torch, "get_num_threads", lambda threads=threads: threads)
        state, scores = model.start(), []
        for start in range(0, 300, 50):
            cut = [Window(log, range(start + k, start + k + 10)) for k in range(0, 50, 10)]
            scores += [model.score(cut[0], None, state), model.score(cut[1], None, state)]
            model.observe(cut[2], state)
            scores.append(model.score(cut[3], None, state.clone()))
            model.suppose(Window(log, range(start, start + 1)), state)()
            scores.append(model.score(cut[3], None, state))
            model.observe(cut[4], state)
        found.append((torch.cat(scores), state))
    assert len(helped._rooms(helped.start(), 300)) == 3
    assert torch.equal(found[0][0], found[1][0])
    assert all(torch.equal(tensor, found[1][1][name]) for name, tensor in found[0][1].items())


def test_the_weight_is_chosen_among_drawn_items_where_there_are_many():
    log = make_log(events=400)
    told = []
    for most in (3, 1000):
        config = TrainingConfig(epochs=1, split="0.6,0.3,0.1", full_ranking_up_to=most, device="cpu")
        told.append(fit(make_edge(log, 300), log, config).history[0])
    assert [one["valid_protocol"] for one in told] == ["sampled-9999", "full"]
    for name in ("weight", "valid_mrr"):
        assert told[0][name] == told[1][name], "of fewer than 9,999 others all are drawn"


def test_a_recurrence_that_only_hurts_gets_no_weight():
    log = make_log(events=400)
    model = make_edge(log, 300)
    state = model.start()
    with torch.no_grad():
        model.score(model.prepare(Window(log, range(300))), None, state)
    sound = model.recurrence.score

    def misleading(prepared, candidates, states):
        scores = sound(prepared, candidates, states)
        scores[torch.arange(len(scores)), torch.from_numpy(prepared.window.item).long()] -= 100.0
        return scores

    model.weight.fill_(1.0)
    model.recurrence.score = misleading
    assert model.calibrate(log, range(300, 400), state.clone())[0] == {"weight": 0.0}

    def knowing(prepared, candidates, states):
        return -misleading(prepared, candidates, states)

    model.recurrence.score = knowing
    told, ranks = model.calibrate(log, range(300, 400), state.clone())
    assert told["weight"] > 0
    assert np.array_equal(ranks, walk(model, log, range(300, 400), state.clone()))
