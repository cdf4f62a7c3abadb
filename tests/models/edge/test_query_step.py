"""The compiled step of queries against tensor operations: odd sizes, absent parts, new entities, poisoned memory."""

import pytest
import torch
from models.edge.reference_recurrence import make_log, make_model

from dynedge.data.windows import Window
from dynedge.models.edge.query_step import QueryStep

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("poisoned")]

SETTINGS = [
    {"dim": 64},
    {"dim": 3},
    {"dim": 70, "popularity": False},
    {"copy_path": False},
    {"candidate_id_up_to": 0},
    {"history": False, "candidate_id_up_to": 0},
    {"successors": False},
    {"history": False, "successors": False},
    {"active_users": 40, "active_items": 4},
]


def observed(events=400, items=300, **settings):
    """A model with states, parameters that are not zero, and items, users and lists of all kinds."""
    log = make_log(events=events, items=items)
    log.item[::2] %= 3  # longer lists of what followed than are kept
    model = make_model(log, **settings).float().eval()
    state = model.start()
    with torch.no_grad():
        model.observe(Window(log, range(events)), state)
    return log, model, state


def assert_equal_to_tensor_operations(model, state, last_time):
    users = torch.arange(model.shape.users)
    for times in (torch.full(users.shape, last_time + 5.0).double(), last_time * torch.rand(len(users)).double()):
        with torch.no_grad():
            expected = model.score_queries(users, times, state)
            scores = model._query_step.scores(users, times, state)
        assert torch.isfinite(scores).all()
        close = {"rtol": 0, "atol": 3e-6 * float(expected.abs().max())}  # both are sums of dozens of such numbers
        torch.testing.assert_close(scores, expected, **close)
        assert torch.equal(model._query_step.scores(users[1:2], times[1:2], state)[0], scores[1])
        matrix = model.item_matrix(torch.arange(model.shape.items), state)
        for user in users.tolist():
            base, query = model._query_step.query_vector(user, float(times[user]), state)
            torch.testing.assert_close(base + matrix @ query, expected[user], **close)


@pytest.mark.parametrize("settings", SETTINGS)
def test_scores_and_search_queries_equal_those_of_tensor_operations(settings):
    log, model, state = observed(**settings)
    assert QueryStep.supports(model)
    assert_equal_to_tensor_operations(model, state, float(log.time[-1]))


def test_queries_follow_parameters_new_entities_and_a_replaced_state():
    log, model, state = observed()
    now = float(log.time[-1])
    before = model._query_step.scores(torch.tensor([1]), torch.tensor([now]), state)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(0.7)
        model.grow(model.shape.users + 3, model.shape.items + 200, state)
    assert_equal_to_tensor_operations(model, state, now)
    model.grow(model.shape.users + 100, model.shape.items + 2000, state)
    assert len(model._query_step._current_weights().entities.psi_row[1]) == model.shape.items
    assert_equal_to_tensor_operations(model, state, now)
    with torch.no_grad():
        model.observe(Window(log, range(1)), state)
    assert_equal_to_tensor_operations(model, state, now)
    assert_equal_to_tensor_operations(model, model.start(), now)
    assert not torch.equal(
        before[0], model._query_step.scores(torch.tensor([1]), torch.tensor([now]), state)[0, :302]
    )


@pytest.mark.parametrize("settings", [{"time_gaps": False}, {"item_id": False, "categories": False}])
def test_other_models_are_scored_by_tensor_operations(settings):
    log, model, state = observed(**settings)
    assert not QueryStep.supports(model)
    with torch.no_grad():
        assert torch.isfinite(model.score_query(torch.tensor([1]), torch.tensor([log.time[-1]]), None, state)).all()
    assert "_query_step" not in vars(model)


def test_training_and_bfloat16_use_tensor_operations():
    model = observed()[1]
    assert not QueryStep.supports(model.train())
    with torch.autocast("cpu", torch.bfloat16):
        assert not QueryStep.supports(model.eval())
    assert not QueryStep.supports(model.double())
