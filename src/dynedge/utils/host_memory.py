"""How much of the machine's memory is available."""

from __future__ import annotations

from pathlib import Path

MEMINFO = Path("/proc/meminfo")


def available_memory() -> float:
    """The share of the machine's memory that programs can still use; 0 where the system does not say."""
    try:
        lines = dict(line.split(":", 1) for line in MEMINFO.read_text().splitlines())
        total, available = (int(lines[name].split()[0]) for name in ("MemTotal", "MemAvailable"))
    except (OSError, KeyError, ValueError):
        return 0.0
    return available / max(total, 1)
