"""The heuristics rank as their descriptions say, and learn nothing."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from models.count_memory.reference_counts import Expected, Rules, history
from models.every_model import make_log

from dynedge.data.windows import Window
from dynedge.models.base import Step
from dynedge.models.baselines import heuristics
from dynedge.models.baselines.heuristics import CONTEXTS, HeuristicConfig
from dynedge.models.count_memory.config import MemoryConfig
from dynedge.models.count_memory.contexts import SOURCE


def popularity_before(log, k, half_life):
    weights = 2.0 ** (-(k - 1 - np.arange(k)) / (half_life or 1e12))
    return np.bincount(log.item[:k], weights, log.num_items) / weights.sum()


def context_scores(kind, half_life, log, k):
    """Probabilities of all items under the one source that the heuristic is about."""
    context = CONTEXTS[kind]
    rules = Rules(MemoryConfig((context,), history_events=10**9, occurrences=10**9))
    if half_life:
        rules = replace(rules, log_half_life=half_life)
    if kind == "next-five":
        rules = replace(rules, near_items=5, near_before=(0.0,) * 5, near_after=(1.0,) * 5)
    source = SOURCE[context, "log-decayed" if half_life else "plain"]
    return Expected(log, k, rules).probabilities()[:, source]


def expected_scores(kind, half_life, unseen, log, k):
    """Scores that order all items as the heuristic's description says."""
    past, score = history(log, int(log.user[k]), k), np.zeros(log.num_items)
    if kind == "popular":
        score = popularity_before(log, k, half_life)
    elif kind == "recent":
        for place, item in enumerate(past):
            score[item] = 1 + place
    else:
        score = context_scores(kind, half_life, log, k)
    if kind != "popular":
        score = score + 1e-6 * popularity_before(log, k, 0)
    if unseen:
        score[past] = -1000.0  # last, in any order
    return score


@pytest.mark.parametrize("unseen", [False, True])
@pytest.mark.parametrize(
    ("kind", "half_life"),
    [
        ("popular", 0.0),
        ("popular", 7.0),
        ("recent", 0.0),
        ("next", 0.0),
        ("next", 4.0),
        ("next-five", 0.0),
        ("next-five", 4.0),
        ("near", 0.0),
    ],
)
def test_a_heuristic_ranks_as_described(kind, half_life, unseen):
    log = make_log(events=120)
    model = heuristics.Heuristic.create(HeuristicConfig(kind, half_life, unseen), log, len(log), 0)
    scores = model.score(Window(log, range(len(log))), None, model.start())
    orders = 0
    for k in range(5, len(log)):
        expected, given = expected_scores(kind, half_life, unseen, log, k), scores[k].double().numpy()
        above = expected[:, None] > expected + 1e-7 * np.maximum(expected, 1)  # the resolution of float32
        wrong = np.argwhere(above & (given[:, None] <= given))
        assert not len(wrong), (k, wrong)
        orders += above.sum()
    assert orders > 1000


def test_a_heuristic_learns_nothing():
    log = make_log()
    model = heuristics.Heuristic.create(HeuristicConfig("next"), log, len(log), 0)
    state, observed = model.start(), model.start()
    for number, examples in enumerate(model.batches(log, model.training_windows(len(log)))):
        assert not model.loss(examples, state, Step(0, 0, number)).total.requires_grad
        model.after_step(examples, state)
        model.observe(examples.window, observed)
    assert all(torch.equal(state[name], observed[name]) for name in state)
    assert not [p for p in model.parameters() if p.requires_grad]
