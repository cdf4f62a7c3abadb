"""rows_before by Triton against the reference, on random windows and odd sizes."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from ops.triton_interpreter import DEVICE

from dynedge.ops.rows_before import ItemRows, reference, rows_before, triton

pytestmark = pytest.mark.slow


def random_rows(items: int, events: int, seed: int) -> ItemRows:
    """Every third item is active; the others change with their events, if they have any."""
    rng = np.random.default_rng(seed)
    item = rng.integers(0, max(items, 1), events)
    is_active = item % 3 == 0
    changing = np.unique(item[~is_active])
    lists = [np.flatnonzero(item == one) for one in changing]
    starts = np.cumsum([0, *map(len, lists)])
    of_items = np.concatenate([np.zeros(0, np.int64), *lists])
    parts = changing, starts, of_items, rng.permutation(events) + 1000
    tensors = [torch.from_numpy(part.astype(np.int32)) for part in parts]
    active = torch.from_numpy(np.unique(item[is_active]).astype(np.int32))
    return ItemRows(*tensors, 7, active, 7 + len(changing) + 5)


@pytest.mark.parametrize(
    ("items", "events", "groups", "columns"), [(0, 0, 3, 2), (1, 4, 5, 1), (30, 200, 9, 17), (400, 300, 40, 33)]
)
def test_rows_and_next_changes(items: int, events: int, groups: int, columns: int) -> None:
    rows, rng = random_rows(items, events, seed=groups), np.random.default_rng(0)
    asked = torch.from_numpy(rng.integers(0, items + 3, (groups, columns)))
    before = torch.from_numpy(rng.integers(0, events + 1, groups))
    expected = reference.rows_before(rows, asked, before)
    placed = ItemRows(*(part.to(DEVICE) if isinstance(part, torch.Tensor) else part for part in rows))
    result = triton.rows_before(placed, asked.to(DEVICE), before.to(DEVICE))
    for own, right in zip(result, expected, strict=True):
        assert own.dtype == right.dtype and torch.equal(own.cpu(), right)


def test_on_a_cpu_it_is_the_reference() -> None:
    rows = random_rows(10, 50, seed=1)
    asked, before = torch.arange(10)[None], torch.tensor([20])
    for own, right in zip(rows_before(rows, asked, before), reference.rows_before(rows, asked, before), strict=True):
        assert torch.equal(own, right)
