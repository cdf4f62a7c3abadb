"""Dispatch of operators on a GPU: Triton kernels where they run, else (and in float64) the PyTorch reference."""

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

MIN_CAPABILITY = 8, 0  # for bfloat16 matrix products and cooperative grids, whose programs wait for each other


@cache
def triton_is_usable() -> bool:
    """Whether the Triton kernels run on this machine's GPU; warns once if not."""
    try:
        import_module("triton")
    except ImportError:
        reason = "Triton is not installed"
    else:
        if torch.cuda.get_device_capability() >= MIN_CAPABILITY:
            return True
        reason = f"{torch.cuda.get_device_name()} is too old for the Triton kernels"
    warn_once(f"{reason}; the GPU runs plain PyTorch instead, which is slower.")
    return False


@cache
def warn_once(message: str) -> None:
    """Prints a message to stderr, once per process."""
    print(f"dynedge: {message}", file=sys.stderr)


def set_cuda_device(device: str) -> None:
    """Makes cuda:N the current GPU, where kernels are launched; does nothing for other devices."""
    if torch.device(device).type == "cuda" and torch.device(device).index is not None:
        torch.cuda.set_device(device)


class SideStream:
    """A second CUDA stream for work that may overlap with what is launched after it, its backward pass included.

    On a CPU the work simply runs first.
    """

    _stream: torch.cuda.Stream | None = None

    @contextmanager
    def launch(self, device: torch.device) -> Iterator[None]:
        """Runs the `with` block on the side stream, after everything launched so far."""
        if device.type != "cuda":
            yield
            return
        self._stream = self._stream or torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._stream.wait_stream(torch.cuda.current_stream(device))
        with torch.cuda.stream(self._stream):
            yield

    def wait(self) -> None:
        """Makes the current stream wait for the side stream; call it before reading what that computed."""
        if self._stream is not None:
            torch.cuda.current_stream(self._stream.device).wait_stream(self._stream)


def uses_triton(tensor: Tensor) -> bool:
    """Whether Triton kernels compute operators on this tensor: on a usable GPU, and not in float64."""
    return tensor.is_cuda and tensor.dtype != torch.float64 and triton_is_usable()


def prefer_triton(
    module: str, name: str, fallback: Callable[..., Any], select: Callable[..., Tensor] = lambda first, *_: first
) -> Callable[..., Any]:
    """Returns a function that calls `module.name` where Triton runs, else `fallback`.

    The module is imported on first use; `select` picks, from the arguments, the tensor that decides.
    """

    def call(*arguments: Any) -> Any:
        if not uses_triton(select(*arguments)):
            return fallback(*arguments)
        return getattr(import_module(module), name)(*arguments)

    return call
