"""Undoing an event restores the state to the bit, also where blocks move, pools grow and popularity is rescaled."""

import pytest
import torch
from models.every_model import make_log

from dynedge.data.windows import Window
from dynedge.models.base import LogShape
from dynedge.models.capabilities import apply_with_undo
from dynedge.models.count_memory.config import CONTEXTS, MemoryConfig
from dynedge.models.count_memory.event_index import START
from dynedge.models.count_memory.model import CountMemory


@pytest.mark.parametrize("contexts", [CONTEXTS, ("near",)])
@pytest.mark.parametrize("half_lives", [(1e12, 4.0), (0.3,)])
def test_undo_restores_every_bit_after_every_event(contexts, half_lives):
    log = make_log(events=600, users=6, items=60)
    model = CountMemory(MemoryConfig(contexts=contexts, half_lives=half_lives), LogShape.of(log))
    state, plain, rescaled, moved = model.start(), model.start(), 0, 0
    users, times = torch.arange(6), torch.full((6,), 1e3, dtype=torch.float64)
    for k in range(len(log)):
        window = Window(log, range(k, k + 1))
        before, scores = state.clone(), model.score_query(users, times, None, state)
        undo = apply_with_undo(model, window, state)
        if k % 7 == 0:  # before the undo, the state is that of a real event
            observed = before.clone()
            model.observe(window, observed)
            assert torch.equal(
                model.score_query(users, times, None, state), model.score_query(users, times, None, observed)
            )
        rescaled += bool((state["event_weight"] < before["event_weight"]).any())
        moved += bool((state["user_blocks"][:, START] > before["user_blocks"][:, START]).any())
        undo()
        for name, tensor in before.items():
            assert torch.equal(state[name][: len(tensor)], tensor), (k, name)
            assert not state[name][len(tensor) :].any(), (k, name)  # grown capacity stays
        assert torch.equal(model.score_query(users, times, None, state), scores)
        model.observe(window, state)
        model.observe(window, plain)
    assert rescaled
    assert moved
    assert len(state["history"]) > len(model.start()["history"])
    assert len(state["occurrences"]) > len(model.start()["occurrences"])
    assert torch.equal(model.score_query(users, times, None, state), model.score_query(users, times, None, plain))
