"""The truth, in plain torch, on any device. Autograd does the backward. Shapes as in the package's docstring."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional as F

from dynedge.ops.sampled_softmax.candidate_columns import CHUNK, CandidateColumns, ScoreBonus


def sampled_softmax(
    wanted: Tensor,
    arena: Tensor,
    outside: Tensor,
    ids: Tensor | None,
    columns: CandidateColumns,
    item: Tensor,
    row: Tensor,
    bonus: ScoreBonus | None = None,
    negative_weight: float = 1.0,
) -> Tensor:
    d, count = arena.shape[1], columns.count
    negative = scores(wanted, torch.cat([arena, outside]), ids, columns)
    positive = (wanted[:, :d] * arena.index_select(0, row)).sum(1)
    if ids is not None:
        own = F.embedding(item, ids, sparse=count < len(ids))
        positive = positive + (wanted[:, d:] * own[:, :-1]).sum(1) + own[:, -1]
    if bonus is not None:
        added = torch.zeros_like(negative).index_put((bonus.event, bonus.item), bonus.value)
        negative, positive = negative + added, positive + added.gather(1, item[:, None]).squeeze(1)
    same = columns.item[:, :count].repeat_interleave(CHUNK, 0)[: len(item)] == item[:, None]
    logits = torch.cat([positive[:, None], negative.masked_fill(same, -torch.inf) + math.log(negative_weight)], 1)
    return F.cross_entropy(logits, torch.zeros_like(item), reduction="sum")


def scores(wanted: Tensor, pool: Tensor, ids: Tensor | None, columns: CandidateColumns) -> Tensor:
    """[n, C]: the inner product of what is wanted with each candidate as it is just before the event."""
    n, d, count = len(wanted), pool.shape[1], columns.count
    found = _products(wanted[:, :d], F.embedding(columns.row[:, :count], pool))
    event = torch.arange(n, device=wanted.device)
    chunk, moved = event // CHUNK, slice(count, None)
    read = (columns.since[chunk, moved] < event[:, None]) & (event[:, None] <= columns.until[chunk, moved])
    event, column = read.nonzero(as_tuple=True)
    row, candidate = (part[event // CHUNK, count + column] for part in (columns.row, columns.candidate))
    fresh = (wanted[:, :d].index_select(0, event) * pool.index_select(0, row)).sum(1)
    found = found.index_put((event, candidate), fresh)
    if ids is None:
        return found
    if count == len(ids):
        return found + torch.addmm(ids[:, -1], wanted[:, d:], ids[:, :-1].T)
    own = F.embedding(columns.item[:, :count], ids, sparse=True)
    return found + own[..., -1].repeat_interleave(CHUNK, 0)[:n] + _products(wanted[:, d:], own[..., :-1])


def _products(wanted: Tensor, vectors: Tensor) -> Tensor:
    """[n, C]: of each event's vector [n, d] with those of its chunk [m, C, d]."""
    n, chunks = len(wanted), len(vectors)
    asked = F.pad(wanted, (0, 0, 0, chunks * CHUNK - n)).view(chunks, CHUNK, wanted.shape[1])
    return torch.bmm(asked, vectors.transpose(1, 2)).flatten(0, 1)[:n]
