"""all_scores' Triton kernels against the reference; and rows_before on a device against the schedule's rows."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from ops.test_all_scores import make_decay
from ops.triton_interpreter import DEVICE

from dynedge.data.log import EventLog
from dynedge.data.windows import Window
from dynedge.models.candidate_states import item_rows
from dynedge.models.window_index import index_window
from dynedge.ops.all_scores import reference
from dynedge.ops.all_scores.triton import all_scores
from dynedge.ops.rows_before import rows_before
from dynedge.ops.rows_before.reference import NEVER
from dynedge.plan.links import Linker
from dynedge.plan.schedule import build_schedule

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("ids", [False, True], ids=["states", "ids"])
@pytest.mark.parametrize(
    ("n", "items", "d", "decaying"), [(1, 3, 5, 0), (90, 20, 16, 3), (70, 130, 65, 8), (70, 130, 65, 0), (0, 4, 8, 2)]
)
def test_all_scores(n: int, items: int, d: int, decaying: int, ids: bool) -> None:
    """Items are updated often, also twice in a row; some events update nothing; some columns decay."""
    torch.manual_seed(0)
    query, states, arena = torch.randn(n, 2 * d if ids else d), torch.randn(items, d), torch.randn(n + 3, d)
    id_embeddings = torch.randn(items, d + 1) if ids else None
    item, row_after = torch.randint(max(1, items // 2), (n,)), torch.randperm(n + 3)[:n]
    row_after[torch.rand(n) < 0.2] = -1
    decay = make_decay(decaying, torch.float32, states, arena, row_after) if decaying else None
    expected = reference.all_scores(query, states, id_embeddings, item, row_after, arena, decay)
    inputs = (
        tensor if tensor is None else tensor.to(DEVICE)
        for tensor in (query, states, id_embeddings, item, row_after, arena, decay)
    )
    torch.testing.assert_close(all_scores(*inputs).cpu(), expected, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("active", [0.0, 0.3, 1.0])
def test_rows_before(active: float) -> None:
    rng = np.random.default_rng(0)
    user, item = rng.integers(0, 8, 60).astype(np.int32), rng.integers(0, 10, 60).astype(np.int32)
    linker = Linker(rng.random(8) < active, rng.random(10) < active)
    schedule = build_schedule(user, item, linker(user, item), np.zeros(0, np.int64))
    log = EventLog.from_arrays(user, item, np.arange(60.0), num_users=8, num_items=14)
    past = Linker(np.zeros(8, bool), np.zeros(14, bool))(user, item)
    indexed = index_window(Window(log, range(60)), schedule, past, torch.zeros(1), by_item=True)
    items, events = rng.integers(0, 14, (60, 5)), np.arange(60)
    rows, first_updates = rows_before(item_rows(indexed), torch.from_numpy(items), torch.from_numpy(events))
    assert np.array_equal(rows.numpy(), schedule.rows_before(items, events[:, None]))
    for (k, c), move in np.ndenumerate(first_updates.numpy()):
        id_embeddings = np.flatnonzero((item[k:] == items[k, c]) & ~linker.active_item[items[k, c] % 10])
        assert move == (k + id_embeddings[0] if len(id_embeddings) else NEVER)
