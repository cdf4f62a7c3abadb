"""candidate_scores on a GPU by Triton kernels, in float32: states are read in place, and only scores are written."""

from __future__ import annotations

import torch
import triton
from torch import Tensor

from dynedge.ops.candidate_scores import triton_kernels
from dynedge.ops.candidate_scores.inputs import ScoreInputs

CANDIDATES = 32  # scored at once by a program


def candidate_scores(inputs: ScoreInputs) -> Tensor:
    query, candidates, table, id_embeddings, updates, arena, decay = inputs
    (n, count), (items, d) = candidates.shape, table.stored.shape
    out = arena.new_empty(n, count)
    if not (n and count):
        return out
    slot = torch.full((items,), -1, dtype=torch.int32, device=out.device)
    if len(updates.items):
        numbers = torch.arange(len(updates.items), dtype=torch.int32, device=out.device)
        slot.index_copy_(0, updates.items.long(), numbers)
    width = triton.next_power_of_2(d)
    triton_kernels.score_candidates[(n,)](
        *(out, query.contiguous(), candidates.contiguous(), table.xi.contiguous(), *table[1:], arena),
        *(
            arena if id_embeddings is None else id_embeddings.contiguous(),
            slot,
            updates.starts,
            updates.events,
            updates.row_after,
            arena if decay is None else decay.contiguous(),
            count,
        ),
        d=d,
        DECAYING=0 if decay is None else decay.shape[1],
        BC=CANDIDATES,
        BK=width,
        HAS_IDS=id_embeddings is not None,
        num_warps=max(1, width // 64),  # a warp reads all rows at once, and none waits for another
    )
    return out
