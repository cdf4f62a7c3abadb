"""sampled_softmax's Triton kernel against the reference: the error and every gradient."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from ops.triton_interpreter import DEVICE
from torch import Tensor

from dynedge.models.candidate_rows import find
from dynedge.ops.sampled_softmax import CHUNK, ScoreBonus, reference
from dynedge.ops.sampled_softmax.triton import ChunkCandidates, sampled_softmax
from dynedge.plan.links import Linker
from dynedge.plan.schedule import NO_ROW, build_schedule

pytestmark = pytest.mark.usefixtures("poisoned_anywhere")
FLOAT32, BFLOAT16 = 1e-4, 2e-2  # of the greatest number: what the project promises


def window(n: int, count: int, items: int, active: float, share: int = 1) -> tuple[Any, ...]:
    """(columns, drawn, true items, their rows, the rows after them, rows of the arena)."""
    rng = np.random.default_rng(0)
    user, item = rng.integers(0, 9, n).astype(np.int32), rng.integers(0, items, n).astype(np.int32)
    prev = Linker(np.zeros(9, bool), rng.random(items) < active)(user, item)
    schedule = build_schedule(user, item, prev, np.zeros(0, np.int64))
    chunks = -(-n // CHUNK)
    every = np.broadcast_to(np.arange(items, dtype=np.int32), (chunks, items))
    some = rng.integers(0, items, (-(-chunks // share), count)).astype(np.int32)
    chosen = every if count == items else some[np.arange(chunks) // share]
    columns = find(schedule, item, np.ascontiguousarray(chosen), items, DEVICE)
    parts = columns.item, columns.row, columns.until.clamp(max=2**31 - 1).int()
    drawn = ChunkCandidates(*(part[:, :count].contiguous() for part in parts), count == items, share)
    after = np.full(n, NO_ROW, np.int32)
    after[schedule.item_events] = schedule.item_rows
    lists = item.astype(np.int64), schedule.read_rows[:, 1].astype(np.int64), after
    return columns, drawn, *(torch.from_numpy(part).to(DEVICE) for part in lists), schedule.rows


@pytest.mark.parametrize("low", [False, True], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("ids", [False, True], ids=["states", "ids"])
@pytest.mark.parametrize(
    ("n", "count", "items", "d", "active", "share"),
    [
        (130, 10, 500, 16, 0.0, 1),
        (7, 3, 4, 5, 0.3, 1),
        (200, 20, 20, 24, 0.2, 1),
        (200, 150, 150, 16, 0.2, 1),
        (20, 70, 40, 65, 0.2, 1),
        (300, 40, 500, 65, 0.2, 2),
        (600, 9, 300, 8, 0.1, 3),
    ],
)
def test_error_and_gradients(
    n: int, count: int, items: int, d: int, active: float, share: int, ids: bool, low: bool
) -> None:
    """Few items: they move inside chunks, and are drawn twice; all items, also split; several blocks; chunks that
    share their candidates, the last ones fewer than the others, and candidates that stand for more than one."""
    torch.manual_seed(0)
    standing = None, 1.0 if share == 1 else 7.5
    columns, drawn, item, row, after, rows = window(n, count, items, active, share)
    shapes = [(n, 2 * d if ids else d), (rows, d), (len(columns.outside), d), *([(items, d + 1)] if ids else [])]
    inputs = [torch.randn(shape) * d**-0.25 for shape in shapes]

    def gradients(operator: Any, kind: torch.dtype, *rest: Any) -> list[Tensor]:
        tensors = [tensor.to(DEVICE, kind).requires_grad_() for tensor in inputs]
        error = operator(*tensors[:3], tensors[3] if ids else None, *rest)
        grads = torch.autograd.grad(0.5 * error, tensors)
        return [_dense(grad).double().cpu() for grad in (error.detach(), *grads)]

    expected = gradients(reference.sampled_softmax, torch.float64, columns, item, row, *standing)

    def by_triton(wanted: Tensor, arena: Tensor, outside: Tensor, *rest: Any) -> Tensor:
        each = outside if drawn.every else outside[(drawn.rows[::share] - rows).clamp_min(0).flatten()]
        return sampled_softmax(wanted, arena, each, *rest)

    chunk, place = (torch.arange(size, device=DEVICE) for size in drawn.rows.shape)
    own = rows + (chunk // share * count)[:, None] + place
    apart = drawn if drawn.every else replace(drawn, rows=torch.where(drawn.rows >= rows, own, drawn.rows))
    with torch.autocast(DEVICE, torch.bfloat16) if low else nullcontext():
        found = gradients(by_triton, torch.float32, apart, item, row, after, *standing)
    assert_near(found, expected, low)


@pytest.mark.parametrize("items", [20, 150], ids=["one block", "split"])
@pytest.mark.parametrize("low", [False, True], ids=["float32", "bfloat16"])
def test_bonuses_are_added_and_get_their_gradient(low: bool, items: int) -> None:
    """Of true items, of items that move inside a chunk, of others; some events have none."""
    n, d = 200, 8
    torch.manual_seed(0)
    columns, drawn, item, row, after, rows = window(n, items, items, 0.2)
    there = torch.rand(n, items) < torch.rand(n, 1)
    there[::3] = False
    event, named = (part.to(DEVICE) for part in there.nonzero(as_tuple=True))
    start = torch.cat([torch.zeros(1, dtype=torch.int64), there.sum(1).cumsum(0)]).to(DEVICE)
    inputs = [torch.randn(*shape) for shape in ((n, d), (rows, d), (len(columns.outside), d), (len(event),))]

    def gradients(operator: Any, kind: torch.dtype, *rest: Any) -> list[Tensor]:
        tensors = [tensor.to(DEVICE, kind).requires_grad_() for tensor in inputs]
        error = operator(*tensors[:3], None, *rest, ScoreBonus(start, event, named, tensors[3]))
        return [part.double().cpu() for part in (error.detach(), *torch.autograd.grad(0.5 * error, tensors))]

    expected = gradients(reference.sampled_softmax, torch.float64, columns, item, row)

    with torch.autocast(DEVICE, torch.bfloat16) if low else nullcontext():
        found = gradients(sampled_softmax, torch.float32, drawn, item, row, after)
    assert_near(found, expected, low)


def assert_near(found: list[Tensor], expected: list[Tensor], low: bool) -> None:
    for got, right in zip(found, expected, strict=True):
        bound = (BFLOAT16 if low else FLOAT32) * float(right.abs().max()) if right.numel() else 0
        torch.testing.assert_close(got, right, rtol=0, atol=bound)


def _dense(grad: Tensor) -> Tensor:
    """Rows below 0 are nobody's."""
    if not grad.is_sparse:
        return grad
    rows, values = grad._indices()[0], grad._values()
    return values.new_zeros(grad.shape).index_add(0, rows[rows >= 0], values[rows >= 0])
