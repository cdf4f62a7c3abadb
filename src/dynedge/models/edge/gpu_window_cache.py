"""GPU window cache: indexed training windows are kept from epoch to epoch, on the GPU or else in host memory."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import cached_property
from typing import TYPE_CHECKING, TypeVar

import torch

from dynedge.errors import UsageError
from dynedge.models.edge.score_lists import LISTED
from dynedge.models.window_index import WindowIndex
from dynedge.ops.host_to_device import copied
from dynedge.utils.host_memory import available_memory
from dynedge.utils.prefetch import prefetch_map

if TYPE_CHECKING:
    from dynedge.models.edge.recurrence import Recurrence

Planned = TypeVar("Planned")

GIB = 2**30
THREADS = 8  # index windows and copy them to the GPU, beside the threads that plan
HOST_SHARE = 0.25  # of the host's memory that must stay available


class GPUWindowCache:
    """Caches the windows of a plan: on the GPU as many as fit, then in pinned host memory as many as fit there.

    Windows in host memory are copied to the GPU ahead of their step; the rest is planned and indexed in each epoch.
    """

    def __init__(self, device: torch.device, working: int) -> None:
        """`working`: the bytes that must stay free for computing a window."""
        self._device, self._working = device, working
        self._cached: dict[int, WindowIndex] = {}
        self._on_host: dict[int, WindowIndex] = {}
        self._full = False

    @cached_property
    def _copies(self) -> torch.cuda.Stream:
        """The stream of all copies, so that a window is read from host memory after it was written there."""
        return torch.cuda.Stream(self._device)  # type: ignore[no-untyped-call]

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
        first_planned = number
        while first_planned < numbers.stop and first_planned in self._on_host:
            first_planned += 1
        yield from map(self._used_once, self._ahead(self._from_host, range(number, first_planned), threads=1))
        if first_planned < numbers.stop:
            for window in self._ahead(index, plan_from(first_planned), THREADS):
                yield self._keep(window)

    def _ahead(
        self, make: Callable[[Planned], WindowIndex], items: Iterable[Planned], threads: int
    ) -> Iterator[WindowIndex]:
        """make(item) for each item, computed ahead in threads; copies go through a stream of their own."""

        def copy(item: Planned) -> tuple[WindowIndex, torch.cuda.Event]:
            with torch.cuda.stream(self._copies):
                return make(item), self._copies.record_event()

        for window, ready in prefetch_map(copy, items, threads):
            torch.cuda.current_stream().wait_event(ready)
            yield window

    def _from_host(self, number: int) -> WindowIndex:
        return copied(self._on_host[number], self._device)

    def _keep(self, window: WindowIndex) -> WindowIndex:
        """Caches a window where there is space."""
        self._full = self._full or not self._has_space()
        if not self._full:
            self._cached[window.number] = window
            return window
        if available_memory() > HOST_SHARE:
            with torch.cuda.stream(self._copies):
                self._on_host[window.number] = copied(window, torch.device("cpu"))
        return self._used_once(window)

    def _used_once(self, window: WindowIndex) -> WindowIndex:
        """Frees the window's memory as soon as its readers are done."""
        for tensor in (window.item, *window.listed_tensors()):  # all indices are one buffer
            tensor.record_stream(torch.cuda.current_stream())
        return window

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
