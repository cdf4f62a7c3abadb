"""`edge` adds the scores of its two experts, with a weight chosen on the validation events."""

import numpy as np
import pytest
import torch
from models.count_memory.reference_counts import HALF_LIVES
from models.every_model import make_log

from dynedge.data.windows import Window
from dynedge.evaluation import protocol
from dynedge.evaluation.protocol import calibrate, rank_events
from dynedge.models.base import Step
from dynedge.models.count_memory.config import MemoryConfig
from dynedge.models.edge.config import EdgeConfig, RecurrenceConfig
from dynedge.models.edge.model import Edge
from dynedge.ops.all_scores.by_block import given_scores
from dynedge.ops.item_ranks import ranks
from dynedge.training import loop
from dynedge.training.config import TrainingConfig
from dynedge.training.loop import fit
from dynedge.utils.tensor_io import select_prefix


def make_edge(log, train_end):
    config = EdgeConfig(RecurrenceConfig(dim=4, windows=3), MemoryConfig(half_lives=HALF_LIVES))
    return Edge.create(config, log, train_end, 0).eval()


def test_fused_scores_are_the_weighted_sum_of_the_experts():
    log = make_log()
    model, window = make_edge(log, 90), Window(log, range(len(log)))
    model.weight.fill_(0.7)
    counted = model.memory.score(window, None, model.memory.start())
    evolved = model.recurrence.score(model.recurrence.prepare(window), None, model.recurrence.start())
    with torch.no_grad():
        fused = model.score(model.prepare(window), None, model.start())
    assert torch.allclose(fused, counted.log() + 0.7 * evolved, atol=1e-5)


@pytest.mark.parametrize("weight", [0.0, 0.3, -0.3])
@pytest.mark.parametrize("items", [20, 300])
def test_ranks_are_those_of_the_scores(items, weight):
    """Exactly, also the ties of items without events; the state advances alike."""
    log = make_log(events=300, users=12, items=items)
    model, window = make_edge(log, 200), Window(log, range(300))
    model.weight.fill_(weight)
    one, other, true = model.start(), model.start(), torch.from_numpy(log.item).long()
    with torch.no_grad():
        scores = model.score(model.prepare(window), None, one)
        found = model.rank(model.prepare(window), None, true, other).numpy()
    query = torch.arange(3), torch.full((3,), 1e6, dtype=torch.float64), None, one
    assert not model.score_query(*query).requires_grad
    if weight == 0:  # without the rounding of the logarithm
        scores = model.memory.score(window, None, model.memory.start())
    np.testing.assert_array_equal(found, ranks(scores, true))
    assert (found % 1 == 0.5).any(), "some are ties"
    assert one.keys() == other.keys()
    assert all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("given", [False, True])
def test_ranks_by_several_weights_are_those_of_each(given, threads, monkeypatch):
    """Scored block by block, or by given rows of scores, as they come from a GPU."""
    log = make_log(events=700, users=12, items=300)
    model, window = make_edge(log, 400), Window(log, range(400, 700))
    true, recurrence = torch.from_numpy(log.item[400:]).long(), model.recurrence
    with torch.no_grad():
        start = model.start()
        model.observe(Window(log, range(400)), start)
        by_weight = []
        for weight in model.calibration_options():
            model.weight.fill_(weight or 1e-30)  # not 0: without the rounding of the logarithm
            by_weight.append(ranks(model.score(model.prepare(window), None, start.clone()), true))
        if given:
            recurrence.scores_by_block = lambda batch, states: given_scores(recurrence.score(batch, None, states))
        monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
        found = model.calibration_ranks(model.prepare(window), None, true, start.clone())
    np.testing.assert_array_equal(found, by_weight)
    assert len({tuple(row) for row in by_weight}) > 5, "weights matter"


