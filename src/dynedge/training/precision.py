"""Numeric precision and determinism of training and evaluation."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch

from dynedge.ops.dispatch import warn_once
from dynedge.training.config import TrainingConfig


def autocast(config: TrainingConfig) -> AbstractContextManager[object]:
    """Returns a context that computes in the configured precision; without bfloat16 support, in float32."""
    kind = torch.device(config.device).type if config.precision == "bfloat16" else ""
    if kind == "cuda" and not torch.cuda.is_bf16_supported(including_emulation=False):
        warn_once("this GPU does not support bfloat16; float32 is used instead.")
        kind = ""
    return torch.autocast(kind, torch.bfloat16) if kind else nullcontext()


@contextmanager
def deterministic_algorithms(enabled: bool) -> Iterator[None]:
    """Allows only deterministic operators, without torch's filling of uninitialized memory, which costs time."""
    if not enabled:
        yield
        return
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # torch requires it before the first product
    settings: Any = torch.utils.deterministic
    filling, settings.fill_uninitialized_memory = settings.fill_uninitialized_memory, False
    torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(False)
        settings.fill_uninitialized_memory = filling
