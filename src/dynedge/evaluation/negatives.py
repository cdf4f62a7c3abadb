"""Candidates of the sampled evaluation protocols: the event's own item and negatives.

Negatives depend only on the seed, the event's position in the log and the number of items, so every model ranks the
same candidates, whatever the batch size and the device. Sampled without replacement, never the true item.
"""

from __future__ import annotations

from torch import Tensor

from dynedge.ops.sample_candidates import sample_candidates

SEED = 499_002  # stored with all sampled ranks; to be changed whenever the sampling changes


def evaluation_candidates(events: range, true: Tensor, num_items: int, count: int, seed: int = SEED) -> Tensor:
    """int64[n, 1 + min(count, num_items - 1)] of the events at these positions; the first column is `true`."""
    return sample_candidates(true, events.start, num_items, count, seed)
