"""The columns that the events of a window are scored against. Shapes as in the package's docstring."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor

CHUNK = 128  # events; the columns of what moves inside a chunk grow with it, the products want it large


@dataclass(frozen=True, eq=False)
class CandidateColumns:
    """All int64, on the device of the model. Padding columns are read by no event."""

    count: int  # C: the first columns are the candidates as they are at the chunk's start
    item: Tensor  # [m, A]
    row: Tensor  # [m, A]: of the pool [arena | outside]
    since: Tensor  # [m, A]: the event that wrote it, before the chunk: -1
    until: Tensor  # [m, A]: the last event that reads it
    candidate: Tensor  # [m, A]: which of the C it is
    outside: Tensor  # items the window never meets; their states stay what they were at its start


class ScoreBonus(NamedTuple):
    """What is added to an event's scores of some items: event k's are those from start[k] to start[k + 1] − 1."""

    start: Tensor  # int64[n + 1]
    event: Tensor  # int64[L], rising
    item: Tensor  # int64[L], each at most once an event
    value: Tensor  # [L]
