"""The processes that `torchrun` started together (torch.distributed: gloo on CPUs, NCCL on GPUs).

Without torchrun there is one process, `ALONE`, for which every exchange returns what was given. Nothing is pickled:
messages are JSON or tensors. Every method but those with a `to` or `source` is called by all processes alike.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from itertools import count
from typing import Any

import torch
from torch import Tensor

from dynedge.errors import CommonError, DataError, DynedgeError, UsageError
from dynedge.utils.tensor_io import Tensors

START_SECONDS = 300.0  # to wait for the other processes at the start; the environment variable START_TIMEOUT sets it
START_TIMEOUT = "DYNEDGE_START_TIMEOUT"
EXCHANGE = timedelta(hours=6)  # to wait in an exchange: another process may be planning; torchrun notices a dead one

_groups = count()  # of this process, one after another


class ProcessGroup:
    """A process's view of the group: its number `rank` of `size`, and the bytes it has sent."""

    def __init__(self, rank: int = 0, size: int = 1) -> None:
        self.rank, self.size = rank, size
        self.bytes_sent = 0
        self._broadcast: Tensors = {}  # the last tensors of `broadcast_tensors`

    @property
    def is_first(self) -> bool:
        """Whether this is the process that writes and prints."""
        return self.rank == 0

    # ---- exchanges

    def all_gather(self, tensor: Tensor) -> Tensor:
        """[size, ...]: the tensor of every process; all have the same shape."""
        if self.size == 1:
            return tensor[None]
        out = tensor.new_empty((self.size, *tensor.shape))
        with self._connected():
            torch.distributed.all_gather(list(out.unbind(0)), tensor.contiguous())
        self.bytes_sent += (self.size - 1) * _bytes(tensor)
        return out

    def all_to_all(self, parts: Tensor) -> Tensor:
        """[size, ...] of [size, ...]: part r goes to process r; the result has what each process sent here."""
        if self.size == 1:
            return parts
        out = torch.empty_like(parts)
        with self._connected():
            torch.distributed.all_to_all_single(out, parts.contiguous())
        self.bytes_sent += _bytes(parts) * (self.size - 1) // self.size
        return out

    def exchange(self, rows: Tensor, counts: list[int]) -> tuple[Tensor, list[int]]:
        """Sends the first counts[0] rows to process 0 and so on; returns what all sent here, and their counts."""
        if self.size == 1:
            return rows, counts
        received = self.all_to_all(torch.tensor(counts)).tolist()
        out = rows.new_empty((sum(received), *rows.shape[1:]))
        with self._connected():
            torch.distributed.all_to_all_single(out, rows.contiguous(), received, counts)
        self.bytes_sent += _bytes(rows[:1]) * (len(rows) - counts[self.rank])
        return out, received

    def gather_json(self, value: Any) -> list[Any]:
        """The values of all processes, in their order."""
        text = torch.frombuffer(bytearray(json.dumps(value).encode()), dtype=torch.uint8)
        lengths = self.all_gather(torch.tensor(len(text))).tolist()
        padded = torch.zeros(max(lengths), dtype=torch.uint8)
        padded[: len(text)] = text
        texts = self.all_gather(padded)
        return [json.loads(bytes(row[:n].tolist())) for row, n in zip(texts, lengths, strict=True)]

    def broadcast_tensors(self, tensors: Tensors | None, source: int, like: Tensors) -> Tensors:
        """The tensors of process `source`; the others give None. `like` says on which device each one belongs.

        A tensor that is the same object as in the last broadcast does not travel again.
        """
        if self.size == 1:
            assert tensors is not None
            return tensors
        last = self._broadcast
        sent = {} if tensors is None else {n: t for n, t in tensors.items() if last.get(n) is not t}
        names = self.gather_json(list(tensors or ()))[source]
        header = self.gather_json(_describe(sent))[source]
        received = {}
        for name, (shape, dtype) in header.items():
            if self.rank == source:
                tensor = sent[name].contiguous()
                self.bytes_sent += (self.size - 1) * _bytes(tensor)
            else:
                tensor = _empty(shape, dtype, _device(name, like))
            if tensor.numel():
                with self._connected():
                    torch.distributed.broadcast(_as_bytes(tensor), source)
            received[name] = tensor
        self._broadcast = {name: received[name] if name in received else last[name] for name in names}
        return dict(tensors) if tensors is not None else dict(self._broadcast)

    def shift_tensors(self, tensors: Tensors, like: Tensors) -> Tensors | None:
        """Sends the tensors to the next process and returns those of the one before; None at the first process."""
        headers = self.gather_json(_describe(tensors))
        if self.size == 1:
            return None
        header = headers[self.rank - 1] if self.rank > 0 else {}
        received = {name: _empty(entry[0], entry[1], _device(name, like)) for name, entry in header.items()}
        with self._connected():
            work = []
            if self.rank + 1 < self.size:
                kept = [_as_bytes(tensor.contiguous()) for tensor in tensors.values() if tensor.numel()]
                work = [torch.distributed.isend(tensor, self.rank + 1) for tensor in kept]
                self.bytes_sent += sum(map(_bytes, kept))
            for tensor in received.values():
                if tensor.numel():
                    torch.distributed.recv(_as_bytes(tensor), self.rank - 1)
            for request in work:
                assert request is not None
                request.wait()
        return received if self.rank > 0 else None

    # ---- errors

    @contextmanager
    def _connected(self) -> Iterator[None]:
        """Where another process is gone, torch raises a RuntimeError here; torchrun ends or restarts all."""
        try:
            yield
        except RuntimeError as error:
            reason = " ".join(str(error).splitlines()[:1]).rstrip(".")
            raise DataError(
                f"process {self.rank} lost the connection to another one ({reason}); continue with --resume."
            ) from None

    @contextmanager
    def together(self) -> Iterator[None]:
        """A block that all processes run; if it fails in one, it fails in all, and the first one reports why."""
        failure: DynedgeError | None = None
        try:
            yield
        except DynedgeError as error:
            failure = error
            if self.size == 1:
                raise
        if self.size == 1:
            return
        failures = self.gather_json(failure and [failure.exit_code, str(failure)])
        first = next((entry for entry in failures if entry is not None), None)
        if first is not None:
            raise self.common(UsageError(first[1]) if first[0] == 2 else DataError(first[1])) from None

    def common(self, error: DynedgeError) -> DynedgeError:
        """An error that all processes raise, so that only the first reports it."""
        return error if self.is_first else CommonError(error)

    def check_same(self, values: dict[str, str]) -> None:
        """Raises UsageError if a process has another value than the first; the message names what differs."""
        everywhere = self.gather_json(values)
        for rank, theirs in enumerate(everywhere):
            for name, value in theirs.items():
                if value != everywhere[0][name]:
                    raise self.common(
                        UsageError(f"process {rank} has another {name} than process 0: start all with the same one.")
                    )

    def wait_for_all(self) -> None:
        if self.size > 1:
            self.gather_json(None)


