"""Tables of which each row is owned by one process, which alone has the row's moments and updates it.

Row i belongs to process i mod W. Before a step a process asks the owners for the rows that its windows read; after
it, it sends them the gradients of those rows. Traffic therefore does not grow with the number of processes. All
processes have all tables, but between steps only the rows they own are current.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from dynedge.ops.adam import coalesce
from dynedge.utils.process_group import ProcessGroup

FRACTION_BITS = 40  # of the largest summand that `exact_sum` keeps


@torch.no_grad()
def fetch_rows(table: Tensor, rows: Tensor, group: ProcessGroup) -> None:
    """Makes these rows of the table current, int64 and possibly repeated."""
    needed, counts = _by_owner(torch.unique(rows), group)
    asked, asked_counts = group.exchange(needed, counts)
    values, _ = group.exchange(table[asked], asked_counts)
    table[needed] = values


def gradient_of_own_rows(table: Tensor, parts: Sequence[Tensor], group: ProcessGroup) -> Tensor:
    """The sparse gradient of the rows that this process owns, summed in the order of the segments of all processes.

    `parts` are the gradients of this process's own segments, in order.
    """
    rows = torch.cat(
        [torch.empty(0, dtype=torch.int64, device=table.device), *(part._indices()[0] for part in parts)]
    )
    values = torch.cat([table.detach()[:0], *(part._values() for part in parts)])
    order = torch.argsort(rows % group.size, stable=True)
    counts = torch.bincount(rows % group.size, minlength=group.size).tolist()
    received, _ = group.exchange(rows[order], counts)
    gradients, _ = group.exchange(values[order], counts)
    return coalesce(torch.sparse_coo_tensor(received[None], gradients, table.shape, check_invariants=False))


@torch.no_grad()
def share_rows(table: Tensor, group: ProcessGroup) -> None:
    """Makes all rows of the table current in every process."""
    own = table[group.rank :: group.size]
    padded = table.new_zeros(-(-len(table) // group.size), *table.shape[1:])
    padded[: len(own)] = own
    for rank, rows in enumerate(group.all_gather(padded)):
        part = table[rank :: group.size]
        part.copy_(rows[: len(part)])


def exact_sum(values: Tensor, group: ProcessGroup) -> float:
    """The sum of float64 [n] >= 0 over all processes: the same bits however the values are shared.

    They are rounded down to multiples of 2^−40 of the largest one's power of two, and added as integers.
    """
    largest = float(group.all_gather(values.max() if len(values) else values.new_zeros(())).max())
    if not math.isfinite(largest) or largest < 1e-280:
        return largest if largest >= 1e-280 or math.isnan(largest) else 0.0
    scale = 2.0 ** (FRACTION_BITS - math.frexp(largest)[1])
    total = group.all_gather((values * scale).floor().long().sum()).sum()
    return int(total) / scale


def row_squares(gradients: Sequence[Tensor]) -> Tensor:
    """float64: the sum of squares of each row of coalesced sparse gradients."""
    return torch.cat([grad._values().double().square().flatten(1).sum(1) for grad in gradients])


def _by_owner(rows: Tensor, group: ProcessGroup) -> tuple[Tensor, list[int]]:
    """(the rows, by owner; the number of rows of each owner)"""
    owner = rows % group.size
    return rows[torch.argsort(owner, stable=True)], torch.bincount(owner, minlength=group.size).tolist()
