"""GPU window cache: indexed training windows that stay on the GPU from epoch to epoch, as many as fit."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, TypeVar

import torch

from dynedge.errors import UsageError
from dynedge.models.edge.score_lists import LISTED
from dynedge.models.window_index import WindowIndex
from dynedge.utils.prefetch import prefetch_map

if TYPE_CHECKING:
    from dynedge.models.edge.recurrence import Recurrence

Planned = TypeVar("Planned")

GIB = 2**30
THREADS = 8  # index windows and copy them to the GPU, beside the threads that plan


class GPUWindowCache:
    """Caches the windows of a plan. Those that do not fit are planned and copied again in each epoch, prefetched."""

    def __init__(self, device: torch.device, working: int) -> None:
        """`working`: the bytes that must stay free for computing a window."""
        self._device, self._working = device, working
        self._cached: dict[int, WindowIndex] = {}
        self._full = False

    def windows(
        self,
        numbers: range,
        plan_from: Callable[[int], Iterable[Planned]],
        index: Callable[[Planned], WindowIndex],
    ) -> Iterator[WindowIndex]:
        """The windows with these numbers: cached ones, then those that `index` makes of planned ones."""
        number = numbers.start
        while number < numbers.stop and number in self._cached:
            yield self._cached[number]
            number += 1
        if number >= numbers.stop:
            return
        stream = torch.cuda.Stream(self._device)  # type: ignore[no-untyped-call]

        def copy(planned: Planned) -> tuple[WindowIndex, torch.cuda.Event]:
            with torch.cuda.stream(stream):
                window = index(planned)
                return window, stream.record_event()

        for window, ready in prefetch_map(copy, plan_from(number), threads=THREADS):
            torch.cuda.current_stream().wait_event(ready)
            self._full = self._full or not self._has_space()
            if self._full:  # their memory is free again when their readers are done
                for tensor in (window.item, *window.listed_tensors()):  # all indices are one buffer
                    tensor.record_stream(torch.cuda.current_stream())
            else:
                self._cached[number] = window
            yield window
            number += 1

    def holds(self, window: WindowIndex) -> bool:
        return self._cached.get(window.number) is window

    def _has_space(self) -> bool:
        free = torch.cuda.mem_get_info(self._device)[0] + _reserved_unused(self._device)
        return free > self._working


def _reserved_unused(device: torch.device) -> int:
    """Bytes that torch has reserved and does not use."""
    return torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)


def working_memory(model: Recurrence) -> int:
    """Estimated peak bytes of computing a training window: saved activations, loss, gradients.

    Per event, of tensors alive at once: two written states save 8d numbers of two bytes and pass on 4d of four, the
    head and the loss some 12d of four; then as much again for gradients and for what the allocator cannot reuse.
    """
    config, events = model.config, max((stats.events for stats in model.plan.stats), default=0)
    candidates = model.shape.items if model.full_softmax else config.negatives
    chunk = 2 * (candidates + 128) * config.dim * 4 / 128
    listed = 0 if model.bonus is None else model.shape.items if model.full_softmax else 8 * LISTED
    bonus = 8 * listed
    profile = 0 if model.profile is None else 8 * model.shape.items
    return int(2 * events * (80 * config.dim + 48 * config.dim + chunk + bonus + profile) + GIB)


def check_memory(model: Recurrence) -> None:
    """Raises UsageError, before training, if the model cannot fit on the GPU."""
    parameters = sum(parameter.numel() * parameter.element_size() for parameter in model.parameters())
    states = (model.shape.users + model.shape.items) * (4 * model.config.dim + 17)
    needed = 4 * parameters + 2 * states + working_memory(model)
    total = torch.cuda.get_device_properties(model.xi.device).total_memory
    if needed > total:
        raise UsageError(
            f"training needs about {needed / GIB:.1f} GiB on the GPU, which has {total / GIB:.1f}: "
            f"raise --windows (now {model.config.windows}) or lower --dim (now {model.config.dim})."
        )
