"""read_states on a CPU by numba: one pass over the entities each way."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from dynedge.ops.autograd import apply
from dynedge.utils.array_type import Array
from dynedge.utils.numba_compile import compiled

if TYPE_CHECKING:
    from dynedge.ops.read_states import EntityTable

XI, STORED = -1, -2  # source of a vector; else a row of ψ


def read_states(groups: Sequence[tuple[EntityTable, Tensor]], extra: Tensor | None) -> Tensor:
    learned = [tensor for table, _ in groups for tensor in table[:2]]
    indices = [(*(tensor.numpy() for tensor in table[2:]), entities.numpy()) for table, entities in groups]
    out: Tensor = apply(_ReadStates, indices, extra, *learned)
    return out


class _ReadStates(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, groups: list[tuple[Array, ...]], extra: Tensor | None, *learned: Tensor) -> Tensor:
        sizes = [len(entities) for *_, entities in groups]
        out = learned[0].new_empty(sum(sizes) + (0 if extra is None else len(extra)), len(learned[0]))
        rows, source, start = out.numpy(), np.empty(sum(sizes), np.int64), 0
        for i, size in enumerate(sizes):
            xi, psi = (tensor.detach().contiguous().numpy() for tensor in learned[2 * i : 2 * i + 2])
            fill_rows(rows[start : start + size], source[start : start + size], xi, psi, *groups[i])
            start += size
        if extra is not None:
            rows[start:] = extra.detach().numpy()
        # Not the groups themselves: by the backward pass the stored states have changed.
        ctx.source, ctx.sizes, ctx.shapes = source, sizes, [tensor.shape for tensor in learned]
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        rows, start, grads = grad.contiguous().numpy(), 0, list[Tensor | None]()
        for i, size in enumerate(ctx.sizes):
            xi_shape, psi_shape = ctx.shapes[2 * i : 2 * i + 2]
            group_grad, source = rows[start : start + size], ctx.source[start : start + size]
            xi_grad = np.zeros(xi_shape, rows.dtype)
            _sum_xi(group_grad, source, xi_grad)
            grads += torch.from_numpy(xi_grad), _psi_gradient(group_grad, source, psi_shape)
            start += size
        return None, grad[start:] if ctx.needs_input_grad[1] else None, *grads


def _psi_gradient(rows: Array, source: Array, shape: torch.Size) -> Tensor | None:
    """Sparse gradient of the rows of ψ that were read; None if there are none."""
    of_psi = np.flatnonzero(source >= 0) if len(shape) and shape[0] else source[:0]
    if not len(of_psi):
        return None
    rows_of_psi, values = torch.from_numpy(source[of_psi]), torch.from_numpy(rows[of_psi])
    return torch.sparse_coo_tensor(rows_of_psi[None], values, shape, check_invariants=False)


@compiled
def fill_rows(
    rows: Array,
    source: Array,
    xi: Array,
    psi: Array,
    psi_row: Array,
    stored: Array,
    has_stored: Array,
    entities: Array,
) -> None:
    """Fills the rows and their sources: a row of ψ, XI or STORED."""
    for k in range(len(entities)):
        entity = entities[k]
        source[k] = STORED if has_stored[entity] else psi_row[entity] if psi_row[entity] >= 0 else XI
        vector = stored[entity] if source[k] == STORED else xi if source[k] == XI else psi[source[k]]
        target = rows[k]
        for j in range(len(target)):
            target[j] = vector[j]


@compiled
def _sum_xi(rows: Array, source: Array, xi_grad: Array) -> None:
    """xi_grad += the sum of the rows whose source is XI."""
    for k in range(len(source)):
        if source[k] == XI:
            vector = rows[k]
            for j in range(len(vector)):
                xi_grad[j] += vector[j]
