"""level_gru: all states that a window writes, by two gated recurrent updates per event, level by level.

Legend: d width of a state, W states written, R rows of the arena, F = `schedule.first_written` rows before them.

Row w of side s has two parents in the arena, own and other (`schedule.parents`): the previous states of its entity
and of the entity it interacts with. As in torch's GRUCell:

    gi = W_other[s] · other + pre[w]        pre[w] = W_feature[s] · f + b[s], one large product done by the caller
    gh = W_own[s] · own + b_own[s]
    r = σ(gi_r + gh_r)    z = σ(gi_z + gh_z)    n = tanh(gi_n + r · gh_n)    new = (1 − z) · n + z · own
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from dynedge.ops.gather_linear import gather_rows
from dynedge.ops.level_gru import cpu, reference
from dynedge.plan.schedule import Schedule
from dynedge.utils.array_type import Array

if TYPE_CHECKING:
    from dynedge.ops.level_gru.triton import EventInputs, Levels

__all__ = ["device_arrays", "device_schedule", "gru_arena", "level_gru"]

BY_DEVICE: dict[str, Callable[..., Tensor]] = {
    "cpu": cpu.level_gru,
    "cuda": reference.level_gru,
}  # the operator of triton.py has other inputs and is called directly


def level_gru(
    roots: Tensor, pre: Tensor, w_own: Tensor, w_other: Tensor, b_own: Tensor, schedule: Schedule
) -> Tensor:
    """The written states [W, d] from roots [F, d]; the arena is `cat((roots, written))`, and any row may be read.

    pre [W, 3d], w_own and w_other [2, 3d, d], b_own [2, 3d]. Differentiable once in all five.
    """
    _check(roots, pre, w_own, w_other, b_own, schedule)
    if roots.device.type not in BY_DEVICE:
        raise NotImplementedError(
            f"level_gru does not run on {roots.device.type} yet; it runs on: {', '.join(BY_DEVICE)}."
        )
    return BY_DEVICE[roots.device.type](roots, pre, w_own, w_other, b_own, schedule)


def _check(roots: Tensor, pre: Tensor, w_own: Tensor, w_other: Tensor, b_own: Tensor, schedule: Schedule) -> None:
    if roots.ndim != 2 or roots.shape[1] < 1:
        raise ValueError(f"roots should be [rows, d] with d at least 1, not {list(roots.shape)}.")
    d, written = roots.shape[1], len(schedule.event)
    expected = {
        "roots": (roots, (schedule.first_written, d)),
        "pre": (pre, (written, 3 * d)),
        "w_own": (w_own, (2, 3 * d, d)),
        "w_other": (w_other, (2, 3 * d, d)),
        "b_own": (b_own, (2, 3 * d)),
    }
    for name, (tensor, shape) in expected.items():
        if tuple(tensor.shape) != shape:
            raise ValueError(f"{name} should be {list(shape)} for this schedule, not {list(tensor.shape)}.")
        if tensor.dtype != roots.dtype or tensor.device != roots.device:
            raise TypeError(
                f"{name} is {tensor.dtype} on {tensor.device}, roots {roots.dtype} on {roots.device}: "
                "all five must have the same."
            )


def gru_arena(
    roots: Tensor,
    products: Tensor,
    product_row: Tensor,
    w_own: Tensor,
    w_other: Tensor,
    b_own: Tensor,
    schedule: Schedule | Levels,
    more: EventInputs | None = None,
) -> Tensor:
    """The arena [R, d]: the roots, then the written states, on whatever path `schedule` was placed for.

    products [P, 3d] are rows of pre, of which written state w reads row product_row[w]. Only Triton's kernels add
    `more` to them; elsewhere it is a part of the products.
    """
    if isinstance(schedule, Schedule):
        assert more is None
        pre = gather_rows(products, product_row)
        return torch.cat([roots, level_gru(roots, pre, w_own, w_other, b_own, schedule)])
    from dynedge.ops.level_gru.triton import level_gru as triton_level_gru

    return triton_level_gru(roots, products, product_row, w_own, w_other, b_own, schedule, more)


def device_arrays(schedule: Schedule) -> dict[str, Array]:
    """What the Triton kernels read of a schedule, to be copied to the GPU with a window's other arrays."""
    from dynedge.ops.level_gru.triton import level_arrays

    return level_arrays(schedule)


def device_schedule(schedule: Schedule, tensors: dict[str, Tensor]) -> Levels:
    """A schedule for the Triton kernels; takes the tensors of `device_arrays` out of the dict."""
    from dynedge.ops.level_gru.triton import LEVEL_TENSORS, Levels, level_metadata

    parts: dict[str, Any] = {name: tensors.pop(name) for name in LEVEL_TENSORS}
    return Levels(**parts, **level_metadata(schedule))
