"""Files that are there whole or not at all, and tensors in them. No pickle: safetensors and JSON."""

from __future__ import annotations

import errno
import hashlib
import os
from collections.abc import Callable
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from dynedge.errors import DataError
from dynedge.utils.atomic_io import sync

Tensors = dict[str, Tensor]
PARTIAL = ".partial"


def write_whole(path: Path, write: Callable[[Path], None]) -> None:
    """Let `write` fill a file beside `path`, sync it, move it there. Killed at any moment: the old one or the new."""
    beside = path.with_name(path.name + PARTIAL)
    beside.touch()
    mode = beside.stat().st_mode
    write(beside)
    beside.chmod(mode)  # safetensors makes files that only their owner may read
    sync(beside)
    os.replace(beside, path)
    sync(path.parent)


def write_text(path: Path, text: str) -> None:
    write_whole(path, lambda beside: _write_utf8(beside, text))


def write_tensors(path: Path, tensors: Tensors) -> None:
    write_whole(path, lambda beside: _save(beside, tensors))


def read_tensors(path: Path) -> Tensors:
    """The tensors of a file, on the CPU; DataError where there is none or it is no such file."""
    try:
        return load_file(path)
    except FileNotFoundError:
        raise DataError(f"{path} is missing.") from None
    except (SafetensorError, OSError, ValueError, TypeError, KeyError) as error:
        raise DataError(f"{path} is damaged or no safetensors file: {error}.") from None


def sha256(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def joined(**groups: Tensors) -> Tensors:
    """Groups of tensors as one: model=… becomes "model.…". `group` takes one out again."""
    return {f"{prefix}.{name}": tensor for prefix, tensors in groups.items() for name, tensor in tensors.items()}


def group(tensors: Tensors, prefix: str) -> Tensors:
    return {
        name.removeprefix(f"{prefix}."): tensor for name, tensor in tensors.items() if name.startswith(f"{prefix}.")
    }


def _write_utf8(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8")


def _save(path: Path, tensors: Tensors) -> None:
    try:
        save_file(_apart(tensors), path)
    except SafetensorError as error:
        if "os error" in str(error):  # the one way it tells of a full disk
            full = f"os error {errno.ENOSPC}" in str(error) or f"os error {errno.EDQUOT}" in str(error)
            why = "the disk is full" if full else f"it could not be written ({error})"
            raise DataError(f"{path.with_suffix('')}: {why}; free some space and go on with --resume.") from None
        raise


def _apart(tensors: Tensors) -> Tensors:
    """On the CPU and each in memory of its own, as the format wants: tied ones are copied."""
    seen: set[int] = set()
    found = {}
    for name, tensor in tensors.items():
        plain = tensor.detach().cpu().contiguous()
        memory = plain.untyped_storage()
        if memory.data_ptr() in seen or memory.nbytes() != plain.numel() * plain.element_size():
            plain = plain.clone(memory_format=torch.contiguous_format)
        seen.add(memory.data_ptr())
        found[name] = plain
    return found