ALONE = ProcessGroup()


@contextmanager
def process_group() -> Iterator[ProcessGroup]:
    """The group that torchrun's environment variables describe; ALONE without them."""
    if "WORLD_SIZE" not in os.environ or "RANK" not in os.environ:
        yield ALONE
        return
    try:
        rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        if size == 1:
            yield ALONE
            return
    except ValueError:
        raise UsageError("RANK and WORLD_SIZE should be whole numbers, as torchrun sets them.") from None
    _join(rank, size)
    try:
        yield ProcessGroup(rank, size)
    finally:
        torch.distributed.destroy_process_group()


def local_device(device: str) -> str:
    """The device of this process: under torchrun, process r of a machine uses GPU r modulo the number of GPUs.

    Processes share a GPU only for whole runs, as `compare` and `tune` spread them (`check_own_gpus`).
    """
    local = os.environ.get("LOCAL_RANK")
    if device != "cuda" or local is None:
        return device
    return f"cuda:{int(local) % max(torch.cuda.device_count(), 1)}"


def check_own_gpus(device: str, group: ProcessGroup) -> None:
    """Raises UsageError unless each process of a group that trains one model together has a GPU of its own."""
    gpus, processes = torch.cuda.device_count(), local_processes()
    if group.size > 1 and device == "cuda" and processes > gpus:
        raise UsageError(
            f"{processes} processes on this machine cannot train one model on {gpus} GPU{'s' * (gpus != 1)}: start "
            f"torchrun with --nproc-per-node {gpus}, or train with --device cpu."
        )


def local_processes() -> int:
    """Number of processes of the group on this machine."""
    return max(1, int(os.environ.get("LOCAL_WORLD_SIZE", "1")))


def is_restarted() -> bool:
    """Whether torchrun has started this process again after a failure (--max-restarts)."""
    return _restarts() != "0"


def _restarts() -> str:
    return os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")


def _join(rank: int, size: int) -> None:
    from torch.distributed.distributed_c10d import PrefixStore
    from torch.distributed.rendezvous import rendezvous

    try:
        seconds = float(os.environ.get(START_TIMEOUT, START_SECONDS))
        if not (math.isfinite(seconds) and seconds > 0):
            raise ValueError
    except ValueError:
        raise UsageError(f"{START_TIMEOUT} should be a number of seconds.") from None
    address = f"{os.environ.get('MASTER_ADDR', '?')}:{os.environ.get('MASTER_PORT', '?')}"
    nccl = torch.cuda.is_available() and torch.distributed.is_nccl_available()
    try:
        store, rank, size = next(iter(rendezvous("env://", timeout=timedelta(seconds=seconds))))
        store = PrefixStore(f"group-{_restarts()}-{next(_groups)}", store)
        store.set(f"here/{rank}", "")
        store.wait([f"here/{other}" for other in range(size)], timedelta(seconds=seconds))
        store.set_timeout(EXCHANGE)
        torch.distributed.init_process_group(
            "cpu:gloo,cuda:nccl" if nccl else "gloo", store=store, rank=rank, world_size=size, timeout=EXCHANGE
        )
    except (RuntimeError, ValueError, OSError) as error:  # torch's own errors are RuntimeErrors
        reason = " ".join(str(error).splitlines()[:1]).rstrip(".")
        raise UsageError(
            f"process {rank} of {size} found no rendezvous with the others at {address} within {seconds:g} s "
            f"({reason}): start all of them with torchrun."
        ) from None


def _describe(tensors: Tensors) -> dict[str, tuple[list[int], str]]:
    return {name: (list(t.shape), str(t.dtype).removeprefix("torch.")) for name, t in tensors.items()}


def _empty(shape: list[int], dtype: str, device: torch.device) -> Tensor:
    return torch.empty(shape, dtype=getattr(torch, dtype), device=device)


def _device(name: str, like: Tensors) -> torch.device:
    return like[name].device if name in like else torch.device("cpu")


def _as_bytes(tensor: Tensor) -> Tensor:
    """A view of the tensor as bytes, which every backend can send."""
    return tensor.detach().view(-1).view(torch.uint8)


def _bytes(tensor: Tensor) -> int:
    return tensor.numel() * tensor.element_size()
