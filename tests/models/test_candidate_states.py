"""Candidates of chunks of events: which row of the arena each (event, candidate) pair reads."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from dynedge.models import candidate_states as candidates
from dynedge.plan.links import Linker
from dynedge.plan.schedule import build_schedule


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 6)), max_size=40), st.integers(0, 3))
def test_candidate_columns_read_the_row_before_each_event(pairs, active):
    """Every (event, candidate) pair reads the row that Schedule.rows_before returns."""
    user = np.array([u for u, _ in pairs], np.int32)
    item = np.array([i for _, i in pairs], np.int32)
    mask = np.arange(8) < active
    prev = Linker(np.zeros(5, bool), mask)(user, item)
    schedule = build_schedule(user, item, prev, np.zeros(0, np.int64))
    chunks = -(-len(pairs) // candidates.CHUNK)
    negatives = [7, 0, 3, 5, 1, 0]  # one of them twice
    items = np.tile(np.array(negatives, np.int32), (chunks, 1))
    columns = candidates.candidate_columns(schedule, item, items, 8)
    for k in range(len(pairs)):
        chunk = k // candidates.CHUNK
        is_read = (columns.since[chunk] < k) & (k <= columns.until[chunk])
        numbers = columns.candidate[chunk, is_read].sort().values.tolist()
        assert numbers == list(range(len(negatives))), "each is read once"
        for column in is_read.nonzero().flatten().tolist():
            candidate = negatives[columns.candidate[chunk, column]]
            row = int(schedule.rows_before(candidate, k))
            outside = schedule.rows + int(np.searchsorted(columns.outside.numpy(), candidate))
            assert columns.item[chunk, column] == candidate
            assert columns.row[chunk, column] == (outside if row < 0 else row)
