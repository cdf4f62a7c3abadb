"""Reference implementation in plain PyTorch, on any device. Autograd computes the backward pass."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional as F


def gather_linear(parts: Sequence[tuple[Tensor, Tensor | None]], w: Tensor, bias: Tensor, relu: bool) -> Tensor:
    inputs = [x if index is None else gather_rows(x, index) for x, index in parts]
    out = F.linear(torch.cat(inputs, 1), w, bias)
    return F.relu(out) if relu else out


def gather_rows(x: Tensor, index: Tensor) -> Tensor:
    return x.index_select(0, index)


def embed(
    tables: Sequence[Tensor], codes: Tensor, entities: Tensor, first: int
) -> tuple[Tensor, tuple[Tensor, Tensor | None]]:
    parts = [F.embedding(own[entities], table, sparse=True) for own, table in zip(codes, tables, strict=True)]
    rows = parts[0] if len(parts) == 1 else torch.cat(parts, 1)
    # On a CPU by number, so that the backward pass does not copy the table.
    return rows, (rows[:first], None) if rows.is_cuda else (rows, torch.arange(first))
