"""The arguments of sampled_softmax that are more than one tensor. Shapes as in the package."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor

CHUNK = 128  # events; with it grows the number of items updated inside a chunk, and the efficiency of matrix products


@dataclass(frozen=True, eq=False)
class CandidateColumns:
    """The candidates of each chunk. All int64, on the device of the model. Padding columns are read by no event."""

    count: int  # C: the first columns are the candidates as they are at the chunk's start
    item: Tensor  # [m, A]
    row: Tensor  # [m, A]: of the pool [arena | outside]
    since: Tensor  # [m, A]: the event that wrote the state; -1 if it is from before the chunk
    until: Tensor  # [m, A]: the last event that reads it
    candidate: Tensor  # [m, A]: which of the C candidates it is
    outside: Tensor  # items that no event of the window touches; their states are those at its start


@dataclass(frozen=True, eq=False)
class ChunkCandidates:
    """The candidates of each chunk for the Triton kernel, which finds by itself those updated inside a chunk.

    Their states are rows of the pool [arena | outside].
    `outside` has a row for every item or, where candidates are sampled, one for each of a sample's C.
    """

    items: Tensor  # int[m, C]
    rows: Tensor  # int[m, C]: at the chunk's start
    first_update: Tensor  # int32[m, C]: the first event from there on that updates it; beyond all events if none does
    outside: Tensor  # the items whose states at the window's start are the rows of the argument `outside`
    all_items: bool  # whether the candidates of each chunk are all items
    chunks_per_sample: int = 1  # consecutive chunks with the same candidates
    distinct_true: bool = False  # whether no two events have the same row as their true item's


class ScoreBonus(NamedTuple):
    """What is added to an event's scores of some items: entries start[k] to start[k + 1] − 1 are those of event k."""

    start: Tensor  # int64[n + 1]
    event: Tensor  # int64[L], ascending
    item: Tensor  # int64[L], each at most once per event
    value: Tensor  # [L]


class ListedScores(NamedTuple):
    """Candidates of an event alone, such as those of ops/list_log_sum."""

    true: Tensor  # [n]: what is added to the score of the true item
    others: Tensor  # [n]: log of the sum of exponentials of the other ones' scores; −∞: none


class LossInputs(NamedTuple):
    """The tensors that every implementation reads."""

    query: Tensor  # [n, D]
    arena: Tensor  # [R, d]
    outside: Tensor  # [.., d]
    id_embeddings: Tensor | None  # [I, d + 1]
    item: Tensor  # int64[n]: the true items
    row: Tensor  # int64[n]: the rows of the arena with their states
    decay: Tensor | None = None  # [n, r]
