"""One training step over the windows of several segments: the mean of their gradients, in an order that is fixed.

The gradient of a whole parameter is summed over segments pairwise: neighbours first, then neighbouring pairs, and so
on. A process can therefore sum its own segments first, and any number of processes that divides the number of
segments gives the same bits. The rows of a table are summed in the order of the segments: by their owner
(owned_rows.py), or, in tables of which a window may read any row, in every process.

Legend: S segments, W processes, D numbers of all whole parameters together.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from dynedge.models.base import Loss, Model, State, Step
from dynedge.ops.adam import coalesce
from dynedge.training.config import TrainingConfig
from dynedge.training.optimizer import Adam
from dynedge.training.owned_rows import exact_sum, fetch_rows, gradient_of_own_rows, row_squares
from dynedge.training.precision import autocast
from dynedge.training.segments import Segments
from dynedge.utils.process_group import ALONE, ProcessGroup

Gradients = dict[str, Tensor]  # by parameter: dense or sparse
WHOLE, ROWS = 1, 2  # kinds of gradients in the header; ROWS + n: n rows of a table


class SegmentedStep:
    """Runs steps; every process calls `run` with the batches of its own segments."""

    def __init__(self, model: Model, optimizer: Adam, config: TrainingConfig, segments: Segments) -> None:
        self.model, self.optimizer, self.config = model, optimizer, config
        self.segments, self.group = segments, segments.group
        self._logged: list[str] | None = None  # names of the numbers that the model logs

    def run(self, batches: list[Any], states: list[State], positions: list[Step | None]) -> tuple[Loss, Tensor]:
        """Returns the mean loss and the norm of the gradients; advances the states and updates the parameters.

        A segment that has ended has None as its batch and its position.
        """
        self._fetch_rows(batches, states)
        losses: list[Loss | None] = []
        gradients: list[Gradients] = []
        for batch, state, position in zip(batches, states, positions, strict=True):
            loss = None if position is None else self._loss(batch, state, position)
            losses.append(loss)
            gradients.append({} if loss is None else self._take_gradients())
        numbers = self._sum(losses, gradients)
        norm = self.optimizer.clip(self.config.max_grad_norm, self.segments.owned_tables, self._owned_squares())
        if math.isfinite(float(norm)) and math.isfinite(float(numbers[0])):
            self.optimizer.step()
        assert self._logged is not None
        return Loss(numbers[0], dict(zip(self._logged, numbers[1:].tolist(), strict=False))), norm

    def _owned_squares(self) -> dict[str, float]:
        """By clip group: the sum of squares of the gradients of owned rows, in all processes."""
        squares = {}
        for group, parameters in self.optimizer.clip_groups.items():
            owned = [p.grad for name, p in parameters.items() if name in self.segments.owned_tables]
            if grads := [grad for grad in owned if grad is not None]:
                squares[group] = exact_sum(row_squares(grads), self.group)
        return squares

    def _fetch_rows(self, batches: list[Any], states: list[State]) -> None:
        if self.group.size == 1:
            return
        read = [self.segments.trains.rows_read(*pair) for pair in zip(batches, states, strict=True)]
        for name in read[0]:
            table = self.optimizer.parameters[name].data
            fetch_rows(table, torch.cat([rows[name] for rows in read]), self.group)

    def _loss(self, batch: Any, state: State, position: Step) -> Loss:
        torch.manual_seed(position.generator().initial_seed())  # for layers that draw by themselves, as dropout
        with autocast(self.config):
            loss = self.model.loss(batch, state, position)
        self.optimizer.zero_grad()
        if loss.total.requires_grad:
            loss.total.backward()  # type: ignore[no-untyped-call]
        self.model.after_step(batch, state)
        return Loss(loss.total.detach(), loss.log)

    def _take_gradients(self) -> Gradients:
        gradients = {n: p.grad for n, p in self.optimizer.parameters.items() if p.grad is not None}
        self.optimizer.zero_grad()
        # On a GPU repeated rows are left for the sum: there, coalescing does not make them fewer.
        return {n: coalesce(g) if g.is_sparse and not g.is_cuda else g for n, g in gradients.items()}

    def _sum(self, losses: list[Loss | None], gradients: list[Gradients]) -> Tensor:
        """Sets every parameter's gradient to the mean over all segments; returns the means of the losses' numbers."""
        if self._logged is None:
            local = next(([*loss.log] for loss in losses if loss is not None), [])
            self._logged = next((names for names in self.group.gather_json(local) if names), [])
        names = list(self.optimizer.parameters)
        kinds = torch.tensor([[_kind(part.get(name)) for name in names] for part in gradients])
        numbers = torch.tensor([_numbers(loss, self._logged) for loss in losses], dtype=torch.float64)
        header = self.group.all_gather(torch.cat([kinds, numbers.view(torch.int64)], 1))
        kinds, numbers = header[..., : len(names)], header[..., len(names) :].contiguous().view(torch.float64)
        active = numbers[..., 0].flatten() > 0
        share = 1 / int(active.sum())
        whole, by_rows = (kinds == WHOLE).any(0).any(0), (kinds > ROWS).any(0).any(0)
        self._sum_whole([name for name, has in zip(names, whole.tolist(), strict=True) if has], gradients, share)
        tables = [k for k, has in enumerate((by_rows & ~whole).tolist()) if has]
        self._sum_owned([names[k] for k in tables if names[k] in self.segments.owned_tables], gradients, share)
        tables = [k for k in tables if names[k] not in self.segments.owned_tables]
        rows = (kinds[..., tables] - ROWS).clamp_min(0).sum(1).tolist()  # by process and table
        self._sum_rows([names[k] for k in tables], rows, gradients, share)
        return numbers.flatten(0, 1)[active, 1:].mean(0)

    def _sum_whole(self, names: list[str], gradients: list[Gradients], share: float) -> None:
        if not names:
            return
        parameters = [self.optimizer.parameters[name] for name in names]
        flat = [
            torch.cat([_flat(part.get(n), p) for n, p in zip(names, parameters, strict=True)]) for part in gradients
        ]
        total = ordered_sum(flat, self.group).mul_(share)
        for parameter, grad in zip(parameters, torch.split(total, [p.numel() for p in parameters]), strict=True):
            parameter.grad = grad.view_as(parameter)

    def _sum_owned(self, names: list[str], gradients: list[Gradients], share: float) -> None:
        for name in names:
            table, parts = self.optimizer.parameters[name], [part[name] for part in gradients if name in part]
            # The rows of a window's own d-nodes are owned by the process that trains the window.
            group = ALONE if name in self.segments.window_tables else self.group
            grad = gradient_of_own_rows(table, parts, group)
            grad._values().mul_(share)
            table.grad = grad

    def _sum_rows(self, names: list[str], rows: list[list[int]], gradients: list[Gradients], share: float) -> None:
        """`rows`: the number of rows of each process and table."""
        if not names:
            return
        parts = [part[name] for name in names for part in gradients if name in part]
        own = [grad._indices()[0].contiguous().view(torch.uint8) for grad in parts]
        own += [grad._values().reshape(-1).view(torch.uint8) for grad in parts]
        tables = [self.optimizer.parameters[name] for name in names]
        sizes = [table[0].numel() * table.element_size() for table in tables]
        length = max(sum(n * (8 + size) for n, size in zip(counts, sizes, strict=True)) for counts in rows)
        message = tables[0].new_zeros(-(-length // 8) * 8, dtype=torch.uint8)
        torch.cat([message[:0], *own], out=message[: sum(map(len, own))])
        received = self.group.all_gather(message)
        indices: list[list[Tensor]] = [[] for _ in names]
        values: list[list[Tensor]] = [[] for _ in names]
        for message, counts in zip(received, rows, strict=True):
            at = 0
            for k, count in enumerate(counts):
                indices[k].append(message[at : at + 8 * count].view(torch.int64))
                at += 8 * count
            for k, count in enumerate(counts):
                part = message[at : at + sizes[k] * count].view(tables[k].dtype)
                values[k].append(part.view(count, *tables[k].shape[1:]))
                at += sizes[k] * count
        for table, at_rows, of_rows in zip(tables, indices, values, strict=True):
            mean = torch.cat(of_rows).mul_(share)
            table.grad = torch.sparse_coo_tensor(torch.cat(at_rows)[None], mean, table.shape, check_invariants=False)


def ordered_sum(parts: Sequence[Tensor], group: ProcessGroup) -> Tensor:
    """[D]: the pairwise sum over the segments of all processes; `parts` are those of this one.

    Each process sums a W-th of the numbers, so that it sends 2D of them, however many processes there are.
    """
    run = len(parts) & -len(parts)  # the largest power of two by which the number of own segments can be divided
    own = torch.stack([pairwise_sum(parts[at : at + run]) for at in range(0, len(parts), run)])
    size, width = own.shape[1], -(-own.shape[1] // group.size)
    padded = torch.nn.functional.pad(own, (0, width * group.size - size))
    received = group.all_to_all(padded.view(len(own), group.size, width).transpose(0, 1).contiguous())
    return group.all_gather(pairwise_sum(list(received.flatten(0, 1)))).flatten()[:size]


def pairwise_sum(parts: Sequence[Tensor]) -> Tensor:
    """The sum of tensors: neighbours are added, then neighbouring sums, and so on."""
    while len(parts) > 1:
        odd = [parts[-1]] if len(parts) % 2 else []
        parts = [one + other for one, other in zip(parts[::2], parts[1::2], strict=False)] + odd
    return parts[0]


def _kind(grad: Tensor | None) -> int:
    if grad is None:
        return 0
    return ROWS + grad._indices().shape[1] if grad.is_sparse else WHOLE


def _flat(grad: Tensor | None, like: Tensor) -> Tensor:
    if grad is None:
        return torch.zeros(like.numel(), dtype=like.dtype, device=like.device)
    return (grad.to_dense() if grad.is_sparse else grad).reshape(-1)


def _numbers(loss: Loss | None, logged: list[str]) -> list[float]:
    """1, the loss and what it logs; zeros for a segment that has ended."""
    if loss is None:
        return [0.0] * (2 + len(logged))
    return [1.0, float(loss.total), *(float(loss.log[name]) for name in logged)]
