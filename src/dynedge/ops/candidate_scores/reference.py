"""Reference implementation in plain PyTorch, on any device; a few events at a time, to bound the memory of states."""

from __future__ import annotations

import torch
from torch import Tensor

from dynedge.ops.candidate_scores.inputs import ItemUpdates, ScoreInputs
from dynedge.ops.decaying_columns import as_powers
from dynedge.ops.read_states.reference import read_states

MAX_STATES = 1 << 18  # allocated at once


def candidate_scores(inputs: ScoreInputs) -> Tensor:
    scores = inputs.query.new_empty(inputs.candidates.shape)
    step = max(1, MAX_STATES // max(scores.shape[1], 1))
    for first in range(0, len(scores), step):
        part = slice(first, first + step)
        decay = None if inputs.decay is None else inputs.decay[part]
        chunk = inputs._replace(query=inputs.query[part], candidates=inputs.candidates[part], decay=decay)
        scores[part] = _chunk_scores(chunk, first)
    return scores


def _chunk_scores(inputs: ScoreInputs, first: int) -> Tensor:
    query, candidates, table, id_embeddings, updates, arena, decay = inputs
    d, items = arena.shape[1], candidates.flatten()
    events = torch.arange(first, first + len(query), device=query.device)
    rows = row_before(candidates, events, updates).flatten()
    states = read_states([(table, items)], None)
    if len(updates.events):
        states = torch.where((rows >= 0)[:, None], arena.index_select(0, rows.clamp_min(0)), states)
    states = states.view(*candidates.shape, d)
    if decay is not None:
        states = as_powers(states, decay[:, None])
    with torch.autocast(query.device.type, enabled=False):  # scores in bfloat16 would tie
        scores = torch.bmm(states, query[:, :d, None])
        if id_embeddings is not None:
            embeddings = id_embeddings.index_select(0, items).view(*candidates.shape, d + 1)
            scores = torch.baddbmm(scores + embeddings[..., d:], embeddings[..., :d], query[:, d:, None])
    return scores[..., 0]


def row_before(candidates: Tensor, events: Tensor, updates: ItemUpdates) -> Tensor:
    """int[n, C]: row of the arena with a candidate's state just before the event; −1 if it was not updated yet."""
    if not len(updates.events):
        return torch.full_like(candidates, -1)
    n = len(updates.row_after)
    slot = torch.searchsorted(updates.items, candidates.to(updates.items.dtype)).clamp_(max=len(updates.items) - 1)
    numbers = torch.arange(len(updates.items), device=candidates.device)
    slots = torch.repeat_interleave(numbers, updates.starts.diff(), output_size=len(updates.events))
    earlier = torch.searchsorted(
        slots * n + updates.events, slot * n + events[:, None]
    )  # updates before it, over all slots
    is_updated = (updates.items[slot] == candidates) & (earlier > updates.starts[slot])
    return torch.where(is_updated, updates.row_after[updates.events[(earlier - 1).clamp_min_(0)]], -1)
