"""sampled_softmax's Triton kernels against the reference: the loss and every gradient."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from ops.softmax_reference import reference_softmax
from ops.test_all_scores import make_decay
from ops.triton_interpreter import DEVICE
from torch import Tensor

from dynedge.models.candidate_states import candidate_columns
from dynedge.ops.sampled_softmax import CHUNK, ListedScores, ScoreBonus
from dynedge.ops.sampled_softmax.triton import ChunkCandidates, sampled_softmax
from dynedge.plan.links import Linker
from dynedge.plan.schedule import NO_ROW, build_schedule

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("poisoned_anywhere")]
FLOAT32, BFLOAT16 = 1e-4, 2e-2  # relative to the greatest number


def window(n: int, count: int, items: int, active: float, chunks_per_sample: int = 1) -> tuple[Any, ...]:
    """(columns, candidates, true items, their rows, their rows after the events, rows of the arena)."""
    rng = np.random.default_rng(0)
    user, item = rng.integers(0, 9, n).astype(np.int32), rng.integers(0, items, n).astype(np.int32)
    prev = Linker(np.zeros(9, bool), rng.random(items) < active)(user, item)
    schedule = build_schedule(user, item, prev, np.zeros(0, np.int64))
    chunks = -(-n // CHUNK)
    all_items = np.broadcast_to(np.arange(items, dtype=np.int32), (chunks, items))
    sampled = rng.integers(0, items, (-(-chunks // chunks_per_sample), count)).astype(np.int32)
    items_of = all_items if count == items else sampled[np.arange(chunks) // chunks_per_sample]
    columns = candidate_columns(schedule, item, np.ascontiguousarray(items_of), items, DEVICE)
    parts = columns.item, columns.row, columns.until.clamp(max=2**31 - 1).int()
    chunk_parts = (part[:, :count].contiguous() for part in parts)
    candidates = ChunkCandidates(*chunk_parts, columns.outside, count == items, chunks_per_sample)
    item_row_after = np.full(n, NO_ROW, np.int32)
    item_row_after[schedule.item_events] = schedule.item_rows
    lists = item.astype(np.int64), schedule.read_rows[:, 1].astype(np.int64), item_row_after
    return columns, candidates, *(torch.from_numpy(part).to(DEVICE) for part in lists), schedule.rows


@pytest.mark.parametrize("bfloat16", [False, True], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("ids", [False, True], ids=["states", "ids"])
@pytest.mark.parametrize(
    ("n", "count", "items", "d", "active", "chunks_per_sample", "decaying"),
    [
        (130, 10, 500, 16, 0.0, 1, 0),
        (130, 10, 500, 16, 0.0, 1, 4),
        (7, 3, 4, 5, 0.3, 1, 1),
        (200, 20, 20, 24, 0.2, 1, 0),
        (200, 150, 150, 16, 0.2, 1, 3),
        (20, 70, 40, 65, 0.2, 1, 0),
        (300, 40, 500, 65, 0.2, 2, 8),
        (600, 9, 300, 8, 0.1, 3, 0),
    ],
)
def test_loss_and_gradients(
    n: int,
    count: int,
    items: int,
    d: int,
    active: float,
    chunks_per_sample: int,
    decaying: int,
    ids: bool,
    bfloat16: bool,
) -> None:
    """Few items, updated inside chunks and sampled twice; all items, also split; several blocks; chunks that share a
    sample, the last sample by fewer chunks; weighted candidates; columns that decay."""
    torch.manual_seed(0)
    weighting = None, 1.0 if chunks_per_sample == 1 else 7.5
    columns, candidates, item, row, item_row_after, rows = window(n, count, items, active, chunks_per_sample)
    shapes = [(n, 2 * d if ids else d), (rows, d), (len(columns.outside), d), *([(items, d + 1)] if ids else [])]
    inputs = [torch.randn(shape) * d**-0.25 for shape in shapes]
    decay = None
    if decaying:
        decay = make_decay(decaying, torch.float32, inputs[2], inputs[1], item_row_after.cpu()).to(DEVICE)

    def gradients(operator: Any, kind: torch.dtype, *rest: Any) -> list[Tensor]:
        tensors = [tensor.to(DEVICE, kind).requires_grad_() for tensor in inputs]
        loss = operator(*tensors[:3], tensors[3] if ids else None, *rest, decay=decay)
        loss, query, *states = (loss, *torch.autograd.grad(0.5 * loss, tensors))
        states[:2] = [grad[:, : d - decaying] for grad in states[:2]]  # decaying columns have none
        return [_dense(grad).double().cpu() for grad in (loss.detach(), query, *states)]

    expected = gradients(reference_softmax, torch.float64, columns, item, row, *weighting)

    def by_triton(query: Tensor, arena: Tensor, outside: Tensor, *rest: Any, decay: Tensor | None) -> Tensor:
        outside_rows = (
            outside
            if candidates.all_items
            else outside[(candidates.rows[::chunks_per_sample] - rows).clamp_min(0).flatten()]
        )
        return sampled_softmax(query, arena, outside_rows, *rest, decay=decay)

    chunk, place = (torch.arange(size, device=DEVICE) for size in candidates.rows.shape)
    own = rows + (chunk // chunks_per_sample * count)[:, None] + place
    renumbered = (
        candidates
        if candidates.all_items
        else replace(candidates, rows=torch.where(candidates.rows >= rows, own, candidates.rows))
    )
    with torch.autocast(DEVICE, torch.bfloat16) if bfloat16 else nullcontext():
        actual = gradients(by_triton, torch.float32, renumbered, item, row, item_row_after, *weighting)
    assert_near(actual, expected, bfloat16)


@pytest.mark.parametrize("items", [20, 150], ids=["one block", "split"])
@pytest.mark.parametrize("bfloat16", [False, True], ids=["float32", "bfloat16"])
def test_bonuses_are_added_and_get_their_gradient(bfloat16: bool, items: int) -> None:
    """Of true items, of items updated inside a chunk, and of other items; some events have none. By generalized
    cross-entropy."""
    n, d = 200, 8
    torch.manual_seed(0)
    columns, candidates, item, row, item_row_after, rows = window(n, items, items, 0.2)
    has_bonus = torch.rand(n, items) < torch.rand(n, 1)
    has_bonus[::3] = False
    event, bonus_item = (part.to(DEVICE) for part in has_bonus.nonzero(as_tuple=True))
    start = torch.cat([torch.zeros(1, dtype=torch.int64), has_bonus.sum(1).cumsum(0)]).to(DEVICE)
    inputs = [torch.randn(*shape) for shape in ((n, d), (rows, d), (len(columns.outside), d), (len(event),))]

    def gradients(operator: Any, kind: torch.dtype, *rest: Any) -> list[Tensor]:
        tensors = [tensor.to(DEVICE, kind).requires_grad_() for tensor in inputs]
        loss = operator(*tensors[:3], None, *rest, ScoreBonus(start, event, bonus_item, tensors[3]), q=0.1)
        return [part.double().cpu() for part in (loss.detach(), *torch.autograd.grad(0.5 * loss, tensors))]

    expected = gradients(reference_softmax, torch.float64, columns, item, row)

    with torch.autocast(DEVICE, torch.bfloat16) if bfloat16 else nullcontext():
        actual = gradients(sampled_softmax, torch.float32, candidates, item, row, item_row_after)
    assert_near(actual, expected, bfloat16)


@pytest.mark.parametrize(("count", "items"), [(10, 300), (150, 150)], ids=["sampled", "split"])
@pytest.mark.parametrize("bfloat16", [False, True], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("q", [0.0, 0.1])
def test_candidates_of_single_events(q: float, bfloat16: bool, count: int, items: int) -> None:
    """Some events have none; they are not weighted as the sampled ones are. Also by generalized cross-entropy."""
    n, d = 140, 8
    torch.manual_seed(0)
    columns, candidates, item, row, item_row_after, rows = window(n, count, items, 0.2)
    shapes = (n, d), (rows, d), (len(columns.outside), d), (n,), (n,)
    inputs = [torch.randn(*shape) for shape in shapes]
    inputs[4][::3] = -torch.inf

    def gradients(operator: Any, kind: torch.dtype, *rest: Any) -> list[Tensor]:
        tensors = [tensor.to(DEVICE, kind).requires_grad_() for tensor in inputs]
        loss = operator(*tensors[:3], None, *rest, None, 7.5, listed=ListedScores(*tensors[3:]), q=q)
        return [part.double().cpu() for part in (loss.detach(), *torch.autograd.grad(0.5 * loss, tensors))]

    def by_triton(query: Tensor, arena: Tensor, outside: Tensor, *rest: Any, **options: Any) -> Tensor:
        if not candidates.all_items:
            outside = outside[(candidates.rows - rows).clamp_min(0).flatten()]
        return sampled_softmax(query, arena, outside, *rest, **options)

    chunk, place = (torch.arange(size, device=DEVICE) for size in candidates.rows.shape)
    own = rows + (chunk * count)[:, None] + place
    placed = candidates.rows if candidates.all_items else torch.where(candidates.rows >= rows, own, candidates.rows)
    renumbered = replace(candidates, rows=placed)
    expected = gradients(reference_softmax, torch.float64, columns, item, row)
    with torch.autocast(DEVICE, torch.bfloat16) if bfloat16 else nullcontext():
        actual = gradients(by_triton, torch.float32, renumbered, item, row, item_row_after)
    assert_near(actual, expected, bfloat16)


def assert_near(actual: list[Tensor], expected: list[Tensor], bfloat16: bool) -> None:
    for got, right in zip(actual, expected, strict=True):
        bound = (BFLOAT16 if bfloat16 else FLOAT32) * float(right.abs().max()) if right.numel() else 0
        torch.testing.assert_close(got, right, rtol=0, atol=bound)


def _dense(grad: Tensor) -> Tensor:
    """Dense gradient; negative rows of a sparse one are ignored."""
    if not grad.is_sparse:
        return grad
    rows, values = grad._indices()[0], grad._values()
    return values.new_zeros(grad.shape).index_add(0, rows[rows >= 0], values[rows >= 0])
