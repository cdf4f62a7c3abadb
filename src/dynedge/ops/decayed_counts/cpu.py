"""decayed_counts on a CPU, compiled by numba."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from dynedge.utils.array_type import Array
from dynedge.utils.numba_compile import compiled


def decayed_counts(
    start: Tensor, start_event: Tensor, item_starts: Tensor, item_events: Tensor, clock: Tensor, rate: Tensor
) -> Tensor:
    out = start.new_empty(len(item_events), start.shape[1])
    lists = start_event.numpy(), item_starts.numpy(), item_events.numpy()
    count_events(np.ascontiguousarray(start.numpy()), *lists, int(clock), rate.numpy(), out.numpy())
    return torch.as_tensor(out)


@compiled
def count_events(
    start: Array, start_event: Array, item_starts: Array, item_events: Array, clock: int, rate: Array, out: Array
) -> None:
    for i in range(len(item_starts) - 1):
        for j in range(len(rate)):
            count, previous = start[i, j], start_event[i]
            for w in range(item_starts[i], item_starts[i + 1]):
                number = clock + item_events[w]
                out[w, j] = 1 + np.float64(count) * np.exp2((previous - number) * rate[j])
                count, previous = out[w, j], number
