"""The items an event's own is ranked among under a sampled protocol.

They are a function of the seed, the event's position and the number of items, and nothing else: every model meets the
same ones, however its events are cut into chunks, on whatever device. Drawn without replacement, never the true item.
Where there are no more others than that, all of them are taken.
"""

from __future__ import annotations

from torch import Tensor

from dynedge.ops.sample_negatives import sample_negatives

SEED = 499_002  # stored with every rank that was counted among these; another one whenever the draws change


def negatives(events: range, true: Tensor, num_items: int, count: int, seed: int = SEED) -> Tensor:
    """int64[n, min(count, num_items - 1)]: the other candidates of the events at these positions of the log."""
    return sample_negatives(true, events.start, num_items, count, seed)
