"""The arithmetic that training and evaluation run in."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch

from dynedge.ops.dispatch import warn_once
from dynedge.training.config import TrainingConfig


def precision(config: TrainingConfig) -> AbstractContextManager[object]:
    """The arithmetic a model is trained and judged in."""
    kind = torch.device(config.device).type if config.precision == "bfloat16" else ""
    if kind == "cuda" and not torch.cuda.is_bf16_supported(including_emulation=False):
        warn_once("this GPU has no bfloat16; it computes in float32.")
        kind = ""
    return torch.autocast(kind, torch.bfloat16) if kind else nullcontext()


@contextmanager
def bit_for_bit(wanted: bool) -> Iterator[None]:
    """Only operators that give the same bits every time; but no filling of fresh memory, which costs time."""
    if not wanted:
        yield
        return
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # asked for by torch before the first product
    settings: Any = torch.utils.deterministic
    filling, settings.fill_uninitialized_memory = settings.fill_uninitialized_memory, False
    torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(False)
        settings.fill_uninitialized_memory = filling
