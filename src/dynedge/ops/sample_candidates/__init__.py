"""sample_candidates: each event's own item and negative items, drawn without replacement.

Legend: n events, I items, C negatives of each.

Negative j of the event at position p of a log is the image of j under a permutation of the I − 1 other items that
the seed and p determine. So negatives are distinct by construction, each is computed by itself, and they are a
function of seed, position and number of items alone. The bits are the same on a CPU and on a GPU.

The permutation: with a · b ≥ I − 1, a number is a pair (x, y) below (a, b). ROUNDS times x is shifted modulo a by a
hash of y, then y modulo b by a hash of x. A result of I − 1 or above is permuted again; few are, a and b being
√(I − 1) rounded up. With four rounds, pairs out of 20 items are not quite equally likely (χ² in 1 M draws); with six
they are.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from torch import Tensor

from dynedge.ops.dispatch import prefer_triton
from dynedge.ops.sample_candidates import cpu

__all__ = ["sample_candidates"]

ROUNDS = 6

BY_DEVICE: dict[str, Callable[..., Tensor]] = {
    "cpu": cpu.sample_candidates,
    "cuda": prefer_triton("dynedge.ops.sample_candidates.triton", "sample_candidates", cpu.sample_candidates),
}


def sample_candidates(true: Tensor, first: int, items: int, count: int, seed: int) -> Tensor:
    """int64[n, 1 + C] on the device of true int64[n], the items of the events from position `first` on.

    The first column is `true`. C is `count`, or I − 1 if that is less.
    """
    count = max(min(count, items - 1), 0)
    a = math.isqrt(max(items - 2, 0)) + 1
    b = max(-(-(items - 1) // a), 1)
    return BY_DEVICE[true.device.type](true, first, items - 1, a, b, count, seed, ROUNDS)
