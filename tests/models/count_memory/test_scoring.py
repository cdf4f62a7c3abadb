"""Scoring by several threads, each with a copy of the counts, and of given candidates."""

import pytest
import torch
from models.count_memory.reference_counts import make_memory
from models.every_model import make_log

from dynedge.data.windows import Window
from dynedge.models.capabilities import apply_with_undo


@pytest.mark.parametrize("threads", [1, 3])
def test_candidates_score_as_among_all_items(threads, monkeypatch):
    """To the bit, in one thread or several; also items that no context has seen, and items given twice."""
    log = make_log(events=300)
    model, candidates = make_memory(log), torch.randint(log.num_items, (300, 7), generator=torch.manual_seed(0))
    window, one, other = Window(log, range(300)), model.start(), model.start()
    scores = model.score(window, None, one)
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
    assert torch.equal(model.score(window, candidates, other), scores.gather(1, candidates))
    assert len(model._workers(other, 1)) == threads
    assert torch.equal(model.score(window, None, model.start()), scores)
    assert all(torch.equal(tensor, other[name]) for name, tensor in one.items()), "the states are the same"


def test_copies_are_dropped_when_the_state_changes_without_them(monkeypatch):
    """Scoring, observing, undone events and another state, in turn: the same as without copies."""
    log = make_log(events=300)
    one_thread, three_threads, results = make_memory(log), make_memory(log), []
    for model, threads in ((one_thread, 1), (three_threads, 3)):
        monkeypatch.setattr(torch, "get_num_threads", lambda threads=threads: threads)
        state, scores = model.start(), []
        for start in range(0, 300, 50):
            windows = [Window(log, range(start + k, start + k + 10)) for k in range(0, 50, 10)]
            scores += [model.score(windows[0], None, state), model.score(windows[1], None, state)]
            model.observe(windows[2], state)
            scores.append(model.score(windows[3], None, state.clone()))
            apply_with_undo(model, Window(log, range(start, start + 1)), state)()
            scores.append(model.score(windows[3], None, state))
            model.observe(windows[4], state)
        results.append((torch.cat(scores), state))
    assert len(three_threads._workers(three_threads.start(), 300)) == 3
    assert torch.equal(results[0][0], results[1][0])
    assert all(torch.equal(tensor, results[1][1][name]) for name, tensor in results[0][1].items())
