"""gather_linear: a linear layer whose input is a concatenation of table rows selected by index.

Legend: n rows of the result, o their width, p tables, R_i rows and c_i columns of table i.

    out[k] = bias + Σ_i w_i · x_i[index_i[k]]        w = [w_1 | … | w_p], [o, Σ c_i]; followed by ReLU if requested

An index of None means 0, 1, 2, … The product of a table row is computed once, however many rows of `out` read it; in
the backward pass the gradients of those are summed first. A row's bits do not depend on which other rows there are.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib import import_module

import torch
from torch import Tensor

from dynedge.ops.dispatch import prefer_triton
from dynedge.ops.gather_linear import cpu, reference

__all__ = ["GatherPart", "embed", "gather_linear", "gather_rows", "rows_of", "table_and_parts"]

GatherPart = tuple[Tensor, Tensor | None]  # a table [R, c], and the rows to read, int64[n]

TRITON = "dynedge.ops.gather_linear.triton"
LINEAR_BY_DEVICE: dict[str, Callable[..., Tensor]] = {
    "cpu": cpu.gather_linear,
    "cuda": prefer_triton(TRITON, "gather_linear", reference.gather_linear, lambda _, w, *more: w),
}
ROWS_BY_DEVICE: dict[str, Callable[..., Tensor]] = {
    "cpu": cpu.gather_rows,
    "cuda": prefer_triton(TRITON, "gather_rows", reference.gather_rows),
}
TABLES_BY_DEVICE: dict[str, Callable[..., tuple[Tensor, GatherPart]]] = {
    "cuda": prefer_triton(TRITON, "embed", reference.embed, lambda tables, *_: tables[0]),
}


def gather_linear(parts: Sequence[GatherPart], w: Tensor, bias: Tensor, *, relu: bool = False) -> Tensor:
    """[n, o]; w [o, Σ c], bias [o]. Differentiable once in the tables, w and bias."""
    width = sum(x.shape[1] for x, _ in parts)
    if w.shape != (len(bias), width):
        raise ValueError(f"w should be {[len(bias), width]} for these parts, not {list(w.shape)}.")
    return LINEAR_BY_DEVICE.get(w.device.type, reference.gather_linear)(parts, w, bias, relu)


def gather_rows(x: Tensor, index: Tensor) -> Tensor:
    """x[index], [n, c]; in the backward pass, gradients of rows that occur twice are summed in order."""
    return ROWS_BY_DEVICE.get(x.device.type, reference.gather_rows)(x, index)


def embed(tables: Sequence[Tensor], codes: Tensor, entities: Tensor, first: int) -> tuple[Tensor, GatherPart]:
    """(rows of the tables [.., d] side by side, [n, p · d], and a part of gather_linear for the first of them).

    An entity's rows are codes int64[p, E], of which −1 is the last. The gradients of the tables are sparse.
    """
    return TABLES_BY_DEVICE.get(codes.device.type, reference.embed)(tables, codes, entities, first)


def rows_of(part: GatherPart) -> Tensor:
    """The rows of a part of gather_linear."""
    x, index = part
    return x if index is None else gather_rows(x, index)


def table_and_parts(
    x: Tensor,
    read: Tensor,
    copied: Sequence[Tensor],
    *,
    distinct: bool,
    triton: bool,
    last: Tensor | None = None,
) -> tuple[Tensor, list[GatherPart]]:
    """x for other readers, and parts: its rows `read` and then, if given, `last`, for a product, and those of each of
    `copied`.

    Where Triton kernels compute (`triton`), the gradients of all of them are summed in one pass: every reader with a
    gradient of its own would write a whole table, to be read and added again. A negative number in `copied` gives
    some row, which must have no gradient; one in `last` the same or, by Triton, zeros, whose gradient is ignored.
    `distinct`: no row of `read` occurs twice.
    """
    if triton and torch.is_grad_enabled():
        table, *rows = import_module(TRITON).table_and_rows(x, read, distinct, last, *copied)
        return table, [(part, None) for part in rows]
    of_last: list[GatherPart] = []
    if last is not None:
        of_last = [(import_module(TRITON).rows_or_zeros(x, last), None) if triton else (x, last.clamp_min(0))]
    return x, [(x, read), *of_last, *((x, index.clamp_min(0)) for index in copied)]