def test_with_no_weight_the_scores_are_those_of_the_memory_and_both_experts_advance():
    log = make_log()
    model, window, states = make_edge(log, 90), Window(log, range(len(log))), []
    candidates = torch.randint(log.num_items, (len(log), 4), generator=torch.manual_seed(0))
    counted = model.memory.score(window, None, model.memory.start()).log()
    with torch.no_grad():
        for weight in (0.7, 0.0):
            model.weight.fill_(weight)
            states.append(model.start())
            scores = model.score(model.prepare(window), None, states[-1])
        assert torch.equal(scores, counted)
        assert torch.equal(
            model.score(model.prepare(window), candidates, model.start()), counted.gather(1, candidates)
        )
    assert all(torch.equal(tensor, states[1][name]) for name, tensor in states[0].items())


def test_each_expert_trains_as_it_does_alone():
    """With large gradients too: those of one expert are not clipped by the norm of both."""
    log, config = make_log(events=400), TrainingConfig(epochs=1, max_grad_norm=1e-3, device="cpu")
    edge = make_edge(log, 320)
    memory, recurrence = make_edge(log, 320).memory, make_edge(log, 320).recurrence
    memory.training_windows = edge.training_windows  # alone it would cut as many windows as its own config has
    for model in (edge, memory, recurrence):
        fit(model, log, config)
    for expert, alone in ((edge.memory, memory), (edge.recurrence, recurrence)):
        trained = dict(alone.named_parameters())
        for name, parameter in expert.named_parameters():
            assert torch.equal(parameter, trained[name]), name


def test_the_best_epoch_is_calibrated_again_on_more_events(monkeypatch):
    log = make_log(events=400)
    config = TrainingConfig(epochs=2, patience=0, split="0.6,0.3,0.1", validation_events=10, device="cpu")
    calls, original = [], loop.calibrate

    def calibrate(model, log, events, state, **settings):
        chosen, ranks = original(model, log, events, state, **settings)
        model.weight.fill_(len(events) / 100)
        calls.append((events, {name: tensor.clone() for name, tensor in model.state_dict().items()}))
        return chosen, ranks * len(calls)  # the first epoch is the best

    monkeypatch.setattr(loop, "calibrate", calibrate)
    course = fit(make_edge(log, 240), log, config)
    assert [events for events, _ in calls] == [range(240, 250)] * 2 + [range(240, 290)]
    best = select_prefix(course.best.tensors, "model")
    assert (course.best.epoch, best["weight"]) == (0, 0.5)
    calibrated = calls[2][1]
    assert all(torch.equal(tensor, calls[0][1][name]) for name, tensor in calibrated.items() if name != "weight")
    assert all(
        torch.equal(tensor, calls[course.best.epoch][1][name]) for name, tensor in best.items() if name != "weight"
    )
    assert all(torch.equal(tensor, calls[1][1][name]) for name, tensor in course.model.state_dict().items())


def test_with_many_items_the_weight_is_chosen_by_sampled_ranks():
    log = make_log(events=400)
    epochs = []
    for most in (3, 1000):
        config = TrainingConfig(epochs=1, split="0.6,0.3,0.1", full_ranking_up_to=most, device="cpu")
        epochs.append(fit(make_edge(log, 240), log, config).history[0])
    assert [epoch["valid_protocol"] for epoch in epochs] == ["sampled-9999", "full"]
    for name in ("weight", "valid_mrr"):
        assert epochs[0][name] == epochs[1][name], "with fewer than 9,999 other items all are sampled"


def test_the_weight_is_chosen_by_mrr_not_by_the_mean_rank(monkeypatch):
    log = make_log()
    model = make_edge(log, 90)
    by_option = np.array([[5.0, 5.0], [1.0, 100.0], [4.0, 3.0]])
    monkeypatch.setattr(model, "calibration_options", lambda: (0.0, 0.25, 0.5))
    monkeypatch.setattr(model, "calibration_ranks", lambda batch, *_: by_option[:, : len(batch.window)])
    monkeypatch.setattr(protocol, "standard_errors", lambda below, user: np.zeros(below.shape[1]))
    chosen, ranks = calibrate(model, log, range(90, 92), model.start(), protocol="full")
    assert (chosen, ranks.tolist()) == ({"weight": 0.25}, [1.0, 100.0])
    assert model.weight == 0.25


