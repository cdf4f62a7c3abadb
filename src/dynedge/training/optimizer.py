"""Adam, for parameters whose gradient is dense, and for tables where only a few rows got one.

A table's row is a small Adam of its own: both moments per element and a count of its own updates, touched only when
the row got gradient. So a table whose every row gets gradient each step trains exactly as under Adam; and a row met
for the first time late in training moves by the learning rate, as Adam's first step does, where one shared count
would move it √10 times as far (its young moments would be taken for old ones). One second moment per row would save
a third of the memory and is no longer Adam; a table that large can take that step later.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
from torch import Tensor, nn

from dynedge.ops.adam import coalesce, dense_step, row_step, sum_of_squares

# Autograd makes the sparse gradients here, so their indices are sound; torch asks for a word on it, or warns.
torch.sparse.check_sparse_tensor_invariants.disable()  # type: ignore[no-untyped-call]


class Adam:
    """Dense parameters move at `lr`, rows of those whose gradient is sparse (COO) at `row_lr`.

    Which kind a parameter is, its first gradient says. One that should move faster than others has its factor as an
    attribute, `pace`. The moments are named tensors, so that a checkpoint is exact.
    """

    def __init__(self, parameters: Iterable[tuple[str, nn.Parameter]], lr: float, row_lr: float) -> None:
        self.parameters = {name: p for name, p in parameters if p.requires_grad}
        self.lr, self.row_lr = lr, row_lr
        self._scale = torch.ones((), dtype=torch.float64)  # what the next step's gradients are multiplied by
        self._cooled = 1.0
        self._rates: dict[str, tuple[float, Tensor]] = {}  # by parameter: as told, as cooled
        self._moments: dict[str, tuple[Tensor, Tensor, Tensor]] = {}  # mean, square, steps: by parameter

    def cool(self, factor: float) -> None:
        """From now on every learning rate is this share of what it was told to be."""
        if factor != self._cooled:
            self._cooled = factor
            for told, rate in self._rates.values():
                rate.fill_(told * factor)

    def zero_grad(self) -> None:
        for parameter in self.parameters.values():
            parameter.grad = None

    def clip(self, most: float) -> Tensor:
        """Have the next step scale all gradients together so that their norm is at most `most`; returns the norm.

        No sync. The gradients themselves stay as they are.
        """
        values = []
        for parameter in self.parameters.values():
            if parameter.grad is not None:
                if parameter.grad.is_sparse:  # rows named twice are summed first: the norm is of the sums
                    parameter.grad = coalesce(parameter.grad)
                values.append(parameter.grad.values() if parameter.grad.is_sparse else parameter.grad)
        if not values:
            return torch.zeros(())
        norm = sum_of_squares(values).sqrt_()
        self._scale = (most / (norm + 1e-6)).clamp_(max=1.0) if math.isfinite(most) else torch.ones_like(norm)
        return norm

    @torch.no_grad()
    def step(self) -> None:
        for name, parameter in self.parameters.items():
            grad = parameter.grad
            if grad is None:
                continue
            by_rows = self._moments[name][2].dim() > 0 if name in self._moments else grad.is_sparse
            if by_rows:
                self._step_rows(name, parameter, coalesce(grad if grad.is_sparse else grad.to_sparse(1)))
            else:
                self._step_dense(name, parameter, grad.to_dense() if grad.is_sparse else grad)
        self._scale = torch.ones_like(self._scale)

    def _step_dense(self, name: str, parameter: Tensor, grad: Tensor) -> None:
        mean, square, steps = self._of(name, parameter, ())
        steps += 1
        lr = self._rate(name, self.lr * getattr(parameter, "pace", 1.0))
        dense_step(parameter, grad, mean, square, steps, lr, self._scale)

    def _step_rows(self, name: str, parameter: Tensor, grad: Tensor) -> None:
        mean, square, steps = self._of(name, parameter, (len(parameter),))
        lr = self._rate(name, self.row_lr)
        row_step(parameter, grad.indices()[0], grad.values(), mean, square, steps, lr, self._scale)

    def _rate(self, name: str, told: float) -> Tensor:
        if name not in self._rates:
            device = self.parameters[name].device
            self._rates[name] = told, torch.tensor(told * self._cooled, dtype=torch.float64, device=device)
        return self._rates[name][1]

    def _of(self, name: str, parameter: Tensor, counted: tuple[int, ...]) -> tuple[Tensor, Tensor, Tensor]:
        if name not in self._moments:
            steps = torch.zeros(counted, dtype=torch.int64 if not counted else torch.int32, device=parameter.device)
            self._moments[name] = torch.zeros_like(parameter), torch.zeros_like(parameter), steps
        return self._moments[name]

    def tensors(self) -> dict[str, Tensor]:
        """All that it remembers, by name. The tensors themselves, not copies."""
        parts = ("mean", "square", "steps")
        return {
            f"{name}.{part}": moment
            for name, moments in self._moments.items()
            for part, moment in zip(parts, moments, strict=True)
        }

    def load(self, tensors: dict[str, Tensor]) -> None:
        """Go on from what `tensors()` gave."""
        self._moments = {}
        for name in {key.rpartition(".")[0] for key in tensors}:
            device = self.parameters[name].device
            mean, square, steps = (tensors[f"{name}.{part}"].clone() for part in ("mean", "square", "steps"))
            self._moments[name] = mean.to(device), square.to(device), steps.to(device)
