"""candidate_scores, the reference and the Triton kernel, against the scores of all items."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from ops.test_all_scores import make_decay
from ops.triton_interpreter import DEVICE
from torch import Tensor

from dynedge.ops import all_scores
from dynedge.ops.candidate_scores import ItemUpdates, ScoreInputs, candidate_scores, reference, triton
from dynedge.ops.read_states import EntityTable
from dynedge.ops.read_states.reference import read_states
from dynedge.plan.links import Linker
from dynedge.plan.schedule import NO_ROW, build_schedule

pytestmark = pytest.mark.slow


def make_window(n: int, items: int, d: int, active: float) -> tuple[EntityTable, ItemUpdates, Tensor, Tensor]:
    """(the items at the start, their updates, the arena, the true items)."""
    rng, generator = np.random.default_rng(n), torch.Generator().manual_seed(n)
    user, item = rng.integers(0, 7, n).astype(np.int32), rng.integers(0, items, n).astype(np.int32)
    is_active = rng.random(items) < active
    schedule = build_schedule(user, item, Linker(np.zeros(7, bool), is_active)(user, item), np.zeros(0, np.int64))
    row = np.full(n, NO_ROW, np.int32)
    row[schedule.item_events] = schedule.item_rows
    lists = schedule.entry_items, schedule.item_starts, schedule.item_events, row
    psi_row = torch.from_numpy(np.where(is_active, np.cumsum(is_active) - 1, -1))
    shapes = (d,), (int(is_active.sum()), d), (items, d), (schedule.rows, d)
    xi, psi, stored, arena = (torch.randn(shape, generator=generator) for shape in shapes)
    moved = (torch.rand(items, generator=generator) < 0.5) & (psi_row < 0)
    return (
        EntityTable(xi, psi, psi_row, stored, moved),
        ItemUpdates(*map(torch.from_numpy, lists)),
        arena,
        torch.from_numpy(item),
    )


@pytest.mark.parametrize("ids", [False, True], ids=["states", "ids"])
@pytest.mark.parametrize("decaying", [0, 3])
@pytest.mark.parametrize(
    ("n", "items", "count", "d", "active"),
    [(60, 9, 40, 16, 0.3), (5, 300, 70, 5, 0.0), (30, 6, 3, 65, 1.0), (0, 4, 3, 8, 0.0)],
)
def test_equals_all_scores_of_the_candidates(
    n: int, items: int, count: int, d: int, active: float, decaying: int, ids: bool
) -> None:
    """Items are updated often, also twice in a row; some never; active ones have no states at all."""
    table, updates, arena, item = make_window(n, items, d, active)
    query, id_embeddings = torch.randn(n, 2 * d if ids else d), torch.randn(items, d + 1) if ids else None
    candidates = torch.randint(items, (n, count))
    decay = make_decay(decaying, torch.float32, table.stored, arena, updates.row_after) if decaying else None
    states = read_states([(table, torch.arange(items))], None)
    scores = all_scores.reference.all_scores(
        query, states, id_embeddings, item.long(), updates.row_after.long(), arena, decay
    )
    expected = scores.gather(1, candidates)
    inputs = query, candidates, table, id_embeddings, updates, arena, decay
    torch.testing.assert_close(reference.candidate_scores(ScoreInputs(*inputs)), expected, rtol=1e-5, atol=1e-4)
    on_device = [part if part is None else to_device(part) for part in inputs]
    torch.testing.assert_close(triton.candidate_scores(ScoreInputs(*on_device)).cpu(), expected, rtol=1e-5, atol=1e-4)


def to_device(part: Tensor | EntityTable | ItemUpdates) -> Tensor | EntityTable | ItemUpdates:
    return part.to(DEVICE) if isinstance(part, Tensor) else type(part)(*(tensor.to(DEVICE) for tensor in part))


def test_the_reference_in_small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    table, updates, arena, _ = make_window(40, 12, 8, 0.2)
    query, candidates = torch.randn(40, 8), torch.randint(12, (40, 5))
    scores = candidate_scores(query, candidates, table, None, updates, arena)
    monkeypatch.setattr(reference, "MAX_STATES", 13)
    inputs = ScoreInputs(query, candidates, table, None, updates, arena)
    torch.testing.assert_close(reference.candidate_scores(inputs), scores)
