"""Negative items of the sampled evaluation protocols.

They depend only on the seed, the event's position in the log and the number of items, so every model ranks the same
candidates, whatever the batch size and the device. Sampled without replacement, never the true item.
"""

from __future__ import annotations

from torch import Tensor

from dynedge.ops.sample_negatives import sample_negatives

SEED = 499_002  # stored with all sampled ranks; to be changed whenever the sampling changes


def evaluation_negatives(events: range, true: Tensor, num_items: int, count: int, seed: int = SEED) -> Tensor:
    """Returns the negatives of the events at these positions, int64[n, min(count, num_items - 1)]."""
    return sample_negatives(true, events.start, num_items, count, seed)
