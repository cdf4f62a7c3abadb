"""The columns that the events of a window are scored against. Shapes as in the package's docstring."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

CHUNK = 128  # events; the columns of what moves inside a chunk grow with it, the products want it large


@dataclass(frozen=True, eq=False)
class Columns:
    """All int64, on the device of the model. Columns that only fill up a chunk's row are read by no event."""

    count: int  # C: the first columns are the candidates as they are at the chunk's start
    item: Tensor  # [m, A]
    row: Tensor  # [m, A]: of the pool [arena | outside]
    since: Tensor  # [m, A]: the event that wrote it, before the chunk: -1
    until: Tensor  # [m, A]: the last event that reads it
    candidate: Tensor  # [m, A]: which of the C it is
    outside: Tensor  # items the window never meets; their states stay what they were at its start
