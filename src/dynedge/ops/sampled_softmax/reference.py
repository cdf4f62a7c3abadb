"""Reference implementation in plain PyTorch, on any device. Autograd computes the backward pass.

Legend: as in the package.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from dynedge.ops.decaying_columns import as_powers, relative_to_chunks
from dynedge.ops.sampled_softmax.inputs import CHUNK, CandidateColumns, ListedScores, LossInputs, ScoreBonus


def sampled_softmax(
    inputs: LossInputs,
    columns: CandidateColumns,
    bonus: ScoreBonus | None,
    log_weight: float,
    listed: ListedScores | None = None,
    q: float = 0.0,
) -> Tensor:
    """As in the package; `log_weight` is added to the candidates' scores."""
    query, arena, outside, id_embeddings, item, row, decay = inputs
    query, shift = relative_to_chunks(query, arena, decay, CHUNK)
    d, count = arena.shape[1], columns.count
    negative = scores(query, torch.cat([arena, outside]), id_embeddings, columns, shift)
    chunk = torch.arange(len(item), device=item.device) // CHUNK
    true = as_powers(arena.index_select(0, row), shift[chunk])
    positive = (query[:, :d] * true).sum(1)
    if id_embeddings is not None:
        embedding = F.embedding(item, id_embeddings, sparse=count < len(id_embeddings))
        positive = positive + (query[:, d:] * embedding[:, :-1]).sum(1) + embedding[:, -1]
    if bonus is not None:
        added = torch.zeros_like(negative).index_put((bonus.event, bonus.item), bonus.value)
        negative, positive = negative + added, positive + added.gather(1, item[:, None]).squeeze(1)
    is_true = columns.item[:, :count].repeat_interleave(CHUNK, 0)[: len(item)] == item[:, None]
    logits = torch.cat([positive[:, None], negative.masked_fill(is_true, -torch.inf) + log_weight], 1)
    if listed is not None:
        logits = torch.cat([logits[:, :1] + listed.true[:, None], logits[:, 1:], listed.others[:, None]], 1)
    return cross_entropy_of_first(logits, q)


def cross_entropy_of_first(logits: Tensor, q: float) -> Tensor:
    """Sum of the losses of events whose true items have the scores in the first column."""
    true = torch.zeros(len(logits), dtype=torch.int64, device=logits.device)
    if q == 0:
        return F.cross_entropy(logits, true, reduction="sum")
    return (-torch.expm1(-q * F.cross_entropy(logits, true, reduction="none")) / q).sum()


def scores(
    query: Tensor, pool: Tensor, id_embeddings: Tensor | None, columns: CandidateColumns, shift: Tensor
) -> Tensor:
    """[n, C]: inner product of each query vector with each candidate as it is just before the event."""
    n, d, count = len(query), pool.shape[1], columns.count
    out = _products(query[:, :d], as_powers(F.embedding(columns.row[:, :count], pool), shift[:, None]))
    event = torch.arange(n, device=query.device)
    chunk, updated = event // CHUNK, slice(count, None)
    reads = (columns.since[chunk, updated] < event[:, None]) & (event[:, None] <= columns.until[chunk, updated])
    event, column = reads.nonzero(as_tuple=True)
    row, candidate = (part[event // CHUNK, count + column] for part in (columns.row, columns.candidate))
    states = as_powers(pool.index_select(0, row), shift[event // CHUNK])
    updated_scores = (query[:, :d].index_select(0, event) * states).sum(1)
    out = out.index_put((event, candidate), updated_scores)
    if id_embeddings is None:
        return out
    if count == len(id_embeddings):
        return out + torch.addmm(id_embeddings[:, -1], query[:, d:], id_embeddings[:, :-1].T)
    embedding = F.embedding(columns.item[:, :count], id_embeddings, sparse=True)
    bias = embedding[..., -1].repeat_interleave(CHUNK, 0)[:n]
    return out + bias + _products(query[:, d:], embedding[..., :-1])


def _products(query: Tensor, vectors: Tensor) -> Tensor:
    """[n, C]: inner products of each event's vector [n, d] with those of its chunk [m, C, d]."""
    n, chunks = len(query), len(vectors)
    padded = F.pad(query, (0, 0, 0, chunks * CHUNK - n)).view(chunks, CHUNK, query.shape[1])
    return torch.bmm(padded, vectors.transpose(1, 2)).flatten(0, 1)[:n]
