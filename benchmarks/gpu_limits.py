"""What a GPU can do, measured; and how long an epoch takes on it at least."""

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
    bandwidth: float  # bytes/s, read and written
    rate: float  # bfloat16 operations/s
    level: float  # seconds of a level of one event, forward and backward

    @classmethod
    def measure(cls, dim: int) -> Limits:
        source = torch.randn(2**28, device="cuda")
        target = torch.empty_like(source)
        copy = timed(lambda: target.copy_(source))
        a, b = (torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16) for _ in range(2))
        product = timed(lambda: a @ b)
        return cls(2 * source.nbytes / copy, 2 * 8192**3 / product, one_level(dim))

    def __str__(self) -> str:
        rates = f"copy {self.bandwidth / 1e12:.2f} TB/s, bf16 {self.rate / 1e12:.0f} TFLOP/s"
        return f"{rates}, a level {self.level * 1e6:.2f} µs"

    def floor(self, model: Recurrence, events: int, rows: int, levels: int) -> dict[str, float]:
        """Seconds an epoch takes at least, by what limits it.

        A written state: two states in, one out, the product of its features in; four gates kept and read again; its
        gradient and what two children send in, four gradients and what goes to two parents out; gates' gradients and
        operands in again for the weights. An event: the head's inputs, its hidden layer and its output, each way.
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


def one_level(dim: int, levels: int = 2000, width: int = 1) -> float:
    """Seconds of a level of `width` events, forward and backward."""
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

    def both() -> None:
        with torch.autocast("cuda", torch.bfloat16):
            arena = level_gru(roots, pre.bfloat16(), source, *weights, chain)
        torch.autograd.grad(arena.sum(), roots)

    return timed(both) / levels


def timed(work: Callable[[], object], times: int = 5) -> float:
    work()
    marks = [_mark()]
    for _ in range(times):
        work()
        marks.append(_mark())
    torch.cuda.synchronize()
    return float(np.median([a.elapsed_time(b) for a, b in pairwise(marks)])) / 1e3


def gpu_time(work: Callable[[], Any]) -> tuple[Any, float]:
    """What comes out, and the seconds of all kernels it launched."""
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CUDA], acc_events=True) as found:
        out = work()
        torch.cuda.synchronize()
    return out, sum(event.self_device_time_total for event in found.key_averages()) / 1e6


def _mark() -> torch.cuda.Event:
    event = torch.cuda.Event(enable_timing=True)
    event.record()
    return event
