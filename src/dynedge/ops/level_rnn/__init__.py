"""level_rnn: all states that a window writes, by two simple (Elman) recurrent updates per event.

Legend: d width of a state, W states written, F = `schedule.first_written` rows of the arena before them.

Row w of side s has two parents in the arena, own and other (`schedule.parents`), and is

    tanh(W_own[s] · own + W_other[s] · other + pre[w])       pre[w]: the event's features projected, plus the bias
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from dynedge.ops.gather_linear import gather_rows
from dynedge.ops.level_rnn import cpu, reference
from dynedge.plan.schedule import Schedule

if TYPE_CHECKING:
    from dynedge.ops.level_gru.triton import Levels

__all__ = ["level_rnn", "rnn_arena"]

BY_DEVICE: dict[str, Callable[..., Tensor]] = {"cpu": cpu.level_rnn}


def level_rnn(roots: Tensor, pre: Tensor, w_own: Tensor, w_other: Tensor, schedule: Schedule) -> Tensor:
    """The written states [W, d]; roots [F, d], pre [W, d], weights [2, d, d]. Differentiable once in all four.

    A row's bits depend only on its inputs: a log may be cut into windows anywhere.
    """
    return BY_DEVICE.get(roots.device.type, reference.level_rnn)(roots, pre, w_own, w_other, schedule)


def rnn_arena(
    roots: Tensor, products: Tensor, product_row: Tensor, w_own: Tensor, w_other: Tensor, schedule: Schedule | Levels
) -> Tensor:
    """The arena [R, d]: the roots, then the written states, on whatever path `schedule` was placed for.

    products [P, d] are rows of pre, of which written state w reads row product_row[w].
    """
    if isinstance(schedule, Schedule):
        written = level_rnn(roots, gather_rows(products, product_row), w_own, w_other, schedule)
        return torch.cat([roots, written])
    from dynedge.ops.level_rnn.triton import level_rnn as triton_level_rnn

    return triton_level_rnn(roots, products, product_row, w_own, w_other, schedule)
