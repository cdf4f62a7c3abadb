"""all_scores on a CPU, by compiled matrix products.

The product is transposed: rows are items, columns are events. So the items' states are read in place, the query
vectors of a block of events stay in the L2 cache, and a state that an item takes on inside the block is one more row,
for the columns after it.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from dynedge.ops.all_scores import cpu_kernels
from dynedge.ops.decaying_columns import relative_to_chunks
from dynedge.ops.gather_matmul import VECTOR_BYTES
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
    n, d = len(query), states.shape[1]
    lanes = VECTOR_BYTES // query.element_size()
    out = torch.empty(
        len(states), -(-n // lanes) * lanes, dtype=query.dtype
    )  # padded to whole vectors, so that all sums run alike
    current = np.array(states.numpy(), order="C")  # as of the block's start
    embeddings = np.zeros((0, d + 1), current.dtype)
    if id_embeddings is not None:
        embeddings = np.ascontiguousarray(id_embeddings.numpy())
    transposed = np.zeros((query.shape[1], out.shape[1]), current.dtype)
    transposed[:, :n] = query.numpy().T
    new_states, rows, items = np.ascontiguousarray(arena.numpy()), row_after.numpy(), item.numpy()
    decaying, every = current[:, d - shifts.shape[1] :].copy(), np.arange(len(current))
    for start, shift in zip(range(0, n, BLOCK), shifts.numpy(), strict=True):
        cpu_kernels.write_powers(current, decaying, shift, every)
        block = np.ascontiguousarray(transposed[:, start : start + BLOCK])
        tables = current, embeddings, block[:d], block[d:]
        run_in_parts(cpu_kernels.score_items, len(current), out.numpy(), start, *tables)
        events = slice(start, start + BLOCK)
        cpu_kernels.apply_updates(
            out.numpy(), start, *tables, items[events], rows[events], new_states, decaying, shift
        )
    return out[:, :n].T
