"""The truth, in plain torch.

Legend: N rows to sum, S keys.
"""

from __future__ import annotations

from torch import Tensor


def segment_sum(values: Tensor, source: Tensor, keys: Tensor, out: Tensor) -> None:
    """out[key] = Σ values[source[i]] over all i with keys[i] = key; other rows of out [S, d] stay as they are.

    source and keys int[N], keys sorted.
    """
    out[keys.long()] = 0
    out.index_add_(0, keys, values.index_select(0, source).to(out.dtype))
