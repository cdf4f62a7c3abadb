"""An event that is supposed and undone leaves no bit behind; also where lists are cut, tables and counts made new."""

import pytest
import torch
from models.every_model import make_log

from dynedge.data.windows import Window
from dynedge.models.count_memory.config import MemoryConfig
from dynedge.models.count_memory.model import Memory
from dynedge.models.modules import Shape


@pytest.mark.parametrize("contexts", [("user", "last", "pair", "own", "near"), ("near",)])
def test_every_event_of_a_log(contexts):
    log = make_log(events=500, users=6, items=60)
    config = MemoryConfig(contexts=contexts, half_lives=(1e12, 4.0), longest=4)
    model, rescaled, cut = Memory(config, Shape.of(log)), False, False
    state, plain = model.start(), model.start()
    for k in range(len(log)):
        window = Window(log, range(k, k + 1))
        before = state.clone()
        undo = model.suppose(window, state)
        if k % 7 == 0:  # what is supposed is what would be
            supposed = before.clone()
            model.observe(window, supposed)
            assert all(torch.equal(state[name], supposed[name]) for name in state)
        rescaled |= bool((state["popular_weight"] < before["popular_weight"]).any())
        undo()
        for name, tensor in before.items():
            if len(state[name]) == len(tensor):
                assert torch.equal(state[name], tensor), (k, name)
            elif not name.endswith("_slots"):  # room was made, which is no trace
                assert torch.equal(state[name][: len(tensor)], tensor), (k, name)
                assert not state[name][len(tensor) :].any(), (k, name)
        model.observe(window, state)
        model.observe(window, plain)
        cut |= bool((state["near.entry"][:, 2] == -2).any())
    assert rescaled
    assert cut
    assert len(state["near.entry"]) > len(model.start()["near.entry"])
    users, times = torch.arange(6), torch.full((6,), 1e3, dtype=torch.float64)
    assert torch.equal(model.peek(users, times, None, state), model.peek(users, times, None, plain))
