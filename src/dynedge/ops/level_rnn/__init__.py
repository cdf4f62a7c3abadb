"""level_rnn: all states that a window writes, by two simple (Elman) recurrent updates per event.

Legend: d width of a state, W states written, F = `schedule.first_written` rows of the arena before them.

Row w of side s has two parents in the arena, own and other (`schedule.parents`), and is

    tanh(W_own[s] · own + W_other[s] · other + pre[w])       pre[w]: the event's features projected, plus the bias
"""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from dynedge.ops.level_rnn import cpu, reference
from dynedge.plan.schedule import Schedule

__all__ = ["level_rnn"]

BY_DEVICE: dict[str, Callable[..., Tensor]] = {"cpu": cpu.level_rnn}


def level_rnn(roots: Tensor, pre: Tensor, w_own: Tensor, w_other: Tensor, schedule: Schedule) -> Tensor:
    """The written states [W, d]; roots [F, d], pre [W, d], weights [2, d, d]. Differentiable once in all four.

    A row's bits depend only on its inputs: a log may be cut into windows anywhere.
    """
    return BY_DEVICE.get(roots.device.type, reference.level_rnn)(roots, pre, w_own, w_other, schedule)
