"""CandidateAge: scores of candidates by the time since their last event, as further columns of an inner product.

Legend: q queries, T frequencies ω, φ phases, a the weights of a query, s the time of a candidate's last event.

    Σ a cos(ω (t − s) + φ) = Σ a cos(ω t + φ) cos(ω s) + a sin(ω t + φ) sin(ω s)

One factor depends on the query alone and one on the candidate alone. So a candidate's vector, computed at its own
last event, is read with a time encoding of its age at the time of the query, and all items are scored by one product.
Id embeddings have as many columns as vectors, so theirs end with 2T unused ones, which stay 0.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from dynedge.ops.gather_linear import gather_linear


class CandidateAge(nn.Module):
    frequency: Tensor  # ω [T]

    def __init__(self, dim: int, time_dim: int) -> None:
        super().__init__()
        self.register_buffer("frequency", torch.logspace(-1, -8, time_dim))  # per second
        self.phase = nn.Parameter(torch.zeros(time_dim))
        self.weight = nn.Linear(dim, time_dim)
        nn.init.zeros_(self.weight.weight)
        nn.init.zeros_(self.weight.bias)

    def item_columns(self, time: Tensor) -> Tensor:
        """[.., 2T] of items with these last events, float64[..]; below 0: none, a row of zeros."""
        angle = time.double()[..., None] * self.frequency.double()
        columns = torch.cat([angle.cos(), angle.sin()], -1) * (time >= 0)[..., None]
        return columns.to(self.phase)

    def query(self, query: Tensor, vector: Tensor, time: Tensor) -> Tensor:
        """[q, 2d + 4T]: queries [q, 2d] for vectors and ids, with columns for the age, weighted by vectors [q, d]."""
        by_vector, by_id = query.chunk(2, 1)
        columns = self._query_columns(vector, time)
        return torch.cat([by_vector, columns, by_id, torch.zeros_like(columns)], 1)

    def _query_columns(self, vector: Tensor, time: Tensor) -> Tensor:
        """[q, 2T]"""
        weight = gather_linear([(vector, None)], self.weight.weight, self.weight.bias)
        angle = time.double()[:, None] * self.frequency.double()
        cos, sin = angle.cos().to(weight), angle.sin().to(weight)
        phase_cos, phase_sin = self.phase.cos(), self.phase.sin()
        shifted = cos * phase_cos - sin * phase_sin, sin * phase_cos + cos * phase_sin
        return torch.cat([weight * part for part in shifted], 1)
