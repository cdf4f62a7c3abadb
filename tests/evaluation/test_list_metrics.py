"""Metrics of recommended lists against cases computed by hand, and the lists against the scores of each event."""

import numpy as np
import pytest
import torch
from evaluation.scorers import Popular

from dynedge.data.log import EventLog
from dynedge.evaluation.list_metrics import LIST_METRICS, calibration_error, gini, list_metrics
from dynedge.evaluation.protocol import chunks
from dynedge.evaluation.top_lists import TopListCollector, TopLists, sampled_blocks
from dynedge.models.capabilities import HasVectors

NONE = np.empty(0, np.float32)
# Items 0 to 3; the first four events are for training: item 0 twice, items 1 and 2 once.
LOG = EventLog.from_arrays([0, 1, 0, 1, 0, 1], [0, 0, 1, 2, 0, 3], range(6), num_items=4)


def lists(items, events=(4, 5), confidence=(0.5, 0.5), diversity=NONE):
    return TopLists(np.array(events), np.array(items, np.int32), np.array(confidence, np.float32), diversity)


def test_metrics_of_two_lists_by_hand():
    found = list_metrics(lists([[0, 1], [0, 3]], diversity=np.array([0.5, 1.0], np.float32)), LOG, 4)
    assert found["coverage@10"] == 3 / 4
    assert found["gini@10"] == pytest.approx((-3 * 0 + -1 * 1 + 1 * 1 + 3 * 2) / (4 * 4))
    share = np.array([3, 2, 2, 1]) / 8
    assert found["novelty@10"] == pytest.approx(-np.log2(share[[0, 1, 0, 3]]).mean())
    assert found["diversity@10"] == 0.75
    assert found["popularity_bias@10"] == pytest.approx(((2 + 1 + 2 + 0) / 4) / ((2 + 0) / 2))
    assert found["repeat_share@10"] == 3 / 4  # user 0 had 0 and 1, user 1 had 0; user 1's event with 3 comes later
    assert found["calibration_error"] == pytest.approx(0.5)  # one bin per event: |0.5 - 1| and |0.5 - 0|
    assert tuple(found) == LIST_METRICS


def test_an_event_is_not_its_own_history():
    repeated = list_metrics(lists([[3, -1], [3, -1]], events=(4, 5)), LOG, 4)
    assert repeated["repeat_share@10"] == 0.0
    assert repeated["coverage@10"] == 1 / 4
    assert repeated["gini@10"] == 3 / 4
    assert repeated["diversity@10"] is None


def test_metrics_that_are_not_defined_are_none():
    assert set(list_metrics(None, LOG, 4).values()) == {None}
    assert set(list_metrics(lists([[-1, -1], [-1, -1]]), LOG, 4).values()) == {None}
    assert list_metrics(lists([[3, 3]], events=(5,), confidence=(1,)), LOG, 0)["popularity_bias@10"] is None


def test_gini_and_calibration():
    assert gini(np.array([5, 5, 5])) == 0
    confidence = np.repeat([0.2, 0.8], 50)
    correct = np.concatenate([np.arange(50) % 5 == 0, np.arange(50) % 5 != 0])
    assert calibration_error(confidence, correct) == pytest.approx(0)
    assert calibration_error(confidence, ~correct) == pytest.approx(0.6)


def test_sampled_blocks_are_spread_evenly():
    assert sampled_blocks(range(10, 14)) == [range(10, 14)]
    assert sampled_blocks(range(10, 41), sample=6, blocks=3) == [range(10, 12), range(20, 22), range(30, 32)]
    assert sum(map(len, sampled_blocks(range(20_007)))) == 20_000


class Vectored(Popular, HasVectors):
    def vectors(self, state):
        return torch.zeros(self.users, 2), torch.tensor([[1.0, 0.0], [-1.0, 0.0], [0.0, 1.0], [0.0, -1.0]])


@pytest.mark.parametrize("chunk", [1, 4, 100])
def test_lists_are_the_best_items_before_each_sampled_event(chunk):
    model = Vectored.of(LOG)
    collector = TopListCollector(model, model.start(), [range(2, 3), range(4, 5)])
    state = model.start()
    for part in chunks(model, LOG, range(6), "full", chunk):
        collector.add(part.window.events, model.score(part.batch, None, state))
    found = collector.result()
    assert found.events.tolist() == [2, 4]
    counts = np.array([[2, 0, 0, 0], [2, 1, 1, 0]])  # of the items, before events 2 and 4
    assert found.items[:, 0].tolist() == [0, 0] and found.items[1, 3] == 3
    assert np.allclose(found.confidence, np.exp(2) / np.exp(counts).sum(1))
    assert np.allclose(found.diversity, 1 + 2 / 6)  # two of the six pairs are opposite, the others at right angles
