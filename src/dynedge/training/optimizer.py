"""Adam for parameters with dense gradients, and for tables of which only some rows get a gradient (sparse Adam).

Each table row has its own Adam state: both moments per element, and a count of its own updates; all change only when
the row gets a gradient. A table whose every row gets a gradient in each step therefore trains exactly as under Adam,
and a row updated for the first time late in training moves by the learning rate, like Adam's first step. With one
shared step count it would move √10 times as far, because the bias correction would be missing. One second moment per
row would save a third of the memory, but would no longer be Adam.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from types import MappingProxyType
from typing import cast

import torch
from torch import Tensor, nn

from dynedge.ops.adam import DenseUpdate, clip_scale, coalesce, coalesce_all, dense_steps, row_step

# Sparse gradients come from autograd, so their indices are valid; torch warns unless the check is set explicitly.
torch.sparse.check_sparse_tensor_invariants.disable()  # type: ignore[no-untyped-call]

MOMENTS = ("mean", "square", "steps")


class Adam:
    """Updates dense parameters with learning rate `lr` and rows of sparse (COO) gradients with `row_lr`.

    A parameter's first gradient decides which kind it is. Attributes of a parameter, if set: `lr_scale` multiplies
    its learning rate, `row_lr_scale` float[N] that of each row; the norm of gradients is clipped over all parameters
    with the same `clip_group`. The moments are named tensors, so that a checkpoint is exact.
    """

    def __init__(self, parameters: Iterable[tuple[str, nn.Parameter]], lr: float, row_lr: float) -> None:
        self.parameters = {name: p for name, p in parameters if p.requires_grad}
        self.lr, self.row_lr = lr, row_lr
        self.clip_groups: dict[str, dict[str, nn.Parameter]] = {}  # by group and name: those clipped by one norm
        for name, parameter in self.parameters.items():
            self.clip_groups.setdefault(getattr(parameter, "clip_group", ""), {})[name] = parameter
        self._grad_scale: dict[str, Tensor] = {}  # by clip group: factor of the next step's gradients, if not one
        self._lr_factor = 1.0
        self._rates: dict[str, tuple[float, Tensor]] = {}  # by parameter: configured rate, scaled rate
        self._moments: dict[str, tuple[Tensor, Tensor, Tensor]] = {}  # by parameter: mean, square, steps

    def scale_learning_rate(self, factor: float) -> None:
        """Sets every learning rate to `factor` times its configured value."""
        if factor != self._lr_factor:
            self._lr_factor = factor
            for configured, rate in self._rates.values():
                rate.fill_(configured * factor)

    def zero_grad(self) -> None:
        for parameter in self.parameters.values():
            parameter.grad = None

    def clip(
        self, max_norm: float, measured: Collection[str] = (), squares: Mapping[str, float] = MappingProxyType({})
    ) -> Tensor:
        """Clips the norm of each group's gradients to `max_norm` in the next step; returns the norm of all before.

        The gradients themselves are not changed, and there is no synchronization with the GPU.
        `measured`: parameters of whose gradients `squares` has the sums of squares by group, here and in other
        processes.
        """
        totals = []
        for group, parameters in self.clip_groups.items():
            given = [p for name, p in parameters.items() if p.grad is not None and name not in measured]
            if not given:
                continue
            values = self._coalesced(given)
            total, self._grad_scale[group] = clip_scale(values, max_norm, squares.get(group, 0.0))
            totals.append(total)
        return sum(totals[1:], totals[0]).sqrt() if totals else torch.zeros(())

    def _coalesced(self, parameters: list[nn.Parameter]) -> list[Tensor]:
        """The numbers of their gradients: repeated rows are summed first, since the norm is over the sums."""
        sparse = [p for p in parameters if cast(Tensor, p.grad).is_sparse]
        for parameter, grad in zip(sparse, coalesce_all([cast(Tensor, p.grad) for p in sparse]), strict=True):
            parameter.grad = grad
        grads = [cast(Tensor, parameter.grad) for parameter in parameters]
        return [grad._values() if grad.is_sparse else grad for grad in grads]

    @torch.no_grad()
    def step(self) -> None:
        """Updates every parameter that has a gradient."""
        for group, parameters in self.clip_groups.items():
            grads = {name: p.grad for name, p in parameters.items() if p.grad is not None}
            dense, scale = [], self._grad_scale.get(group, torch.ones((), dtype=torch.float64))
            for name, grad in grads.items():
                by_rows = self._moments[name][2].ndim > 0 if name in self._moments else grad.is_sparse
                if by_rows:
                    rows = coalesce(grad if grad.is_sparse else grad.to_sparse(1))
                    self._step_rows(name, parameters[name], rows, scale.to(grad.device))
                else:
                    whole = grad.to_dense() if grad.is_sparse else grad
                    dense.append(self._dense_update(name, parameters[name], whole))
            if dense:
                self._step_dense(dense, scale.to(dense[0].grad.device))
        self._grad_scale = {}

    def _dense_update(self, name: str, parameter: Tensor, grad: Tensor) -> DenseUpdate:
        mean, square, steps = self._moments_of(name, parameter, ())
        lr = self._rate(name, self.lr * getattr(parameter, "lr_scale", 1.0))
        return DenseUpdate(parameter, grad, mean, square, steps, lr)

    def _step_dense(self, updates: list[DenseUpdate], scale: Tensor) -> None:
        shares = [(update.value, _row_lr_scale(update.value)) for update in updates]
        by_row = [(value, value.clone(), share) for value, share in shares if share is not None]
        dense_steps(updates, scale)
        for value, before, share in by_row:
            value.copy_(_part_of_step(before, value, share))

    def _step_rows(self, name: str, parameter: Tensor, grad: Tensor, scale: Tensor) -> None:
        mean, square, steps = self._moments_of(name, parameter, (len(parameter),))
        lr = self._rate(name, self.row_lr * getattr(parameter, "lr_scale", 1.0))
        rows = grad.indices()[0]
        share = _row_lr_scale(parameter)
        before = parameter if share is None else parameter[rows]
        row_step(parameter, rows, grad.values(), mean, square, steps, lr, scale)
        if share is not None:
            parameter[rows] = _part_of_step(before, parameter[rows], share[rows])

    def _rate(self, name: str, configured: float) -> Tensor:
        if name not in self._rates:
            device = self.parameters[name].device
            rate = torch.tensor(configured * self._lr_factor, dtype=torch.float64, device=device)
            self._rates[name] = configured, rate
        return self._rates[name][1]

    def _moments_of(
        self, name: str, parameter: Tensor, steps_shape: tuple[int, ...]
    ) -> tuple[Tensor, Tensor, Tensor]:
        if name not in self._moments:
            dtype = torch.int32 if steps_shape else torch.int64
            steps = torch.zeros(steps_shape, dtype=dtype, device=parameter.device)
            self._moments[name] = torch.zeros_like(parameter), torch.zeros_like(parameter), steps
        return self._moments[name]

    def tensors(self) -> dict[str, Tensor]:
        """Returns the optimizer's state as named tensors: the tensors themselves, not copies."""
        return {
            f"{name}.{moment}": tensor
            for name, moments in self._moments.items()
            for moment, tensor in zip(MOMENTS, moments, strict=True)
        }

    def load(self, tensors: dict[str, Tensor]) -> None:
        """Restores the state that `tensors()` returned."""
        self._moments = {}
        for name in {key.rpartition(".")[0] for key in tensors}:
            device = self.parameters[name].device
            mean, square, steps = (tensors[f"{name}.{moment}"].clone().to(device) for moment in MOMENTS)
            self._moments[name] = mean, square, steps


def _row_lr_scale(parameter: Tensor) -> Tensor | None:
    return getattr(parameter, "row_lr_scale", None)


def _part_of_step(before: Tensor, after: Tensor, share: Tensor) -> Tensor:
    """Rows [n, ...] that have gone the given share float[n] of a step."""
    return torch.lerp(before, after, share.view(-1, *[1] * (after.dim() - 1)))
