"""rows_linear: a linear layer whose inputs are rows of tables, named by index, side by side.

Legend: n rows made, o their width, p tables, R_i rows and c_i columns of table i.

    out[k] = bias + Σ_i w_i · x_i[index_i[k]]        w = [w_1 | … | w_p], [o, Σ c_i]; relu on top if asked

An index of None is 0, 1, 2, … What a table's row contributes is worked out once, however many rows of `out` name it;
on the way back the gradients of those are summed first. A row's bits do not depend on which other rows there are.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from torch import Tensor

from dynedge.ops.dispatch import by_triton
from dynedge.ops.gather_linear import cpu, reference

__all__ = ["Part", "pick_rows", "rows_linear"]

Part = tuple[Tensor, Tensor | None]  # a table [R, c], and int64[n], its rows

TRITON = "dynedge.ops.gather_linear.triton"
LINEAR: dict[str, Callable[..., Tensor]] = {
    "cpu": cpu.rows_linear,
    "cuda": by_triton(TRITON, "rows_linear", reference.rows_linear, lambda _, w, *more: w),
}
PICK: dict[str, Callable[..., Tensor]] = {
    "cpu": cpu.pick_rows,
    "cuda": by_triton(TRITON, "pick_rows", reference.pick_rows),
}


def rows_linear(parts: Sequence[Part], w: Tensor, bias: Tensor, *, relu: bool = False) -> Tensor:
    """[n, o] from tables and their rows; w [o, Σ c], bias [o]. Differentiable once in tables, w and bias."""
    width = sum(x.shape[1] for x, _ in parts)
    if w.shape != (len(bias), width):
        raise ValueError(f"w should be {[len(bias), width]} for these parts, not {list(w.shape)}.")
    return LINEAR.get(w.device.type, reference.rows_linear)(parts, w, bias, relu)


def pick_rows(x: Tensor, index: Tensor) -> Tensor:
    """x[index], [n, c]; on the way back, gradients of rows named twice are summed in order."""
    return PICK.get(x.device.type, reference.pick_rows)(x, index)
