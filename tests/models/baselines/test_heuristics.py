"""The heuristics rank as their descriptions say, and learn nothing."""

import numpy as np
import pytest
import torch
from models.count_memory.reference_counts import history, row_probabilities
from models.every_model import make_log

from dynedge.data.windows import Window
from dynedge.models.base import Step
from dynedge.models.baselines import heuristics
from dynedge.models.baselines.heuristics import HeuristicConfig


def expected_scores(kind, unseen, log, k):
    """Scores that order all items as the heuristic's description says."""
    user = int(log.user[k])
    past, score = history(log, user, k), np.zeros(log.num_items)
    popularity = np.bincount(log.item[:k], minlength=log.num_items) / max(k, 1)
    if kind == "popular":
        score = popularity.copy()
    elif kind == "recent":
        for place, item in enumerate(past):
            score[item] = 1 + place
    elif past:
        for item, values in row_probabilities(log, "last", past[-1], k)[0].items():
            score[item] = values[0]
    if kind != "popular":
        score = score + 1e-6 * popularity
    if unseen:
        score[past] = -1000.0  # last, in any order
    return score


@pytest.mark.parametrize("unseen", [False, True])
@pytest.mark.parametrize("kind", ["popular", "recent", "next"])
def test_a_heuristic_ranks_as_described(kind, unseen):
    log = make_log(events=120)
    model = heuristics.Heuristic.create(HeuristicConfig(kind, 0.0, unseen), log, len(log), 0)
    scores = model.score(Window(log, range(len(log))), None, model.start())
    for k in range(5, len(log)):
        expected, given = expected_scores(kind, unseen, log, k), scores[k].double().numpy()
        for i in range(log.num_items):
            for j in range(log.num_items):
                if expected[i] > expected[j] + 1e-7:  # the resolution of float32 next to a probability of one
                    assert given[i] > given[j], (k, i, j)


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
