"""read_states' Triton kernels against the reference: values and every gradient."""

from __future__ import annotations

import pytest
import torch
from ops.triton_interpreter import DEVICE

from dynedge.ops.read_states import EntityTable, LastEvents, StoredStates, reference, triton

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("d", [5, 64, 100])
def test_values_and_gradients(d: int) -> None:
    """Stored states, ψ and ξ; two groups followed by extra rows."""
    torch.manual_seed(0)
    count, active = 70, 6
    row = torch.full((count,), -1)
    row[torch.randperm(count)[:active]] = torch.arange(active)
    parts = [torch.randn(d), torch.randn(active, d), row, torch.randn(count, d), torch.rand(count) < 0.4]
    groups, extra = [torch.randperm(count)[:50], torch.randperm(count)[:33]], torch.randn(4, d)
    grad = torch.randn(87, d)

    def gradients(operator, device):
        learned = [tensor.clone().to(device).requires_grad_() for tensor in (*parts[:2], extra)]
        table = EntityTable(*learned[:2], *(part.to(device) for part in parts[2:]))
        states = operator([(table, group.to(device)) for group in groups], learned[2])
        return [states.detach(), *torch.autograd.grad(states, learned, grad.to(device))]

    expected = gradients(reference.read_states, "cpu")
    expected[2] = expected[2].to_dense()
    actual = gradients(triton.read_states, DEVICE)
    rows, values = actual[2]._indices()[0], actual[2]._values()
    actual[2] = torch.zeros(active, d).index_add(0, rows[rows >= 0].cpu(), values[rows >= 0].cpu())
    for got, right in zip(actual, expected, strict=True):
        torch.testing.assert_close(got.cpu(), right, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("d", "active"), [(5, 6), (64, 6), (100, 0)])
def test_some_rows_are_replaced(d: int, active: int, kind: torch.dtype) -> None:
    """By stored states, ψ and ξ; the gradient of the others is that of the rows themselves."""
    torch.manual_seed(0)
    row = torch.full((70,), -1)
    row[torch.randperm(70)[:active]] = torch.arange(active)
    parts = [torch.randn(d), torch.randn(active, d), row, torch.randn(70, d), torch.rand(70) < 0.4]
    entities = torch.where(torch.rand(90) < 0.5, torch.randint(70, (90,)), -1)
    rows, grad = torch.randn(90, d).to(kind), torch.randn(90, d).to(kind)
    results = []
    for module, device in ((reference, "cpu"), (triton, DEVICE)):
        learned = [tensor.clone().to(device).requires_grad_() for tensor in (*parts[:2], rows)]
        table = EntityTable(*learned[:2], *(part.to(device) for part in parts[2:]))
        states = module.replace_rows(learned[2] * 1, table, entities.to(device)).to(kind)
        of_xi, of_psi, of_rows = torch.autograd.grad(states, learned, grad.to(device), materialize_grads=True)
        if of_psi.is_sparse:  # also with negative rows
            index, values = of_psi._indices()[0].cpu(), of_psi._values().cpu()
            of_psi = torch.zeros(active, d).index_add(0, index[index >= 0], values[index >= 0])
        results.append([states.detach().cpu(), of_xi.cpu(), of_psi.cpu(), of_rows.cpu()[entities < 0]])
    truncates = kind == torch.bfloat16 and DEVICE == "cpu"  # Triton's interpreter, instead of rounding
    tolerance = 2**-7 if truncates else 1e-5
    for got, right in zip(*results, strict=True):
        torch.testing.assert_close(got.float(), right.float(), rtol=tolerance, atol=1e-5)


@pytest.mark.parametrize(("d", "written", "ended"), [(5, 50, 33), (64, 0, 40), (100, 1, 0), (16, 33, 70)])
@pytest.mark.parametrize("kind", [torch.int32, torch.int64])
def test_states_are_stored(d: int, written: int, ended: int, kind: torch.dtype) -> None:
    """As many states as last events, more or fewer; everything else stays."""
    torch.manual_seed(0)
    arena, entities, rows = torch.randn(60, d), torch.randperm(70)[:written], torch.randint(60, (written,))
    last = LastEvents(torch.randperm(70)[:ended], torch.rand(ended).double(), torch.randint(9, (ended,)))
    tables = torch.randn(70, d), torch.rand(70) < 0.3, torch.rand(70).double(), torch.randint(9, (70,))
    for has_item in (True, False):
        results = []
        for module, device in ((reference, "cpu"), (triton, DEVICE)):
            own = [part.clone().to(device) for part in tables]
            index = [part.to(device, kind) for part in (entities, rows)]
            of_last = LastEvents(last.entity.to(device, kind), last.time.to(device), last.item.to(device, kind))
            table = StoredStates(*own[:3], own[3] if has_item else None)
            module.store_states(table, *index, arena.to(device), of_last)
            results.append([part.cpu() for part in own])
        assert all(torch.equal(*pair) for pair in zip(*results, strict=True))
