"""all_scores on a CPU, in compiled products.

The product is turned round: rows are items, columns are events. So the items' states are read where they lie, what a
block of events wants stays in the second-level cache, and a state that an item takes on inside the block is one more
row, for the columns after it.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from dynedge.ops.all_scores import cpu_kernels as kernels
from dynedge.ops.gather_matmul import VECTOR_BYTES
from dynedge.ops.thread_pool import run_in_parts

BLOCK = 256  # events; what they want is 128 KiB at D = 128


def all_scores(
    wanted: Tensor, states: Tensor, ids: Tensor | None, item: Tensor, row: Tensor, arena: Tensor
) -> Tensor:
    n, d = len(wanted), states.shape[1]
    lanes = VECTOR_BYTES // wanted.element_size()
    out = torch.empty(len(states), -(-n // lanes) * lanes, dtype=wanted.dtype)  # whole vectors: one kind of sum
    now = np.array(states.numpy(), order="C")  # moves on, block by block
    own = np.zeros((0, d + 1), now.dtype) if ids is None else np.ascontiguousarray(ids.numpy())
    turned = np.zeros((wanted.shape[1], out.shape[1]), now.dtype)
    turned[:, :n] = wanted.numpy().T
    moves, rows, places = np.ascontiguousarray(arena.numpy()), row.numpy(), item.numpy()
    for at in range(0, n, BLOCK):
        block = np.ascontiguousarray(turned[:, at : at + BLOCK])
        for_state, for_id = block[:d], block[d:]
        run_in_parts(kernels.products, len(now), out.numpy(), at, now, own, for_state, for_id)
        events = slice(at, at + BLOCK)
        kernels.move(out.numpy(), at, now, own, for_state, for_id, places[events], rows[events], moves)
    return out[:, :n].T
