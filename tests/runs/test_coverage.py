"""Coverage counts the events that a state has consumed."""

import numpy as np
import pytest

from dynedge.data.log import EventLog
from dynedge.errors import DataError
from dynedge.runs import event_coverage as module
from dynedge.runs.event_coverage import Coverage


def test_coverage_counts_events_and_items_in_any_chunks(monkeypatch):
    log = EventLog.from_arrays([0, 1, 0, 1], [2, 0, 2, 1], [1, 2, 3, 3], num_users=2, num_items=3)
    for chunk in (1, 3, 100):
        monkeypatch.setattr(module, "CHUNK", chunk)
        coverage = Coverage.empty(3)
        assert coverage.last_time == -np.inf
        coverage.add(log, range(0, 3))
        assert (coverage.events, coverage.last_time, coverage.item_counts.tolist()) == (3, 3, [1, 0, 2])
        coverage.add(log, range(3, 4))
        assert (coverage.events, coverage.item_counts.tolist()) == (4, [1, 1, 2])
        coverage.add(log, range(0, 2))
        assert coverage.last_time == 3, "the newest time, although these events were older"


def test_coverage_grows_with_new_items_and_is_restored_from_tensors():
    coverage = Coverage(3, 5.5, np.array([1, 2]))
    coverage.grow(4)
    assert coverage.item_counts[:4].tolist() == [1, 2, 0, 0]
    restored = Coverage.from_tensors(coverage.tensors(), 3)
    assert (restored.events, restored.last_time) == (3, 5.5)
    assert np.array_equal(restored.item_counts, coverage.item_counts)


@pytest.mark.parametrize(
    ("name", "value"),
    [("last_time", 1e38), ("last_time", np.nan), ("events", 4), ("events", -1), ("item_counts", -1)],
)
def test_damaged_numbers_are_refused(name, value):
    tensors = {key: tensor.clone() for key, tensor in Coverage(3, 5.5, np.array([1, 2])).tensors().items()}
    tensors[name].fill_(value)
    with pytest.raises(DataError, match=name):
        Coverage.from_tensors(tensors, 2)
