"""Popularity columns of an item: how often and how long ago it occurred, as numbers that a query can weight.

Legend: d width of a state, F half-lives of counts, r half-lives of the age, q items.

The F first columns are logarithms of exponentially decayed event counts, as of the item's last event; the r last ones
are 2^(−age / half-life), the age being the number of events of the log since then. They replace the last columns of
the item's state where candidates are scored, so that scoring is as wide as without them. All half-lives are powers of
two: ages in half-lives are exact then (ops/decaying_columns.py).
"""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from dynedge.models.base import State
from dynedge.models.state_checks import check_tensor
from dynedge.ops.decaying_columns import NEVER
from dynedge.ops.gather_matmul import ALLOW_FMA
from dynedge.ops.vector_math import exp2, log
from dynedge.utils.array_type import Array
from dynedge.utils.numba_compile import compiled

COUNTS, EVENT, CLOCK = "item_counts", "item_event", "clock"  # names in the state
NO_EVENT = -1
SHORTEST, LONGEST = 2, 16  # of the half-lives of the age: powers of two
BLOCK, ONE = 256, np.float32(1)
ZERO_BELOW = np.float32(-126)  # exponents of two in float32
COUNT_HALF_LIVES = 6, 10, 14  # powers of two; the first count does not decay


class Rates(NamedTuple):
    """One over each half-life, in events."""

    counts: Tensor  # float64[F]
    ages: Tensor  # float64[r]

    @property
    def width(self) -> int:
        """Number of columns."""
        return len(self.counts) + len(self.ages)


@cache
def rates(dim: int, device: torch.device) -> Rates:
    """Up to four columns for counts and eight for ages, fewer where states are narrow."""
    counts, ages = min(4, dim // 5), min(8, dim // 4)
    powers = torch.linspace(SHORTEST, LONGEST, ages, dtype=torch.float64).round()
    of_counts = [0.0, *(2.0**-power for power in COUNT_HALF_LIVES)][:counts]
    return Rates(torch.tensor(of_counts, dtype=torch.float64, device=device), torch.exp2(-powers).to(device))


def empty(items: int, rate: Rates, like: Tensor) -> State:
    """The state before the first event."""
    device = like.device
    return State(
        {
            COUNTS: like.new_zeros(items, len(rate.counts)),
            EVENT: torch.full((items,), NO_EVENT, device=device),
            CLOCK: torch.zeros(1, dtype=torch.int64, device=device),
        }
    )


def check(state: State, items: int, rate: Rates, dtype: torch.dtype) -> None:
    """Raises DataError unless the columns in a state from a file are in range."""
    clock = int(check_tensor(state, CLOCK, torch.int64, (1,), 0, 2**53))
    check_tensor(state, COUNTS, dtype, (items, len(rate.counts)), 0)
    check_tensor(state, EVENT, torch.int64, (items,), NO_EVENT, clock - 1)


def columns(counts: Tensor, event: Tensor, clock: Tensor, rate: Rates) -> Tensor:
    """[q, F + r] of items with these counts [q, F] at their last events, of number int64[q].

    The ages are columns that decay: in half-lives, relative to the last whole half-life before `clock`.
    """
    exists = (event >= 0)[:, None]
    fixed = torch.where(exists, 1 + counts.clamp_min(1).log(), 0.0)
    ages = (event[:, None] - _origin(clock, rate)) * rate.ages
    return torch.cat([fixed, torch.where(exists, ages.to(counts.dtype), NEVER)], 1)


@compiled(fastmath=ALLOW_FMA)
def fill_scores(counts: Array, event: Array, clock: Array, ages: Array, weights: Array, out: Array) -> None:
    """out float32[I]: the products of all items' columns, at the state's clock, with weights float32[F + r].

    In blocks, of which the items with events are copied side by side, so that the loops are vectorised. `ages` are
    the rates in float32.
    """
    width, place = counts.shape[1], np.empty(BLOCK, np.int64)
    age, total, fixed = np.empty(BLOCK, np.float32), np.empty(BLOCK, np.float32), np.empty(BLOCK * width, np.float32)
    for start in range(0, len(event), BLOCK):
        size, newest = 0, np.float32(-np.inf)
        for i in range(start, min(start + BLOCK, len(event))):
            place[size], out[i] = i, 0
            size += event[i] >= 0
        for k in range(size):
            age[k] = event[place[k]] - clock[0]
            newest = max(newest, age[k])
            for j in range(width):
                fixed[k * width + j] = counts[place[k], j]
        for k in range(size * width):
            fixed[k] = ONE + log(fixed[k] if fixed[k] > ONE else ONE)
        for k in range(size):
            total[k] = 0
            for j in range(width):
                total[k] += weights[j] * fixed[k * width + j]
        for j in range(len(ages)):
            if newest * ages[j] >= ZERO_BELOW:
                for k in range(size):
                    total[k] += weights[width + j] * exp2(age[k] * ages[j])
        for k in range(size):
            out[place[k]] = total[k]


def decay(count: int, clock: Tensor, rate: Rates) -> Tensor:
    """float64[count, r]: `decay` of ops/decaying_columns.py for the next `count` events."""
    number = clock + torch.arange(count, device=clock.device)
    return (number[:, None] - _origin(clock, rate)) * rate.ages


def _origin(clock: Tensor, rate: Rates) -> Tensor:
    return (clock * rate.ages).floor() / rate.ages
