"""gather_linear: a linear layer whose inputs are rows of tables, named by index, side by side.

Legend: n rows made, o their width, p tables, R_i rows and c_i columns of table i.

    out[k] = bias + Σ_i w_i · x_i[index_i[k]]        w = [w_1 | … | w_p], [o, Σ c_i]; relu on top if asked

An index of None is 0, 1, 2, … What a table's row contributes is worked out once, however many rows of `out` name it;
on the way back the gradients of those are summed first. A row's bits do not depend on which other rows there are.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from torch import Tensor

from dynedge.ops.dispatch import prefer_triton
from dynedge.ops.gather_linear import cpu, reference

__all__ = ["GatherPart", "gather_linear", "gather_rows"]

GatherPart = tuple[Tensor, Tensor | None]  # a table [R, c], and int64[n], its rows

TRITON = "dynedge.ops.gather_linear.triton"
LINEAR_BY_DEVICE: dict[str, Callable[..., Tensor]] = {
    "cpu": cpu.gather_linear,
    "cuda": prefer_triton(TRITON, "gather_linear", reference.gather_linear, lambda _, w, *more: w),
}
ROWS_BY_DEVICE: dict[str, Callable[..., Tensor]] = {
    "cpu": cpu.gather_rows,
    "cuda": prefer_triton(TRITON, "gather_rows", reference.gather_rows),
}


def gather_linear(parts: Sequence[GatherPart], w: Tensor, bias: Tensor, *, relu: bool = False) -> Tensor:
    """[n, o] from tables and their rows; w [o, Σ c], bias [o]. Differentiable once in tables, w and bias."""
    width = sum(x.shape[1] for x, _ in parts)
    if w.shape != (len(bias), width):
        raise ValueError(f"w should be {[len(bias), width]} for these parts, not {list(w.shape)}.")
    return LINEAR_BY_DEVICE.get(w.device.type, reference.gather_linear)(parts, w, bias, relu)


def gather_rows(x: Tensor, index: Tensor) -> Tensor:
    """x[index], [n, c]; on the way back, gradients of rows named twice are summed in order."""
    return ROWS_BY_DEVICE.get(x.device.type, reference.gather_rows)(x, index)
