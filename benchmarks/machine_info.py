"""What a benchmark says of the machine it ran on."""

from __future__ import annotations

import os
import platform
import re
from pathlib import Path


def machine() -> str:
    """The processor and how many cores of it this process may use."""
    found = re.search(r"model name\s*: (.*)", Path("/proc/cpuinfo").read_text())
    return f"{found[1] if found else platform.machine()}, {len(os.sched_getaffinity(0))} cores"


def peak_mib(process: str = "self") -> int:
    """The most memory a process has held resident so far."""
    found = re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{process}/status").read_text())
    assert found
    return int(found[1]) // 1024
