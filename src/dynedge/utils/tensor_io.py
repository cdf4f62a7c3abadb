"""Tensors in safetensors files (never pickle), written atomically."""

from __future__ import annotations

import errno
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from dynedge.errors import DataError
from dynedge.utils.atomic_io import write_atomically
from dynedge.utils.file_checks import check_regular

Tensors = dict[str, Tensor]


def save_tensors(path: Path, tensors: Tensors) -> None:
    """Writes a safetensors file atomically."""
    write_atomically(path, lambda partial: _save(partial, tensors))


def load_tensors(path: Path) -> Tensors:
    """Returns the tensors of a file, on the CPU; DataError where it is missing or not a safetensors file."""
    try:
        check_regular(path)
        return load_file(path)
    except FileNotFoundError:
        raise DataError(f"{path} is missing.") from None
    except (SafetensorError, OSError, ValueError, TypeError, KeyError) as error:
        raise DataError(f"{path} is damaged or not a safetensors file: {error}.") from None


def with_prefixes(**groups: Tensors) -> Tensors:
    """Merges groups of tensors into one dict: model={"w": …} becomes {"model.w": …}."""
    return {f"{prefix}.{name}": tensor for prefix, tensors in groups.items() for name, tensor in tensors.items()}


def select_prefix(tensors: Tensors, prefix: str) -> Tensors:
    """Returns the tensors of one group of `with_prefixes`, under their names without the prefix."""
    return {
        name.removeprefix(f"{prefix}."): tensor for name, tensor in tensors.items() if name.startswith(f"{prefix}.")
    }


def _save(path: Path, tensors: Tensors) -> None:
    try:
        save_file(_contiguous(tensors), path)
    except SafetensorError as error:
        if "os error" in str(error):  # safetensors reports a full disk in its message only
            full = f"os error {errno.ENOSPC}" in str(error) or f"os error {errno.EDQUOT}" in str(error)
            reason = "the disk is full" if full else f"it could not be written ({error})"
            raise DataError(
                f"{path.with_suffix('')}: {reason}; free some space and continue with --resume."
            ) from None
        raise


def _contiguous(tensors: Tensors) -> Tensors:
    """Returns CPU tensors that each own their memory, as the format requires: views and tied tensors are copied."""
    seen: set[int] = set()
    result = {}
    for name, tensor in tensors.items():
        plain = tensor.detach().cpu().contiguous()
        memory = plain.untyped_storage()
        if memory.data_ptr() in seen or memory.nbytes() != plain.numel() * plain.element_size():
            plain = plain.clone(memory_format=torch.contiguous_format)
        seen.add(memory.data_ptr())
        result[name] = plain
    return result
