"""GPUs on which Triton or bfloat16 does not run, simulated: one warning, and plain PyTorch instead."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from typing import Any

import pytest
import torch

from dynedge.ops import dispatch
from dynedge.training.config import TrainingConfig
from dynedge.training.precision import autocast


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    """Clears what is cached per process."""
    for cached in (dispatch.triton_is_usable, dispatch.warn_once):
        cached.cache_clear()
    yield
    for cached in (dispatch.triton_is_usable, dispatch.warn_once):
        cached.cache_clear()


def test_missing_triton_falls_back_to_torch(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def absent(name: str) -> Any:
        if name == "triton":
            raise ImportError(name)
        return import_module(name)

    monkeypatch.setattr(dispatch, "import_module", absent)
    assert not dispatch.triton_is_usable() and not dispatch.triton_is_usable()
    assert capsys.readouterr().err == (
        "dynedge: Triton is not installed; the GPU runs plain PyTorch instead, which is slower.\n"
    )


def test_an_old_gpu_falls_back_to_torch(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (7, 5))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "an old GPU")
    assert not dispatch.triton_is_usable()
    assert capsys.readouterr().err.startswith("dynedge: an old GPU is too old for the Triton kernels")
    dispatch.triton_is_usable.cache_clear()
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (8, 0))
    assert dispatch.triton_is_usable()


def test_missing_bfloat16_falls_back_to_float32(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation: False)
    for _ in range(2):
        with autocast(TrainingConfig(device="cuda", precision="bfloat16")):
            assert not torch.is_autocast_enabled("cuda")
    assert capsys.readouterr().err == "dynedge: this GPU does not support bfloat16; float32 is used instead.\n"
