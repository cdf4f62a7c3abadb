"""others: for each event some items that are not its own, each once, in no order that says anything.

Legend: n events, I items, C drawn.

Number j of an event at position p of a log is the image of j under a permutation of the I − 1 others that the seed
and p choose: so the draws are different by construction, each is worked out by itself, and they are a function of
seed, position and number of items, and of nothing else. The same bits on a CPU and on a GPU.

The permutation: with a · b ≥ I − 1, a number is a pair (x, y) below (a, b). ROUNDS times x is moved on, modulo a, by
a hash of y, then y, modulo b, by a hash of x. Who lands at I − 1 or above moves on; few do, a and b being √(I − 1),
rounded up. Six rounds: with four, sets of 2 of 20 are not quite equally likely (χ² in 1 M draws), with six they are.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from torch import Tensor

from dynedge.ops.dispatch import prefer_triton
from dynedge.ops.sample_negatives import cpu

__all__ = ["sample_negatives"]

ROUNDS = 6

BY_DEVICE: dict[str, Callable[..., Tensor]] = {
    "cpu": cpu.sample_negatives,
    "cuda": prefer_triton("dynedge.ops.sample_negatives.triton", "sample_negatives", cpu.sample_negatives),
}


def sample_negatives(true: Tensor, first: int, items: int, count: int, seed: int) -> Tensor:
    """int64[n, C] on the device of true int64[n], the items of the events from position `first` on; C is `count`, or
    all others where there are no more."""
    count = max(min(count, items - 1), 0)
    a = math.isqrt(max(items - 2, 0)) + 1
    b = max(-(-(items - 1) // a), 1)
    return BY_DEVICE[true.device.type](true, first, items - 1, a, b, count, seed, ROUNDS)
