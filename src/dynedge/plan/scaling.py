"""Predicted time, traffic and memory of an epoch whose segments are shared by several processes.

A step takes as long as the slowest process needs for its windows, and then for the exchange of gradients; an epoch
ends with an exchange of states and of table rows. What is sent is what training/segments.py, segmented_step.py and
owned_rows.py send.

Legend: S segments, W processes, D numbers of whole parameters, d width of a state, R table rows that a window reads.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from dynedge.plan.cost_model import CostModel

EXCHANGES = (
    14  # per step: sizes and losses, two of whole gradients, four each to fetch and to update rows, norm, stop
)
ROW_BYTES = 8  # of a row's number


@dataclass(frozen=True)
class Network:
    """What one process can send per second, and the time that an exchange takes at least, per doubling of W."""

    name: str
    gigabytes_per_second: float
    latency_us: float


ONE_MACHINE = Network("gloo on one machine", 1.0, 100.0)
INFINIBAND = Network("NCCL, 400 Gbit/s per GPU", 40.0, 30.0)


@dataclass(frozen=True)
class ModelSize:
    """Sizes that traffic and memory depend on."""

    width: int  # d
    whole: int  # D
    users: int
    items: int
    window_rows: float  # R, on average
    lists: int = 0  # bytes of repeat and successor lists

    @property
    def state_bytes(self) -> int:
        """Of the states of all entities: vector, whether it changed, time, last item or popularity."""
        return (self.users + self.items) * (4 * self.width + 1 + 8 + 8) + self.lists

    @property
    def parameter_bytes(self) -> int:
        """Of the parameters and Adam's two moments."""
        return 3 * 4 * (self.whole + (self.items + 1) * self.width)


@dataclass(frozen=True)
class Prediction:
    """Of one epoch; seconds and bytes of one process."""

    steps: int
    compute: float
    exchange: float  # of gradients
    borders: float  # exchange of states
    step_bytes: float
    epoch_bytes: float  # steps and borders
    memory: float

    @property
    def seconds(self) -> float:
        return self.compute + self.exchange + self.borders


def predict(
    levels: Sequence[float],
    rows: Sequence[float],
    size: ModelSize,
    segments: int,
    processes: int,
    cost: CostModel,
    network: Network,
    working: float = 0.0,
) -> Prediction:
    """The prediction for windows with these longest paths and rows, in order; `working`: bytes to compute a window.

    The first epoch has a forward sweep besides.
    """
    seconds = [cost.epoch_seconds(*window) for window in zip(levels, rows, strict=True)]
    count, own = len(seconds), segments // processes
    parts = [range(count * s // segments, count * (s + 1) // segments) for s in range(segments)]
    steps, compute = max(map(len, parts)), 0.0
    for step in range(steps):
        times = [seconds[part[step]] if step < len(part) else 0.0 for part in parts]
        compute += max(sum(times[at : at + own]) for at in range(0, segments, own))
    sent = step_bytes(size, own, processes)
    tables = 2 * 4 * size.width * (size.items + 1) / processes  # trained and averaged, the own rows
    borders = 2 * size.state_bytes + (processes - 1) * tables if processes > 1 else 0
    latency = EXCHANGES * network.latency_us * 1e-6 * math.ceil(math.log2(processes)) if processes > 1 else 0.0
    speed = network.gigabytes_per_second * 1e9
    return Prediction(
        steps,
        compute,
        steps * (sent / speed + latency),
        borders / speed,
        sent,
        steps * sent + borders,
        size.parameter_bytes + 4 * size.whole * own + (own + 2) * size.state_bytes + working,
    )


def step_bytes(size: ModelSize, own: int, processes: int) -> float:
    """Bytes that a process with `own` segments sends in a step."""
    whole = 2 * 4 * size.whole
    rows = 2 * (ROW_BYTES + 4 * size.width) * size.window_rows * own  # asked for and answered, then gradients
    return (whole + rows) * (processes - 1) / processes
