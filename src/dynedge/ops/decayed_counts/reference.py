"""Reference implementation in plain PyTorch, on any device: one event after the other."""

from __future__ import annotations

import torch
from torch import Tensor


def decayed_counts(
    start: Tensor, start_event: Tensor, item_starts: Tensor, item_events: Tensor, clock: Tensor, rate: Tensor
) -> Tensor:
    out = start.new_empty(len(item_events), start.shape[1])
    for i, (first, last) in enumerate(zip(item_starts[:-1].tolist(), item_starts[1:].tolist(), strict=True)):
        count, previous = start[i], start_event[i]
        for w in range(first, last):
            number = clock[0] + item_events[w]
            count = (1 + count.double() * torch.exp2((previous - number) * rate)).to(start.dtype)
            out[w], previous = count, number
    return out
