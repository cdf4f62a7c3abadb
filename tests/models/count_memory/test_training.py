"""Training the gating and rescaling networks: the examples, their cache, the loss."""

import numpy as np
import pytest
import torch
from models.count_memory.reference_counts import HALF_LIVES, make_memory
from models.every_model import make_log

from dynedge.data.log import EventLog
from dynedge.models.base import Step
from dynedge.models.count_memory import model as memory
from dynedge.models.count_memory.candidate_buffer import allocate_buffer
from dynedge.models.count_memory.collect_examples import NO_CANDIDATE, SAMPLED, TOP, _choose_candidates
from dynedge.models.count_memory.config import CONTEXTS, StandaloneMemoryConfig
from dynedge.models.count_memory.gating import MIN_DEVIATION


def batches(model, log, end, first=0):
    return model.batches(log, model.training_windows(end), first)


@pytest.mark.parametrize(
    "config",
    [
        {},
        {"gating_hidden": 0},
        {"rescaling_hidden": 0},
        {"occurrences": 3, "history_events": 4},
        *({"contexts": (name,)} for name in CONTEXTS),
        {"contexts": ()},
    ],
    ids=str,
)
def test_the_loss_is_the_cross_entropy_of_the_scores(config):
    """With so few items that all candidates are in the examples. In float32 these are stored as bfloat16."""
    log = make_log(events=150)
    for dtype, tolerance in ((torch.float64, 1e-4), (torch.float32, 2e-3)):
        model = make_memory(log, training_examples=10**6, windows=1, **config).to(dtype)
        state, (examples,) = model.start(), model.batches(log, model.training_windows(len(log)))
        scores = model.score(examples.window, None, model.start()).log()
        expected = torch.nn.functional.cross_entropy(scores, torch.from_numpy(log.item).long())
        given = model.loss(examples, state, Step(0, 0, 0))
        assert given.log["loss"] == pytest.approx(float(expected), rel=tolerance)
    model.after_step(examples, state)
    end_state = model.start()
    model.score(examples.window, None, end_state)
    assert all(torch.equal(state[name], end_state[name]) for name in state)


def test_examples_are_cached_and_a_resumed_run_collects_the_same():
    log = make_log(events=150)
    model = make_memory(log, training_examples=50, windows=5)
    first, again = list(batches(model, log, 120)), list(batches(model, log, 120))
    assert all(one is other for one, other in zip(first, again, strict=True))
    resumed = list(batches(make_memory(log, training_examples=50, windows=5), log, 120, 3))
    for one, other in zip(first[3:], resumed, strict=True):
        assert one.window.events == other.window.events
        assert all(torch.equal(a, b) for a, b in zip(one.examples, other.examples, strict=True))
    assert [examples.end_state is not None for examples in resumed] == [False, True]
    assert all(torch.equal(first[-1].end_state[name], resumed[-1].end_state[name]) for name in first[-1].end_state)
    shorter = list(model.batches(log, model.training_windows(100)))
    assert shorter[-1].window.events.stop == 100


def _rows(batches):
    """Every example as a tuple of its numbers, in order."""
    return [tuple(row.tolist()) for batch in batches for row in batch.examples.query_features]


def test_later_epochs_read_the_examples_shuffled():
    log = make_log(events=300)
    model = make_memory(log, training_examples=200, windows=5)
    model.start_epoch(0)
    first = _rows(batches(model, log, 250))
    model.start_epoch(1)
    later = list(batches(model, log, 250))
    assert sorted(_rows(later)) == sorted(first)
    assert _rows(later) != first
    of_last_window = set(first[-40:])
    assert sum(row in of_last_window for row in _rows(later[:4])) > 10  # across windows, not only inside them
    assert _rows(batches(model, log, 250)) == _rows(later)
    resumed = make_memory(log, training_examples=200, windows=5)
    resumed.start_epoch(2)
    for one, other in zip(later[3:], batches(resumed, log, 250, 3), strict=True):
        assert all(torch.equal(a, b) for a, b in zip(one.examples, other.examples, strict=True))


def test_segments_are_shuffled_among_themselves_whichever_process_has_them():
    log = make_log(events=300)
    windows = make_memory(log, windows=4).training_windows(250)
    rows = []
    for segments in ([range(2), range(2, 4)], [range(2, 4)]):
        model = make_memory(log, training_examples=200, windows=4)
        model.prepare_segments(log, windows, segments)
        before = _rows(model.segment_batches(log, windows, range(2, 4)))
        model.start_epoch(1)
        rows.append(_rows(model.segment_batches(log, windows, range(2, 4))))
        assert sorted(before) == sorted(rows[-1])
        assert before != rows[-1]
    assert rows[0] == rows[1]


def test_threads_collect_the_same_examples(monkeypatch):
    log, results = make_log(events=300), []
    for threads in (1, 3):
        monkeypatch.setattr(torch, "get_num_threads", lambda threads=threads: threads)
        model = make_memory(log, training_examples=120, windows=2)
        results.append(list(batches(model, log, 300)))
        assert len(model._scratch) == threads
    for one, other in zip(*results, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(one.examples, other.examples, strict=True))
    ends = [result[-1].end_state for result in results]
    assert all(torch.equal(tensor, ends[1][name]) for name, tensor in ends[0].items())


