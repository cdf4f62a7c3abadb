"""How much memory training took."""

from __future__ import annotations

import resource
import sys

import torch

KIB = 1 if sys.platform == "darwin" else 1024  # the unit of ru_maxrss, in bytes


def peak_mib(device: str) -> float:
    """The most so far: what tensors took of the GPU trained on, else the whole process, libraries included."""
    if device.startswith("cuda"):
        return float(torch.cuda.max_memory_allocated(device)) / 2**20
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * KIB / 2**20
