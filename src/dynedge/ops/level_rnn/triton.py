"""level_rnn on a GPU, by the kernels of level_gru: with r = 1 and z = 0 a gated update is a plain one.

A level takes a few microseconds whatever is computed in it, so that the gates cost next to nothing.
Legend: as in the package; P rows of pre.
"""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional as F

from dynedge.ops.level_gru.triton import Levels, level_gru

OPEN = 80.0  # in float32 its sigmoid is 1, and that of its negative is 2e−35, which no sum shows


def level_rnn(roots: Tensor, pre: Tensor, source: Tensor, w_own: Tensor, w_other: Tensor, levels: Levels) -> Tensor:
    """The arena float32[R, d]: the roots, then the written states; written row w adds pre[source[w]], pre [P, d]."""
    d = roots.shape[1]
    gated = F.pad(F.pad(pre, (d, 0), value=-OPEN), (d, 0), value=OPEN)
    own, other = (F.pad(weight, (0, 0, 2 * d, 0)) for weight in (w_own, w_other))
    return level_gru(roots, gated, source, own, other, roots.new_zeros(2, 3 * d), levels)
