"""The d-node constraint: φ should equal the state it stands for, under one of four solvers.

penalty          φ is learned; α/2·‖φ − state‖² is added to the loss (as in the paper)
augmented        the same plus λ·(φ − state), with λ increased by α·(φ − state) each time (augmented Lagrangian)
refresh          φ is a copy of the state as computed in the previous epoch
refresh-penalty  the same, and the penalty pulls the state towards its last copy

A φ far from its state pulls the state towards itself, and one that Adam moves once per epoch catches up slowly.
Therefore φ may be a copy of its state, without penalty, for the first epochs (`warmup`), and a learned φ may have a
learning rate of its own.

Legend: K d-nodes of a window, D of all windows, d width of a state.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dynedge.ops.squared_gap import squared_gap


class DNodeConstraint(nn.Module):
    def __init__(self, start: Tensor, solver: str, alpha: float, *, warmup: int = 0, lr_factor: float = 1.0) -> None:
        """`start` [D, d]: the initial φ; `warmup` epochs in which a learned φ is copied from its state."""
        super().__init__()
        self.alpha = alpha
        self.learned = solver in ("penalty", "augmented")
        self.penalized = solver != "refresh"
        self.phi: Tensor
        if self.learned:
            self.phi = nn.Parameter(start.clone())
            self.phi.lr_scale = lr_factor  # type: ignore[attr-defined]
        else:
            self.register_buffer("phi", start.clone())
        self.multiplier: Tensor | None
        self.register_buffer("multiplier", torch.zeros_like(start) if solver == "augmented" else None)
        # Number of warm-up epochs left: a tensor, which a captured CUDA graph reads anew in every epoch.
        self.warmup: Tensor | None
        self.register_buffer("warmup", torch.tensor(warmup) if self.penalized and warmup else None)

    def end_epoch(self) -> None:
        if self.warmup is not None:
            self.warmup.sub_(1).clamp_(min=0)

    def read(self, rows: Tensor) -> Tensor:
        """φ [K, d] of a window's d-nodes."""
        if not self.learned:
            return self.phi[rows]
        phi = F.embedding(rows, self.phi, sparse=True)
        return phi if self.warmup is None else torch.where(self.warmup > 0, phi.detach(), phi)

    def penalty(self, rows: Tensor, phi: Tensor, states: Tensor) -> tuple[Tensor, Tensor]:
        """(penalty added to the window's loss, residual: mean ‖φ − state‖); updates multipliers and copied φ."""
        if self.learned and self.multiplier is None and self.warmup is None:
            return squared_gap(phi, states, self.alpha)
        gap = phi - states
        residual = gap.detach().norm(dim=1).mean() if len(rows) else gap.new_zeros(())
        if self.warmup is not None:
            gap = gap * (self.warmup == 0)
        total = gap.new_zeros(())
        if self.penalized:
            total = total + self.alpha / 2 * gap.square().sum()
        if self.multiplier is not None:
            total = total + (self.multiplier[rows] * gap).sum()
        with torch.no_grad():
            if self.multiplier is not None:
                self.multiplier[rows] += self.alpha * gap
            if not self.learned:
                self.phi[rows] = states
            elif self.warmup is not None:
                self.phi[rows] = torch.where(self.warmup > 0, states, self.phi[rows])
        return total, residual
