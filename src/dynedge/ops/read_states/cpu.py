"""read_states on a CPU: one pass over the entities each way."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from dynedge.ops.autograd import run
from dynedge.utils.arrays import Array
from dynedge.utils.compile import compiled

XI, STORED = -1, -2  # where a vector is from; else a row of ψ


def read_states(groups: Sequence[tuple[Any, Tensor]], more: Tensor | None) -> Tensor:
    learned = [tensor for side, _ in groups for tensor in side[:2]]
    indices = [(*(tensor.numpy() for tensor in side[2:]), entities.numpy()) for side, entities in groups]
    found: Tensor = run(_ReadStates, indices, more, *learned)
    return found


class _ReadStates(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, groups: list[tuple[Array, ...]], more: Tensor | None, *learned: Tensor) -> Tensor:
        sizes = [len(entities) for *_, entities in groups]
        out = learned[0].new_empty(sum(sizes) + (0 if more is None else len(more)), len(learned[0]))
        rows, source, at = out.numpy(), np.empty(sum(sizes), np.int64), 0
        for i, size in enumerate(sizes):
            xi, psi = (tensor.detach().contiguous().numpy() for tensor in learned[2 * i : 2 * i + 2])
            _fill(rows[at : at + size], source[at : at + size], xi, psi, *groups[i])
            at += size
        if more is not None:
            rows[at:] = more.detach().numpy()
        # Not the groups: by the time of the backward pass the state has moved on.
        ctx.source, ctx.sizes, ctx.shapes = source, sizes, [tensor.shape for tensor in learned]
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        rows, at, grads = grad.contiguous().numpy(), 0, list[Tensor | None]()
        for i, size in enumerate(ctx.sizes):
            xi_shape, psi_shape = ctx.shapes[2 * i : 2 * i + 2]
            own, source, for_xi = rows[at : at + size], ctx.source[at : at + size], np.zeros(xi_shape, rows.dtype)
            _sum_xi(own, source, for_xi)
            grads += torch.from_numpy(for_xi), _of_psi(own, source, psi_shape)
            at += size
        return None, grad[at:] if ctx.needs_input_grad[1] else None, *grads


def _of_psi(rows: Array, source: Array, shape: torch.Size) -> Tensor | None:
    met = np.flatnonzero(source >= 0) if len(shape) and shape[0] else source[:0]
    if not len(met):
        return None
    places, values = torch.from_numpy(source[met]), torch.from_numpy(rows[met])
    return torch.sparse_coo_tensor(places[None], values, shape, check_invariants=False)


@compiled
def _fill(
    rows: Array, source: Array, xi: Array, psi: Array, psi_row: Array, stored: Array, moved: Array, entities: Array
) -> None:
    """rows and where they are from: a row of ψ, or XI, or STORED."""
    for k in range(len(entities)):
        entity = entities[k]
        source[k] = STORED if moved[entity] else psi_row[entity] if psi_row[entity] >= 0 else XI
        of = stored[entity] if source[k] == STORED else xi if source[k] == XI else psi[source[k]]
        to = rows[k]
        for j in range(len(to)):
            to[j] = of[j]


@compiled
def _sum_xi(rows: Array, source: Array, for_xi: Array) -> None:
    for k in range(len(source)):
        if source[k] == XI:
            of = rows[k]
            for j in range(len(of)):
                for_xi[j] += of[j]
