"""The arguments of list_log_sum. Shapes as in the package."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor


class ListedRows(NamedTuple):
    """The listed items of each event; event k has start[k] to start[k + 1] − 1."""

    start: Tensor  # int64[n + 1]
    event: Tensor  # int[L]
    item: Tensor  # int[L]
    row: Tensor  # int[L]: of the pool [arena | outside], as it is just before the event


class SumInputs(NamedTuple):
    """The tensors that every implementation reads."""

    query: Tensor  # [n, D]
    value: Tensor  # [L]
    arena: Tensor  # [R, d]
    outside: Tensor  # [.., d]
    id_embeddings: Tensor | None  # [I, d + 1]
    lists: ListedRows
    item: Tensor  # int[n]: the true items
    decay: Tensor | None  # [n, r], see ops/decaying_columns.py
