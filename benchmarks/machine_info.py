"""Description of the machine that a benchmark runs on, and peak memory of a process."""

from __future__ import annotations

import os
import platform
import re
from pathlib import Path


def describe_machine() -> str:
    """Returns the processor's name and the number of cores that this process may use."""
    name = re.search(r"model name\s*: (.*)", Path("/proc/cpuinfo").read_text())
    return f"{name[1] if name else platform.machine()}, {len(os.sched_getaffinity(0))} cores"


def peak_memory_mib(process: str = "self") -> int:
    """Returns the peak resident memory of a process so far, in MiB."""
    peak = re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{process}/status").read_text())
    assert peak
    return int(peak[1]) // 1024
