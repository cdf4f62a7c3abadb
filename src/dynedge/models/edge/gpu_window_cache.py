"""Windows that stay on the GPU from epoch to epoch, as many as fit; and whether what must fit does."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, TypeVar

import torch

from dynedge.errors import UsageError
from dynedge.models.window_index import Prepared
from dynedge.utils.prefetch import prefetch_map

if TYPE_CHECKING:
    from dynedge.models.edge.recurrence import Recurrence

Planned = TypeVar("Planned")

GIB = 2**30
THREADS = 8  # that index windows and copy them over, beside those that plan


class Resident:
    """Indexed windows of a plan. Those that no longer fit are planned and copied anew each epoch, ahead of use."""

    def __init__(self, device: torch.device, working: int) -> None:
        """`working`: the bytes that must stay free for computing a window."""
        self._device, self._working = device, working
        self._kept: dict[int, Prepared] = {}
        self._full = False

    def windows(
        self,
        count: int,
        planned: Callable[[int], Iterable[Planned]],
        indexed: Callable[[Planned], Prepared],
        first: int,
    ) -> Iterator[Prepared]:
        """The windows from number `first` on: those kept, then those that `indexed` makes of what is planned."""
        number = first
        while number in self._kept:
            yield self._kept[number]
            number += 1
        if number == count:
            return
        stream = torch.cuda.Stream(self._device)  # type: ignore[no-untyped-call]

        def copied(one: Planned) -> tuple[Prepared, torch.cuda.Event]:
            with torch.cuda.stream(stream):
                prepared = indexed(one)
                return prepared, stream.record_event()

        for prepared, ready in prefetch_map(copied, planned(number), threads=THREADS):
            torch.cuda.current_stream().wait_event(ready)
            self._full = self._full or not self._room()
            if self._full:  # one buffer: its memory is free again when its readers are done
                prepared.item.record_stream(torch.cuda.current_stream())
            else:
                self._kept[number] = prepared
            yield prepared
            number += 1

    def keeps(self, prepared: Prepared) -> bool:
        return self._kept.get(prepared.number) is prepared

    def _room(self) -> bool:
        free = torch.cuda.mem_get_info(self._device)[0] + _unused(self._device)
        return free > self._working


def _unused(device: torch.device) -> int:
    """Bytes that torch holds and nothing is in."""
    return torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)


def working_memory(model: Recurrence) -> int:
    """About how many bytes computing a training window takes at most: what the levels keep, the loss, the gradients.

    Counted per event, of tensors alive at once: two written states keep 8d numbers of two bytes and send 4d of four,
    the head and the loss some 12d of four; then as much again for gradients and for what the allocator cannot reuse.
    """
    config, events = model.config, max((stats.events for stats in model.plan.stats), default=0)
    sampled = config.negatives if model.shape.items > config.full_softmax_up_to else model.shape.items
    chunk = 2 * (sampled + 128) * config.dim * 4 / 128
    added = 8 * model.shape.items if model.bonus is not None else 0
    return int(2 * events * (80 * config.dim + 48 * config.dim + chunk + added) + GIB)


def check_memory(model: Recurrence) -> None:
    """Refuse, before training, what cannot fit."""
    learned = sum(parameter.numel() * parameter.element_size() for parameter in model.parameters())
    states = (model.shape.users + model.shape.items) * (4 * model.config.dim + 17)
    needed = 4 * learned + 2 * states + working_memory(model)
    total = torch.cuda.get_device_properties(model.xi.device).total_memory
    if needed > total:
        raise UsageError(
            f"training needs about {needed / GIB:.1f} GiB on the GPU, which has {total / GIB:.1f}: "
            f"raise --windows (now {model.config.windows}) or lower --dim (now {model.config.dim})."
        )
