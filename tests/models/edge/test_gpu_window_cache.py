"""Which windows are cached on a GPU, tested with mocked streams and memory."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from dynedge.data.synthetic import synthesize
from dynedge.errors import UsageError
from dynedge.models.edge import gpu_window_cache, recurrence
from dynedge.models.edge.config import PAPER_LARGE
from dynedge.models.edge.gpu_window_cache import GPUWindowCache, check_memory, working_memory

pytestmark = pytest.mark.slow


class Stream:
    def __init__(self, device: Any = None) -> None:
        pass

    def record_event(self) -> str:
        return "copied"

    def wait_event(self, event: str) -> None:
        assert event == "copied"


def planned(first: int) -> Iterator[tuple[int, int]]:
    return zip(range(first, 5), range(first, 5), strict=True)


@pytest.fixture
def free(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Free bytes of the mocked GPU, and the share of host memory that is available; each copy takes 0.1 of it."""
    memory = [10.0, 0.4]

    def copy(window: Any, device: torch.device) -> Any:
        memory[1] -= 0.1 * (device.type == "cpu")
        return SimpleNamespace(**{**vars(window), "copied_to": (*window.copied_to, device.type)})

    for name, mock in {
        "Stream": Stream,
        "stream": lambda stream: nullcontext(),
        "current_stream": Stream,
        "mem_get_info": lambda device: (memory[0], 99),
        "memory_reserved": lambda device: 3,
        "memory_allocated": lambda device: 3,
    }.items():
        monkeypatch.setattr(torch.cuda, name, mock)
    monkeypatch.setattr(gpu_window_cache, "copied", copy)
    monkeypatch.setattr(gpu_window_cache, "available_memory", lambda: memory[1])
    return memory


def test_as_many_windows_are_cached_as_fit_in_memory(free: list[float]) -> None:
    """Of five windows three fit on the GPU, and one in host memory; the last is indexed in every epoch."""
    released: list[int] = []
    indexed: list[int] = []

    def index(planned: tuple[int, int]) -> Any:
        indexed.append(planned[0])
        buffer = SimpleNamespace(record_stream=lambda stream: released.append(planned[0]))
        return SimpleNamespace(number=planned[0], item=buffer, listed_tensors=lambda: (buffer,), copied_to=())

    free[1] = 0.3  # one more copy leaves less than a quarter
    cache, first = GPUWindowCache(torch.device("cuda", 0), working=5), []
    for window in cache.windows(range(5), planned, index):
        first.append(window)
        free[0] -= 2  # the size of the window
    assert [cache.holds(window) for window in first] == [True, True, True, False, False]
    assert (indexed, released) == ([0, 1, 2, 3, 4], [3, 3, 4, 4])
    indexed.clear()
    again: list[Any] = list(cache.windows(range(5), planned, index))
    assert [one is two for one, two in zip(first, again, strict=True)] == [True, True, True, False, False]
    assert [window.copied_to for window in again] == [(), (), (), ("cpu", "cuda"), ()]
    assert (indexed, released) == ([4], [3, 3, 4, 4] * 2)
    assert [window.number for window in cache.windows(range(2, 5), planned, index)] == [2, 3, 4]
    assert [window.number for window in cache.windows(range(3, 4), planned, index)] == [3]


def test_a_model_that_does_not_fit_is_refused_before_training(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The message gives the memory needed and the settings to change; more windows need less memory."""
    log, total = synthesize("demo", tmp_path / "log", events=5000, quiet=True), [0]
    monkeypatch.setattr(
        torch.cuda, "get_device_properties", lambda device: SimpleNamespace(total_memory=total[0] * 2**30)
    )
    models = [recurrence.Recurrence.create(replace(PAPER_LARGE, windows=count), log, 4000, 0) for count in (5, 50)]
    with pytest.raises(
        UsageError, match=r"needs about 1\.\d GiB on the GPU, which has 0\.0: raise --windows \(now 5\) or "
    ):
        check_memory(models[0])
    total[0] = 2
    check_memory(models[0])
    assert working_memory(models[1]) < working_memory(models[0])
