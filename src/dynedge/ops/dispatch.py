"""Operators on a GPU: by Triton, where it is there; else, and in float64, by the reference. One line says so."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from importlib import import_module
from typing import Any

import torch
from torch import Tensor

__all__ = ["SideStream", "prefer_triton", "set_cuda_device", "uses_triton", "warn_once"]

OLDEST = 8, 0  # compute capability: bfloat16 products and a grid whose programs may wait for each other


@cache
def triton_is_usable() -> bool:
    """Whether Triton's kernels run on this machine's GPU; says so if not, once."""
    try:
        import_module("triton")
    except ImportError:
        why = "Triton is not installed"
    else:
        if torch.cuda.get_device_capability() >= OLDEST:
            return True
        why = f"{torch.cuda.get_device_name()} is older than Triton's kernels ask for"
    warn_once(f"{why}; the GPU runs plain torch instead, which is slower.")
    return False


@cache
def warn_once(line: str) -> None:
    print(f"dynedge: {line}", file=sys.stderr)


def set_cuda_device(device: str) -> None:
    """Make cuda:N the GPU that kernels are launched on, if it is one."""
    if torch.device(device).type == "cuda" and torch.device(device).index is not None:
        torch.cuda.set_device(device)


class SideStream:
    """Work on a stream of its own, beside what is launched after it. Its gradients are computed there as well. On a
    CPU one thing comes after the other."""

    _stream: torch.cuda.Stream | None = None

    @contextmanager
    def launch(self, device: torch.device) -> Iterator[None]:
        if device.type != "cuda":
            yield
            return
        self._stream = self._stream or torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._stream.wait_stream(torch.cuda.current_stream(device))
        with torch.cuda.stream(self._stream):
            yield

    def wait(self) -> None:
        """Before anything that was made there is read."""
        if self._stream is not None:
            torch.cuda.current_stream(self._stream.device).wait_stream(self._stream)


def uses_triton(tensor: Tensor) -> bool:
    """Whether Triton's kernels take over where this tensor is."""
    return tensor.is_cuda and tensor.dtype != torch.float64 and triton_is_usable()


def prefer_triton(
    module: str, name: str, fallback: Callable[..., Any], select: Callable[..., Tensor] = lambda first, *_: first
) -> Callable[..., Any]:
    """The function `name` of a module that is imported only when used; `select` picks a tensor of its arguments."""

    def call(*arguments: Any) -> Any:
        if not uses_triton(select(*arguments)):
            return fallback(*arguments)
        return getattr(import_module(module), name)(*arguments)

    return call
