"""Decaying columns: numbers in an item's row that shrink by known factors from event to event.

Legend: n events, m chunks of them, d width of a row, r decaying columns, the last ones of a row.

Event k reads a decaying column x as 2^(x − decay[k]), where decay [n, r] is a time in half-lives: it never falls from
event to event. A row changes only with the item's own events, and a query meets it as the product of two factors,
2^(x − s) and 2^(s − decay[k]), with one s for all events of a chunk. s is an integer, so that the product has the
same bits for every s, and with it for every division of a log into windows.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

NEVER = -1e9  # in a decaying column: zero for every event


def relative_to_chunks(query: Tensor, rows: Tensor, decay: Tensor | None, chunk: int) -> tuple[Tensor, Tensor]:
    """(queries with the factor 2^(s − decay[k]) in the decaying columns, s [m, r]) for chunks of `chunk` events."""
    if decay is None:
        return query, rows.new_zeros(-(-len(query) // chunk), 0)
    d, r = rows.shape[1], decay.shape[1]
    shift = decay[::chunk].floor()
    factor = _exp2(shift.repeat_interleave(chunk, 0)[: len(query)].double() - decay).to(query.dtype)
    return query * F.pad(F.pad(factor, (d - r, 0), value=1.0), (0, query.shape[1] - d), value=1.0), shift.to(
        rows.dtype
    )


def _exp2(x: Tensor) -> Tensor:
    """2^x in float64; on a CPU by numpy, whose bits do not depend on how many numbers there are."""
    return torch.exp2(x) if x.is_cuda else torch.from_numpy(np.exp2(x.numpy()))


def as_powers(rows: Tensor, shift: Tensor) -> Tensor:
    """Rows [.., d] with 2^(x − shift) instead of x in their decaying columns; shift [.., r]."""
    r = shift.shape[-1]
    if not r:
        return rows
    fixed, decaying = rows[..., :-r], rows[..., -r:]
    return torch.cat([fixed, torch.exp2((decaying - shift).double()).to(rows.dtype)], -1)
