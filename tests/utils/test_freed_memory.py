import resource

import numpy as np
import pytest

from dynedge.utils import freed_memory
from dynedge.utils.freed_memory import freed_memory_is_kept

SIZE = 48 << 20  # bytes: more than glibc ever keeps by itself
PAGES = SIZE // 4096


def page_faults_of_arrays():
    """Page faults of five arrays, each allocated, written and freed, after a first one; without large pages."""
    counts = []
    for _ in range(6):
        array = np.frombuffer(bytearray(SIZE), np.uint8)[::4096]
        array[:] = 1
        del array
        counts.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt)
    return counts[-1] - counts[0]


@pytest.mark.skipif(freed_memory._glibc() is None, reason="another C library")
def test_arrays_take_their_pages_once():
    with freed_memory_is_kept():
        assert page_faults_of_arrays() < PAGES
    assert page_faults_of_arrays() > 4 * PAGES


def test_the_usual_thresholds_are_set_again_also_after_an_error(monkeypatch):
    calls = []

    class Libc:
        def mallopt(self, parameter, size):
            calls.append((parameter, size))

        def malloc_trim(self, pad):
            calls.append("trim")

    monkeypatch.setattr(freed_memory, "_glibc", Libc)
    with pytest.raises(ValueError, match="wrong"), freed_memory_is_kept():
        assert calls == list(freed_memory.KEEPING.items())
        raise ValueError("wrong")
    assert calls[2:] == [*freed_memory.USUAL.items(), "trim"]


def test_without_glibc_nothing_happens(monkeypatch):
    monkeypatch.setattr(freed_memory, "_glibc", lambda: None)
    with freed_memory_is_kept():
        assert page_faults_of_arrays() > 0
