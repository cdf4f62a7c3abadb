"""`edge`, the default model: two experts under one contract, fused late.

The count memory counts what followed what; the co-evolving recurrence has a state for every user and item. Each is
trained on its own loss: trained jointly, the recurrence's fitted embeddings look better on the training events than
they are, and the counts get too little weight. The log probabilities of the memory and the weighted scores of the
recurrence are added; the weight is chosen on the validation events, the smallest one within a standard error of the
best MRR, and may be zero.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, Self

import torch
from torch import Tensor

from dynedge.data.log import EventLog
from dynedge.data.windows import Window
from dynedge.models.base import LogShape, Loss, Model, State, Step, Tensors
from dynedge.models.capabilities import (
    Calibrated,
    Explainable,
    Explanation,
    GraphCapturable,
    Growable,
    HasStates,
    RemembersSeen,
    Searchable,
    TrainsSegments,
    Undoable,
)
from dynedge.models.count_memory.example_cache import WindowExamples
from dynedge.models.count_memory.model import CountMemory
from dynedge.models.edge.config import EdgeConfig
from dynedge.models.edge.recurrence import Recurrence
from dynedge.models.entity_rows import Rows
from dynedge.models.state_checks import check_names
from dynedge.models.window_index import WindowIndex
from dynedge.ops.dispatch import SideStream
from dynedge.ops.item_ranks import ranks_of_weighted_sums
from dynedge.ops.log_plus import log_plus_
from dynedge.utils.array_type import Array

MEMORY, RECURRENCE = "memory.", "recurrence."  # prefixes of the experts' parts of state and parameters


@dataclass(frozen=True, eq=False)
class ExpertBatches:
    """A training batch of each expert, for the same window."""

    recurrence: WindowIndex
    memory: WindowExamples

    @property
    def window(self) -> Window:
        return self.recurrence.window


class Edge(
    Model,
    Growable,
    Searchable,
    Explainable,
    Undoable,
    GraphCapturable,
    TrainsSegments,
    Calibrated,
    HasStates,
    RemembersSeen,
):
    weight: Tensor  # of the recurrence's scores

    def __init__(self, config: EdgeConfig, memory: CountMemory, recurrence: Recurrence) -> None:
        super().__init__(config, memory.shape)
        self.memory, self.recurrence = memory, recurrence
        for expert in (memory, recurrence):  # losses of their own: by a common norm the larger gradients would decide
            for parameter in expert.parameters():
                parameter.clip_group = type(expert).__name__  # type: ignore[attr-defined]
        self.register_buffer("weight", torch.zeros(()))
        self._side_stream = SideStream()
        self._captured: dict[int, ExpertBatches] = {}  # a captured graph needs the same object in every epoch

    @classmethod
    def create(cls, config: EdgeConfig, log: EventLog, train_end: int, seed: int) -> Self:
        memory = CountMemory.create(config.memory, log, train_end, seed)
        return cls(config, memory, Recurrence.create(config.recurrence, log, train_end, seed))

    @classmethod
    def restore(cls, config: EdgeConfig, shape: LogShape, tensors: Tensors) -> Self:
        parts = _part(State(tensors), MEMORY), _part(State(tensors), RECURRENCE)
        memory = CountMemory.restore(config.memory, shape, parts[0])
        model = cls(config, memory, Recurrence.restore(config.recurrence, shape, parts[1]))
        model.load_state_dict(tensors)
        return model

    def entity_rows(self) -> dict[str, Rows]:
        return {RECURRENCE + name: rows for name, rows in self.recurrence.entity_rows().items()}

    def grown_tensors(self, shape: LogShape, seed: int) -> dict[str, Tensor]:
        grown = self.recurrence.grown_tensors(shape, seed)
        return {**self.state_dict(), **{RECURRENCE + name: tensor for name, tensor in grown.items()}}

    # ---- training: each expert on its own loss

    def num_windows(self, train_end: int) -> int:
        return self.recurrence.num_windows(train_end)

    def training_windows(self, train_end: int) -> list[range]:
        return self.recurrence.training_windows(train_end)

    def begin_training(self, log: EventLog, train_end: int) -> None:
        self.recurrence.begin_training(log, train_end)

    def start_epoch(self, epoch: int) -> None:
        self.memory.start_epoch(epoch)

    def batches(self, log: EventLog, windows: Sequence[range], first: int = 0) -> Iterator[ExpertBatches]:
        parts = self.recurrence.batches(log, windows, first), self.memory.batches(log, windows, first)
        for number, (index, examples) in enumerate(zip(*parts, strict=True), first):
            batch = self._captured.get(number)
            if batch is None or batch.recurrence is not index:
                batch = ExpertBatches(index, examples)
            if self.is_graph_capturable(batch):
                self._captured[number] = batch
            yield batch

    def prepare_segments(self, log: EventLog, windows: Sequence[range], segments: Sequence[range]) -> None:
        self.recurrence.prepare_segments(log, windows, segments)
        self.memory.prepare_segments(log, windows, segments)

    def segment_batches(
        self, log: EventLog, windows: Sequence[range], numbers: range, entry: State
    ) -> Iterator[ExpertBatches]:
        parts = (
            self.recurrence.segment_batches(log, windows, numbers, _part(entry, RECURRENCE)),
            self.memory.segment_batches(log, windows, numbers),
        )
        yield from map(ExpertBatches, *parts)

    def sweep(self, log: EventLog, windows: Sequence[range], numbers: range, state: State) -> None:
        with _parts(state) as (_, states):
            self.recurrence.sweep(log, windows, numbers, states)

    def rows_read(self, batch: ExpertBatches | None, state: State) -> dict[str, Tensor]:
        rows = self.recurrence.rows_read(None if batch is None else batch.recurrence, _part(state, RECURRENCE))
        return {RECURRENCE + name: numbers for name, numbers in rows.items()}

    def window_rows(self) -> dict[str, Sequence[int]]:
        return {RECURRENCE + name: starts for name, starts in self.recurrence.window_rows().items()}

    def continued_batch(self, window: Window, state: State) -> ExpertBatches:
        with _parts(state) as (counts, states):
            memory = self.memory.continued_batch(window, counts)
            return ExpertBatches(self.recurrence.continued_batch(window, states), memory)

    def with_replay(self, batch: ExpertBatches, earlier: Sequence[ExpertBatches]) -> ExpertBatches:
        return replace(batch, memory=self.memory.with_replay(batch.memory, [one.memory for one in earlier]))

    def start(self) -> State:
        return _join(self.memory.start(), self.recurrence.start())

    def check_state(self, state: State) -> None:
        parts = _part(state, MEMORY), _part(state, RECURRENCE)
        check_names(state, _join(*parts))
        self.memory.check_state(parts[0])
        self.recurrence.check_state(parts[1])

    def sample_negatives(self, batch: ExpertBatches, step: Step) -> Tensor | None:
        return self.recurrence.sample_negatives(batch.recurrence, step)

    def is_graph_capturable(self, batch: ExpertBatches) -> bool:
        return self.recurrence.is_graph_capturable(batch.recurrence)

    def after_step(self, batch: ExpertBatches, state: State) -> None:
        with _parts(state) as (counts, states):
            self.memory.after_step(batch.memory, counts)
            self.recurrence.after_step(batch.recurrence, states)

    def loss(self, batch: ExpertBatches, state: State, step: Step) -> Loss:
        with _parts(state) as (counts, states):
            with self._side_stream.launch(self.weight.device):
                memory = self.memory.loss(batch.memory, counts, step)
            recurrence = self.recurrence.loss(batch.recurrence, states, step)
            self._side_stream.wait()
        return Loss(memory.total + recurrence.total, {**recurrence.log, "memory_loss": memory.log["loss"]})

    def end_epoch(self, epoch: int) -> dict[str, float]:
        return self.recurrence.end_epoch(epoch)

    def run_info(self) -> dict[str, Any]:
        return self.recurrence.run_info()

    # ---- fusion

    def calibration_options(self) -> Sequence[float]:
        return sorted({0.0, *self.config.weights})

    def calibration_ranks(self, batch: WindowIndex, candidates: Tensor | None, true: Tensor, state: State) -> Array:
        weights = self.calibration_options()
        if candidates is None:
            with _parts(state) as (counts, states):
                added = self.recurrence.scores_by_block(batch, states)
                return self.memory.rank_sums(batch.window, added, weights, counts).numpy()
        memory, recurrence = self._scores(batch, candidates, state)
        return ranks_of_weighted_sums(memory.to(recurrence).log_(), recurrence, weights, true.to(recurrence.device))

    @property
    def calibration(self) -> float:
        return min(self.calibration_options(), key=lambda option: abs(option - float(self.weight)))

    def set_calibration(self, value: float) -> dict[str, float]:
        self.weight.fill_(value)
        return {"weight": float(self.weight)}

    def _fuse(self, memory: Tensor, recurrence: Tensor) -> Tensor:
        return log_plus_(memory, self.weight, recurrence)

    def prepare(self, window: Window) -> WindowIndex:
        return self.recurrence.prepare(window)

    def _scores(self, batch: WindowIndex, candidates: Tensor | None, state: State) -> tuple[Tensor, Tensor]:
        with _parts(state) as (counts, states):
            memory = self.memory.score(batch.window, candidates, counts)
            placed = None if candidates is None else candidates.to(self.weight.device)
            return memory, self.recurrence.score(batch, placed, states)

    def score(self, batch: WindowIndex, candidates: Tensor | None, state: State) -> Tensor:
        if self.weight == 0:  # by the memory alone, without the cost of the recurrence's scores
            with _parts(state) as (counts, states):
                self.recurrence.observe(batch.window, states)
                return self.memory.score(batch.window, candidates, counts).log_()
        return self._fuse(*self._scores(batch, candidates, state))

    def rank(self, batch: WindowIndex, candidates: Tensor | None, true: Tensor, state: State) -> Tensor:
        if candidates is not None:
            return super().rank(batch, candidates, true, state)
        with _parts(state) as (counts, states):
            if self.weight == 0:
                self.recurrence.observe(batch.window, states)
                return self.memory.rank(batch.window, None, true, counts)
            added = self.recurrence.scores_by_block(batch, states)
            return self.memory.rank_sums(batch.window, added, [float(self.weight)], counts)[0]

    def scores_per_rank(self, items: int) -> int:
        return self.memory.scores_per_rank(items) if self.recurrence.scores_blocks else items

    def observe(self, window: Window, state: State) -> None:
        with _parts(state) as (counts, states):
            self.recurrence.observe(window, states)  # first: it may refuse an event
            self.memory.observe(window, counts)

    def apply_with_undo(self, window: Window, state: State) -> Callable[[], None]:
        with _parts(state) as (counts, states):
            undo_recurrence = self.recurrence.apply_with_undo(window, states)  # first: it may refuse the event
            undo_memory = self.memory.apply_with_undo(window, counts)

        def undo() -> None:
            undo_memory()
            undo_recurrence()

        return undo

    def grow(self, users: int, items: int, state: State) -> None:
        with _parts(state) as (counts, states):
            self.memory.grow(users, items, counts)
            self.recurrence.grow(users, items, states)
        self.shape = self.recurrence.shape

    def seen_items(self, users: Tensor, state: State) -> Tensor:
        return self.memory.seen_items(users, _part(state, MEMORY))

    def entity_states(self, side: int, entities: Tensor, state: State) -> Tensor:
        return self.recurrence.entity_states(side, entities, _part(state, RECURRENCE))

    def vectors(self, state: State) -> tuple[Tensor, Tensor]:
        return self.recurrence.vectors(_part(state, RECURRENCE))

    def item_matrix(self, items: Tensor, state: State) -> Tensor:
        return self.recurrence.item_matrix(items, _part(state, RECURRENCE))

    def query_vector(self, user: int, time: float, state: State) -> tuple[Tensor, Tensor]:
        users, times = torch.tensor([user]), torch.tensor([time], dtype=torch.float64)
        memory = self.memory.score_query(users, times, None, _part(state, MEMORY))[0]
        base, query = self.recurrence.query_vector(user, time, _part(state, RECURRENCE))
        return self._fuse(memory, base), query * self.weight

    def score_query(self, users: Tensor, times: Tensor, candidates: Tensor | None, state: State) -> Tensor:
        memory = self.memory.score_query(users, times, candidates, _part(state, MEMORY))
        if self.weight == 0:
            return memory.log_()
        device = self.weight.device
        placed = None if candidates is None else candidates.to(device)
        states = _part(state, RECURRENCE)
        return self._fuse(memory, self.recurrence.score_query(users.to(device), times.to(device), placed, states))

    def explain(self, user: int, time: float, items: Tensor, state: State) -> list[Explanation]:
        """The share of the states is their lift over the mean item's score, relative to the memory's."""
        users, times = torch.tensor([user]), torch.tensor([time], dtype=torch.float64)
        memory = self.memory.score_query(users, times, None, _part(state, MEMORY))[0].log_()
        query = users.to(self.weight.device), times.to(self.weight.device)
        recurrence = self.recurrence.score_query(*query, None, _part(state, RECURRENCE))[0]
        scores = memory, (self.weight * recurrence).cpu()
        lifts = [(score[items] - score.clamp_min(-60).mean()).clamp_min(0).tolist() for score in scores]
        by_counts = self.memory.explain(user, time, items, _part(state, MEMORY))
        explanations = []
        for counts, memory_lift, recurrence_lift in zip(by_counts, *lifts, strict=True):
            share = recurrence_lift / (memory_lift + recurrence_lift) if recurrence_lift else 0.0
            shares = {name: (1 - share) * value for name, value in counts.shares.items()}
            explanations.append(Explanation({**shares, "states": share}, counts.nearest_item))
        return explanations


def _part(state: State, prefix: str) -> State:
    return State({short: state[name] for short, name in _names(prefix, tuple(state))})


@cache
def _names(prefix: str, names: tuple[str, ...]) -> list[tuple[str, str]]:
    """(name without its prefix, full name); cached, since events may come one at a time."""
    return [(name[len(prefix) :], name) for name in names if name.startswith(prefix)]


@contextmanager
def _parts(state: State) -> Iterator[tuple[State, State]]:
    """The experts' states; afterwards the state has what they became, also where a tensor was replaced."""
    counts, states = _part(state, MEMORY), _part(state, RECURRENCE)
    yield counts, states
    state.update(_join(counts, states))


def _join(counts: State, states: State) -> State:
    parts = {MEMORY: counts, RECURRENCE: states}
    return State({prefix + name: tensor for prefix, part in parts.items() for name, tensor in part.items()})
