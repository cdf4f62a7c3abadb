"""Undoing an event restores the state to the bit, also where lists are pruned, tables grown and counts rescaled."""

import pytest
import torch
from models.every_model import make_log

from dynedge.data.windows import Window
from dynedge.models.base import LogShape
from dynedge.models.capabilities import apply_with_undo
from dynedge.models.count_memory.config import MemoryConfig
from dynedge.models.count_memory.hash_table import NEXT, UNLISTED
from dynedge.models.count_memory.model import CountMemory


@pytest.mark.parametrize("contexts", [("user", "last", "last_two", "user_last", "near"), ("near",)])
def test_undo_restores_every_bit_after_every_event(contexts):
    log = make_log(events=500, users=6, items=60)
    config = MemoryConfig(contexts=contexts, half_lives=(1e12, 4.0), max_list_length=4)
    model, rescaled, pruned = CountMemory(config, LogShape.of(log)), False, False
    state, plain = model.start(), model.start()
    for k in range(len(log)):
        window = Window(log, range(k, k + 1))
        before = state.clone()
        undo = apply_with_undo(model, window, state)
        if k % 7 == 0:  # before the undo, the state is that of a real event
            observed = before.clone()
            model.observe(window, observed)
            assert all(torch.equal(state[name], observed[name]) for name in state)
        rescaled |= bool((state["event_weight"] < before["event_weight"]).any())
        undo()
        for name, tensor in before.items():
            if len(state[name]) == len(tensor):
                assert torch.equal(state[name], tensor), (k, name)
            elif not name.endswith("_slots"):  # grown capacity stays
                assert torch.equal(state[name][: len(tensor)], tensor), (k, name)
                assert not state[name][len(tensor) :].any(), (k, name)
        model.observe(window, state)
        model.observe(window, plain)
        pruned |= bool((state["near.entries"][:, NEXT] == UNLISTED).any())
    assert rescaled
    assert pruned
    assert len(state["near.entries"]) > len(model.start()["near.entries"])
    users, times = torch.arange(6), torch.full((6,), 1e3, dtype=torch.float64)
    assert torch.equal(model.score_query(users, times, None, state), model.score_query(users, times, None, plain))
