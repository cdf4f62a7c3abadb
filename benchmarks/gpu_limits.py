"""Measured limits of a GPU, and the lower bound on the time of an epoch that follows from them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import torch

from dynedge.models.edge.recurrence import Recurrence


@dataclass(frozen=True)
class Limits:
    """Measured limits of the current GPU."""

    bandwidth: float  # bytes/s, of a copy: read and written
    rate: float  # bfloat16 operations/s, of a large matrix product
    level: float  # seconds per level of one event, forward and backward

    @classmethod
    def measure(cls, dim: int) -> Limits:
        source = torch.randn(2**28, device="cuda")
        target = torch.empty_like(source)
        copy = timed(lambda: target.copy_(source))
        a, b = (torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16) for _ in range(2))
        product = timed(lambda: a @ b)
        return cls(2 * source.nbytes / copy, 2 * 8192**3 / product, level_seconds(dim))

    def __str__(self) -> str:
        rates = f"copy {self.bandwidth / 1e12:.2f} TB/s, bf16 {self.rate / 1e12:.0f} TFLOP/s"
        return f"{rates}, level {self.level * 1e6:.2f} µs"

    def floor(self, model: Recurrence, events: int, rows: int, levels: int) -> dict[str, float]:
        """Returns lower bounds on the seconds of an epoch, by what limits it: bytes, products or levels.

        Bytes of a written state: two states read, one written, its feature product read; four gates stored and read
        again; its gradient and those of two children read, four gradients and those of two parents written; the
        gates' gradients and operands read again for the weight gradients. Bytes of an event: inputs, hidden layer and
        output of the head, forward and backward.
        """
        d, width = model.config.dim, model.items.width
        state = 4 * (3 + 1 + 2 + 2) * d + 2 * (3 + 4 + 4 + 4 + 4 + 2 + 2) * d
        event = 2 * (4 * (2 * d + width) + 2 * 3 * d)
        products = 36 * d * d * rows + 6 * (2 * d * (d + width) + 2 * d * d) * events
        return {
            "bytes": (state * rows + event * events) / self.bandwidth,
            "products": products / self.rate,
            "levels": levels * self.level,
        }


def level_seconds(dim: int, levels: int = 2000, width: int = 1) -> float:
    """Returns the seconds per level of `width` events, forward and backward."""
    from dynedge.ops.level_gru.triton import Levels, level_gru
    from dynedge.plan.links import Linker
    from dynedge.plan.schedule import build_schedule

    ids = np.tile(np.arange(width, dtype=np.int32), levels)
    linker = Linker(np.zeros(width, bool), np.zeros(width, bool))
    chain = Levels.of(build_schedule(ids, ids, linker(ids, ids), np.zeros(0, np.int64)), "cuda")
    shapes = (2 * width, dim), (4, 3 * dim), (2, 3 * dim, dim), (2, 3 * dim, dim), (2, 3 * dim)
    roots, pre, *weights = (0.1 * torch.randn(shape, device="cuda") for shape in shapes)
    source = torch.zeros(2 * levels * width, dtype=torch.int32, device="cuda")
    roots.requires_grad_()

    def forward_and_backward() -> None:
        with torch.autocast("cuda", torch.bfloat16):
            arena = level_gru(roots, pre.bfloat16(), source, *weights, chain)
        torch.autograd.grad(arena.sum(), roots)

    return timed(forward_and_backward) / levels


def timed(work: Callable[[], object], times: int = 5) -> float:
    """Returns the median seconds of `work` on the GPU, after a warm-up."""
    work()
    events = [_record_event()]
    for _ in range(times):
        work()
        events.append(_record_event())
    torch.cuda.synchronize()
    return float(np.median([a.elapsed_time(b) for a, b in pairwise(events)])) / 1e3


def gpu_time(work: Callable[[], Any]) -> tuple[Any, float]:
    """Returns the result of `work` and the total seconds of all kernels it launched."""
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CUDA], acc_events=True) as profiled:
        out = work()
        torch.cuda.synchronize()
    return out, sum(event.self_device_time_total for event in profiled.key_averages()) / 1e6


def _record_event() -> torch.cuda.Event:
    event = torch.cuda.Event(enable_timing=True)
    event.record()
    return event