@pytest.mark.parametrize(("users", "items"), [(8, 30), (20, 400)])
def test_the_candidates_of_an_example_represent_all_items(users, items):
    """Where none was left out, probabilities sum to one under every source."""
    log = make_log(events=400, users=users, items=items)
    model = make_memory(log, training_examples=400, windows=1).double()
    (batch,) = batches(model, log, 400)
    examples = batch.examples
    weight = examples.log_weight.double().exp()
    total = (examples.probability * weight[:, :, None]).sum(1)
    is_complete = ((examples.log_weight == 0) | (examples.log_weight == NO_CANDIDATE)).all(1)
    assert is_complete.any()
    assert (items > 100) == (not is_complete.all())
    expected = examples.source_mask[is_complete].double()
    expected[0, 1 : 1 + len(HALF_LIVES)] = 0  # popularity before the first event
    assert torch.allclose(total[is_complete], expected, atol=1e-4)


def test_every_candidate_represents_one_on_average():
    """The more probable ones are sampled more often, and weighted less."""
    size, true_item, offsets = 300, 7, 20_000
    buffer = allocate_buffer(size, size, 0)
    rng = np.random.default_rng(0)
    buffer.items[:] = rng.permutation(size)
    buffer.probability[:] = rng.random(size) ** 8 + 1e-3
    represented, chosen_by = np.zeros(size), np.zeros(size)
    for number in range(offsets):
        items, log_weights = _choose_candidates(buffer, size, true_item, (number + 0.5) / offsets)
        assert items[0] == true_item
        assert len(items) == len(set(items)) <= 1 + TOP + SAMPLED
        represented[items] += np.exp(log_weights) / offsets
        chosen_by[items] += 1 / offsets
    assert np.allclose(represented, 1, atol=0.05)
    by_probability = buffer.items[np.argsort(-buffer.probability)]
    always = by_probability[by_probability != true_item][:TOP]
    assert np.allclose(chosen_by[always], 1)
    assert chosen_by[by_probability[TOP + 1 : 60]].mean() > 3 * chosen_by[by_probability[-100:]].mean()


@pytest.mark.parametrize(
    "config", [{}, {"rescaling_second": 0}, {"gating_hidden": 0}, {"rescaling_hidden": 0}], ids=str
)
def test_the_kernels_read_the_inputs_as_they_are(config):
    """Layers of standardized inputs, and the weights by which the kernels read them as they are."""
    log = make_log(events=300)
    model = memory.CountMemory.create(StandaloneMemoryConfig(windows=1, **config), log, 250, 0)
    mixture, weights = model.mixture, model.mixture.weights()
    (batch,) = batches(model, log, 250)
    query, inputs = batch.examples.query_features, batch.examples.inputs.float()
    assert (mixture.mean != 0).any()
    assert mixture.scale.max() <= 1 / MIN_DEVIATION + 1e-6
    both = torch.cat([inputs, query[:, None].expand(-1, inputs.shape[1], -1)], 2)
    standardized = (both - mixture.mean) * mixture.scale
    if mixture.rescaling_in is not None:
        raw = both @ torch.from_numpy(np.concatenate([weights.rescaling_in, weights.rescaling_query], 1)).T
        raw += torch.from_numpy(weights.rescaling_bias)
        assert torch.allclose(raw, mixture.rescaling_in(standardized), atol=1e-5)
    if mixture.gating_in is not None:
        raw = query @ torch.from_numpy(weights.gating_in).T + torch.from_numpy(weights.gating_bias)
        assert torch.allclose(raw, mixture.gating_in(standardized[:, 0, inputs.shape[2] :]), atol=1e-5)


def test_inputs_are_standardized_by_training_events_alone():
    log = make_log(events=300)
    other = EventLog.from_arrays(
        log.user,
        np.where(np.arange(300) < 250, log.item, 0),
        log.time,
        num_users=log.num_users,
        num_items=log.num_items,
    )
    models = [memory.CountMemory.create(StandaloneMemoryConfig(), one, 250, 0) for one in (log, other)]
    for name in ("mean", "scale"):
        assert torch.equal(*(getattr(model.mixture, name) for model in models))


def test_without_training_events_inputs_stay_as_they_are():
    model = memory.CountMemory.create(StandaloneMemoryConfig(), make_log(events=10), 0, 0)
    assert (model.mixture.mean == 0).all()
    assert (model.mixture.scale == 1).all()


def test_both_networks_learn():
    log = make_log(events=2000, users=40, items=60)
    model = memory.CountMemory.create(StandaloneMemoryConfig(windows=5), log, len(log), 0)
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    losses = []
    for epoch in range(7):
        state, total = model.start(), 0.0
        for number, examples in enumerate(model.batches(log, model.training_windows(len(log)))):
            loss = model.loss(examples, state, Step(0, epoch, number))
            optimizer.zero_grad()
            loss.total.backward()
            assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())
            if epoch:
                optimizer.step()
            total += loss.log["loss"]
        losses.append(total)
    assert losses[-1] < 0.9 * losses[0]
