"""Peak memory use of a training process."""

from __future__ import annotations

import resource
import sys

import torch

MAXRSS_UNIT = 1 if sys.platform == "darwin" else 1024  # the unit of ru_maxrss, in bytes


def peak_memory_mib(device: str) -> float:
    """Returns the peak so far in MiB: tensors on a GPU, or the whole process (libraries included) on a CPU."""
    if device.startswith("cuda"):
        return float(torch.cuda.max_memory_allocated(device)) / 2**20
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * MAXRSS_UNIT / 2**20
