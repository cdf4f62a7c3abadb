"""Segments: an epoch cut into S runs of consecutive windows that train side by side, shared by W processes.

Step t trains window t of every segment. A segment starts from the state that the segment before it had at its end in
the previous epoch: a refreshed d-node for every entity at the border. In the first epoch it starts from the states of
a forward sweep with the initial parameters. S is part of the config and changes the result; W does not.

Process r has the segments rS/W to (r + 1)S/W − 1, and the states in them. Whole parameters are the same everywhere. A
row of a large table is owned by one process (owned_rows.py), and one that belongs to a window
(`TrainsSegments.window_rows`) by the process that trains the window.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from dynedge.data.log import EventLog
from dynedge.data.windows import cut_windows
from dynedge.errors import UsageError
from dynedge.models.base import Model, State
from dynedge.models.capabilities import TrainsSegments, capable
from dynedge.training.optimizer import MOMENTS
from dynedge.training.owned_rows import share_rows
from dynedge.utils.process_group import ProcessGroup
from dynedge.utils.tensor_io import Tensors, select_prefix, with_prefixes


def check_segments(segments: int, processes: int, windows: int | None = None) -> None:
    """Raises UsageError unless the processes can share the segments equally, and each has a window."""
    if segments % processes:
        raise UsageError(
            f"--segments {segments} cannot be shared by {processes} processes: choose a multiple of {processes}."
        )
    if windows is not None and segments > windows:
        raise UsageError(
            f"--segments {segments} is more than the {windows} windows of an epoch: choose fewer, or more --windows."
        )


class Segments:
    """The segments of an epoch; `states` are those of the segments that this process trains."""

    def __init__(self, model: Model, log: EventLog, windows: list[range], count: int, group: ProcessGroup) -> None:
        check_segments(count, group.size, len(windows))
        trains = capable(model, TrainsSegments)
        assert trains is not None, "train_run checks it"
        self.model, self.trains, self.log, self.windows, self.group = model, trains, log, windows, group
        self.parts = cut_windows(len(windows), count)  # numbers of the windows of each segment
        own = count // group.size
        self.own = range(group.rank * own, (group.rank + 1) * own)
        self.states: list[State] = []
        self._prepared = False

    @property
    def steps(self) -> list[list[range]]:
        """The windows that each step of an epoch trains."""
        count = max(map(len, self.parts))
        return [[self.windows[part[step]] for part in self.parts if step < len(part)] for step in range(count)]

    def numbers(self, step: int) -> list[int | None]:
        """The numbers of the windows that this process trains in a step; None for a segment that has ended."""
        parts = (self.parts[segment] for segment in self.own)
        return [part[step] if step < len(part) else None for part in parts]

    def batches(self, first: int) -> Iterator[list[Any]]:
        """For each step from number `first` on, a batch of each of the own segments; None for one that has ended."""
        parts = [self.parts[segment] for segment in self.own]
        if not self._prepared:
            self.trains.prepare_segments(self.log, self.windows, parts)
            self._prepared = True
        if not self.states:
            self._sweep()
        batches = [
            self.trains.segment_batches(self.log, self.windows, range(part.start + first, part.stop), state)
            for part, state in zip(parts, self.states, strict=True)
        ]
        for _ in range(first, max(map(len, self.parts))):
            yield [next(segment, None) for segment in batches]

    def _sweep(self) -> None:
        """Finds the first epoch's states at the borders: those of a forward pass with the initial parameters."""
        state = self.model.start()
        for segment in range(self.own.stop):
            if segment in self.own:
                self.states.append(state.clone())
            if segment + 1 < self.own.stop:
                self.trains.sweep(self.log, self.windows, self.parts[segment], state)

    def end_state(self) -> State:
        """The state at the end of the last segment, in every process."""
        last = self.group.size - 1
        tensors = dict(self.states[-1]) if self.group.rank == last else None
        return State(self.group.broadcast_tensors(tensors, last, self.model.start()))

    def next_epoch(self) -> None:
        """Every segment takes over the state at the end of the one before it."""
        start = self.model.start()
        received = self.group.shift_tensors(dict(self.states[-1]), start)
        self.states = [start if received is None else State(received), *self.states[:-1]]

    @cached_property
    def window_tables(self) -> set[str]:
        """The tables whose rows belong to windows; buffers too."""
        return set(self.trains.window_rows())

    @cached_property
    def owned_tables(self) -> set[str]:
        """The parameters whose rows are owned by one process each (owned_rows.py)."""
        return {*self.trains.rows_read(None, self.model.start()), *self.window_tables}

    @torch.no_grad()
    def share_rows(self, *others: Tensors) -> None:
        """Gives every process all rows of the owned tables, and of averages and moments of the same name."""
        if self.group.size == 1:
            return
        for name in sorted(self.owned_tables):
            tensors = [self.model.state_dict()[name]]
            tensors += [t for other in others for key, t in other.items() if key == name or _is_moment(key, name)]
            for table in tensors:
                if name in self.window_tables:
                    self._share_window_rows(table, self.trains.window_rows()[name])
                else:
                    share_rows(table, self.group)

    def _share_window_rows(self, table: Tensor, starts: Sequence[int]) -> None:
        borders = [starts[self.parts[segment].start] for segment in range(0, len(self.parts), len(self.own))]
        blocks = [slice(*pair) for pair in zip(borders, [*borders[1:], starts[-1]], strict=True)]
        padded = table.new_zeros(max(b.stop - b.start for b in blocks), *table.shape[1:])
        own = table[blocks[self.group.rank]]
        padded[: len(own)] = own
        for block, rows in zip(blocks, self.group.all_gather(padded), strict=True):
            table[block] = rows[: block.stop - block.start]

    # ---- checkpoints: a part for each segment, so that any number of processes can read them

    def checkpoint_parts(self) -> dict[str, Tensors]:
        return {_part(s): with_prefixes(state=dict(state)) for s, state in zip(self.own, self.states, strict=True)}

    def reads_part(self, name: str) -> bool:
        """Whether this process reads a part of a checkpoint; those of other segments it need not."""
        return not name.startswith(PART) or name in map(_part, self.own)

    def load(self, parts: dict[str, Tensors]) -> None:
        """Restores the states; KeyError where one is missing."""
        like, self.states = self.model.start(), []
        for segment in self.own:
            state = State(select_prefix(parts[_part(segment)], "state"))
            self.model.check_state(state)
            self.states.append(state.placed_like(like).clone())


PART = "segment-"


def _is_moment(key: str, name: str) -> bool:
    return key.rpartition(".")[0] == name and key.rpartition(".")[2] in MOMENTS


def _part(segment: int) -> str:
    return f"{PART}{segment:04}"
