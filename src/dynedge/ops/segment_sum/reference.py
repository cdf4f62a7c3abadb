"""Reference implementation in plain PyTorch.

Legend: N rows to sum, S keys.
"""

from __future__ import annotations

from torch import Tensor


def segment_sum(values: Tensor, source: Tensor, keys: Tensor, out: Tensor) -> None:
    """out[key] = Σ values[source[i]] over all i with keys[i] = key; rows of out [S, d] without a key are left alone.

    source and keys are int[N], keys sorted.
    """
    out[keys.long()] = 0
    out.index_add_(0, keys, values.index_select(0, source).to(out.dtype))