def test_the_smallest_weight_within_a_standard_error_of_the_best_is_chosen():
    """The error is clustered: many alike events of one user tell no more than one."""
    best = np.full(4, 0.5)
    close, far = best - [0.3, 0.1, -0.2, -0.1], best - [0.2, 0.3, 0.2, 0.3]
    assert protocol.first_near_best(np.stack([far, close, best]), np.arange(4)) == 1
    alike = np.stack([best - [0.2, 0.2, 0.2, -0.2], best])  # 0.1 below; the error is 0.087 by event, 0.106 by user
    assert protocol.first_near_best(alike, np.arange(4)) == 1
    assert protocol.first_near_best(alike, np.array([0, 0, 0, 1])) == 0


def test_both_experts_are_trained():
    log = make_log()
    model = make_edge(log, 90).train()
    state = model.start()
    for number, batch in enumerate(model.batches(log, model.training_windows(90))):
        model.loss(batch, state, Step(0, 0, number)).total.backward()
        model.after_step(batch, state)
    for expert in (model.memory, model.recurrence):
        gradients = [parameter.grad for parameter in expert.parameters() if parameter.grad is not None]
        assert sum(float(gradient.to_dense().abs().sum()) for gradient in gradients) > 0


def test_shares_of_an_explanation_add_up_to_one():
    log = make_log()
    model = make_edge(log, 90)
    model.weight.fill_(2.0)
    with torch.no_grad():
        state = model.start()
        model.observe(Window(log, range(len(log))), state)
        explanations = model.explain(int(log.user[-1]), float(log.time[-1]), torch.arange(log.num_items), state)
    assert all(abs(sum(one.shares.values()) - 1) < 1e-5 for one in explanations)
    assert max(one.shares["states"] for one in explanations) > 0.01


def test_a_recurrence_that_only_hurts_gets_no_weight():
    log = make_log(events=400)
    model = make_edge(log, 300)
    state = model.start()
    with torch.no_grad():
        model.score(model.prepare(Window(log, range(300))), None, state)
    original = model.recurrence.score

    def misleading(prepared, states):
        scores = original(prepared, None, states)
        scores[torch.arange(len(scores)), torch.from_numpy(prepared.window.item).long()] -= 100.0
        return scores

    model.weight.fill_(1.0)
    model.recurrence.scores_by_block = lambda *given: given_scores(misleading(*given))
    assert calibrate(model, log, range(300, 400), state.clone(), protocol="full")[0] == {"weight": 0.0}

    model.recurrence.scores_by_block = lambda *given: given_scores(-misleading(*given))
    chosen, ranks = calibrate(model, log, range(300, 400), state.clone(), protocol="full")
    assert chosen["weight"] > 0
    assert np.array_equal(ranks, rank_events(model, log, range(300, 400), state.clone()))


def test_the_id_of_an_item_learns_the_faster_the_more_training_events_it_has():
    """Items 0 and 20 of the log have no events; after training on a part of it, more have none."""
    log = make_log(events=400, items=20)
    model, config = make_edge(log, 320), TrainingConfig(epochs=2, device="cpu")
    fit(model, log, config)
    table, events = model.recurrence.candidate, torch.bincount(torch.from_numpy(log.item[:320]).long(), minlength=21)
    share = events / (events + 10)
    torch.testing.assert_close(table.row_lr_scale, share)
    assert (events == 0).sum() >= 2
    assert not table[events == 0].any(), "the id of an item without training events stays at zero"
    moved = table.detach().abs().amax(1)
    assert moved[events > 40].min() > 1.5 * moved[(events > 0) & (events < 10)].max()
