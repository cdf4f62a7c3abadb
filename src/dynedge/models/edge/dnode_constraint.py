"""The d-node constraint: φ should equal the state it stands for, under one of four solvers.

penalty          φ is learned; α/2·‖φ − state‖² is added to the loss (as in the paper)
augmented        the same plus λ·(φ − state), with λ increased by α·(φ − state) each time (augmented Lagrangian)
refresh          φ is a copy of the state as computed in the previous epoch
refresh-penalty  the same, and the penalty pulls the state towards its last copy

Legend: K d-nodes of a window, D of all windows, d width of a state.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class DNodeConstraint(nn.Module):
    def __init__(self, start: Tensor, solver: str, alpha: float) -> None:
        """`start` [D, d]: the initial φ."""
        super().__init__()
        self.alpha = alpha
        self.learned = not solver.startswith("refresh")
        self.penalized = solver != "refresh"
        self.phi: Tensor
        if self.learned:
            self.phi = nn.Parameter(start.clone())
        else:
            self.register_buffer("phi", start.clone())
        self.multiplier: Tensor | None
        self.register_buffer("multiplier", torch.zeros_like(start) if solver == "augmented" else None)

    def read(self, rows: Tensor) -> Tensor:
        """φ [K, d] of a window's d-nodes."""
        return F.embedding(rows, self.phi, sparse=True) if self.learned else self.phi[rows]

    def penalty(self, rows: Tensor, phi: Tensor, states: Tensor) -> tuple[Tensor, Tensor]:
        """(penalty added to the window's loss, residual: mean ‖φ − state‖); updates multipliers and copied φ."""
        gap = phi - states
        residual = gap.detach().norm(dim=1).mean() if len(rows) else gap.new_zeros(())
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
        return total, residual
