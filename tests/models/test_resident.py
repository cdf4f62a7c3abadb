"""Which windows stay on a GPU, without one: its streams and its memory are pretended."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from dynedge.models.resident import Resident


class Stream:
    def __init__(self, device: Any = None) -> None:
        pass

    def record_event(self) -> str:
        return "copied"

    def wait_event(self, event: str) -> None:
        assert event == "copied"


class Plan:
    def __len__(self) -> int:
        return 5

    def since(self, first: int) -> Iterator[int]:
        return iter(range(first, 5))


def test_as_many_windows_stay_as_there_is_room_for(monkeypatch: pytest.MonkeyPatch) -> None:
    free, released = [10], []
    for name, pretended in {
        "Stream": Stream,
        "stream": lambda stream: nullcontext(),
        "current_stream": Stream,
        "mem_get_info": lambda device: (free[0], 99),
        "memory_reserved": lambda device: 3,
        "memory_allocated": lambda device: 3,
    }.items():
        monkeypatch.setattr(torch.cuda, name, pretended)

    def indexed(planned: tuple[int, int]) -> Any:
        buffer = SimpleNamespace(record_stream=lambda stream: released.append(planned[0]))
        return SimpleNamespace(number=planned[0], item=buffer)

    resident, first = Resident(torch.device("cuda", 0), working=5), []
    for window in resident.windows(Plan(), indexed, 0):
        first.append(window)
        free[0] -= 2  # what the window takes
    assert [resident.keeps(window) for window in first] == [True, True, True, False, False]
    assert released == [3, 4]
    again = list(resident.windows(Plan(), indexed, 0))
    assert [one is two for one, two in zip(first, again, strict=True)] == [True, True, True, False, False]
    assert [window.number for window in resident.windows(Plan(), indexed, 2)] == [2, 3, 4]
