"""Histories against a plain walk."""

import numpy as np
import pytest
import torch
from models.every_model import make_log

from dynedge.models.contract import Window
from dynedge.models.histories import NONE, Past, Rings


def plain_histories(log, side, length):
    """Every event's history by looking back through the log, newest first."""
    entity, partner = (log.user, log.item)[:: -1 if side else 1]
    met, found = {}, []
    for k in range(len(log)):
        lately = met.setdefault(int(entity[k]), [])
        newest = [*lately[::-1], *[(NONE, float(NONE))] * length][:length]
        found.append(newest)
        lately.append((int(partner[k]), float(log.time[k])))
    return np.array(found)  # [n, L, 2]


@pytest.mark.parametrize("side", [0, 1])
@pytest.mark.parametrize("chunk", [1, 7, 1000])
def test_rings_are_what_a_look_back_finds(side, chunk):
    log, length, cpu = make_log(events=300), 5, torch.device("cpu")
    expected = plain_histories(log, side, length)
    rings = Rings(side, (log.num_users, log.num_items)[side], length)
    state = rings.start(cpu)
    for at in range(0, len(log), chunk):
        window = Window(log, range(at, min(at + chunk, len(log))))
        indexed = rings.index(window, cpu)
        now = rings.now(indexed.entity[:1], state)
        found = rings.before(indexed, state)
        rows = expected[at : at + len(window)]
        assert np.array_equal(found.partner, rows[..., 0]) and np.array_equal(found.time, rows[..., 1])
        assert torch.equal(now.partner, found.partner[:1]) and torch.equal(now.time, found.time[:1])
        rings.advance(indexed, state)


@pytest.mark.parametrize("side", [0, 1])
def test_the_past_of_shuffled_events_is_the_same(side):
    log, length = make_log(events=300), 5
    events = np.random.default_rng(0).permutation(250)
    expected = plain_histories(log, side, length)[events, :, 0]
    assert np.array_equal(Past(log, 250, side, length).before(events), expected)
