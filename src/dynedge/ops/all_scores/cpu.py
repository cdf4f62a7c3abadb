"""all_scores on a CPU, by compiled matrix products.

A block of events is multiplied by a tile of items at a time: the query vectors of the block and the transposed tile
stay in the L2 cache. A state that an item takes on inside the block is one more row, for the events after it.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from dynedge.ops.all_scores import cpu_kernels
from dynedge.ops.decaying_columns import relative_to_chunks
from dynedge.ops.thread_pool import run_in_parts

BLOCK = 256  # events; their query vectors take 128 KiB at D = 128


def all_scores(
    query: Tensor,
    states: Tensor,
    id_embeddings: Tensor | None,
    item: Tensor,
    row_after: Tensor,
    arena: Tensor,
    decay: Tensor | None,
) -> Tensor:
    query, shifts = relative_to_chunks(query, states, decay, BLOCK)
    n, d, items = len(query), states.shape[1], len(states)
    current = np.array(states.numpy(), order="C")  # as of the block's start
    out = np.empty((n, items), current.dtype)  # not torch.empty: numpy asks for large pages
    embeddings = np.zeros((0, d + 1), current.dtype)
    if id_embeddings is not None:
        embeddings = np.ascontiguousarray(id_embeddings.numpy())
    queries, new_states = np.ascontiguousarray(query.numpy()), np.ascontiguousarray(arena.numpy())
    rows, of_events = row_after.numpy(), item.numpy()
    decaying, every = current[:, d - shifts.shape[1] :].copy(), np.arange(items)
    for start, shift in zip(range(0, n, BLOCK), shifts.numpy(), strict=True):
        cpu_kernels.write_powers(current, decaying, shift, every)
        block = slice(start, start + BLOCK)
        tables = current, embeddings, queries[block]
        run_in_parts(cpu_kernels.score_items, items, out[block], *tables)
        cpu_kernels.apply_updates(out[block], *tables, of_events[block], rows[block], new_states, decaying, shift)
    return torch.from_numpy(out)
