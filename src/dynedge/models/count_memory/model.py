"""The count memory: a mixture of count-based sources, weighted by a gating network.

One of the two experts of `edge`; with constant weights it is a heuristic (baselines/heuristics.py). All counts are in
its State (contexts.py); its parameters are two small networks (gating.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from operator import is_
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from dynedge.data.log import EventLog
from dynedge.data.windows import Window
from dynedge.models.base import LogShape, Loss, Model, State, Step, loggable
from dynedge.models.capabilities import Explainable, Explanation, Growable, RemembersSeen, Undoable
from dynedge.models.count_memory import contexts, scoring
from dynedge.models.count_memory.candidates import CandidateBuffer, allocate_buffer
from dynedge.models.count_memory.collect_examples import (
    Examples,
    allocate_examples,
    collect_examples,
    to_tensors,
)
from dynedge.models.count_memory.config import TABLES, MemoryConfig
from dynedge.models.count_memory.contexts import CONTEXT_SOURCES, ContextCounts, count_events
from dynedge.models.count_memory.example_cache import ExampleCache, WindowExamples
from dynedge.models.count_memory.explain import explain_items, shares_by_reason
from dynedge.models.count_memory.gating import Mixture
from dynedge.models.growable import padded_size
from dynedge.ops.thread_pool import run_side_by_side

COPIED_PER_EVENT = 1 << 18  # bytes: a low estimate of what is copied in the time that scoring an event takes
MAX_COPIES_BYTES = 1 << 32  # of all copies together
IS_USER_TABLE = np.array([name == "user" for name in TABLES])


class CountMemory(Model, Growable, Explainable, Undoable, RemembersSeen):
    """`counts`, if given, says what is counted in place of the config."""

    def __init__(self, config: Any, shape: LogShape, counts: MemoryConfig | None = None) -> None:
        super().__init__(config, shape)
        self.counts = config = config if counts is None else counts
        self._seed = 0  # of the choice of training examples
        self.settings = contexts.count_settings(config.contexts, config.half_lives, config.max_list_length)
        sources = 1 + len(config.half_lives) + CONTEXT_SOURCES
        self._view: tuple[list[Tensor], ContextCounts | None] = [], None
        self._copies: tuple[list[Tensor], list[tuple[ContextCounts, CandidateBuffer]]] = [], []
        self._scored = 0  # events since there are no copies
        self.mixture = Mixture(torch.zeros(sources), config.gating_hidden, config.rescaling_hidden)
        self._equal_weights = Mixture(torch.zeros(sources), 0, 0).weights()
        limits = config.counted_events, config.training_examples
        self._examples = ExampleCache(self.start, self._collect, *limits)

    @classmethod
    def create(cls, config: MemoryConfig, log: EventLog, train_end: int, seed: int) -> Self:
        model = super().create(config, log, train_end, seed)
        model._seed = seed
        return model

    @classmethod
    def supports(cls, capability: type, config: Any) -> bool:
        if capability is RemembersSeen:
            return "user" in config.contexts
        return super().supports(capability, config)

    @cached_property
    def _buffer(self) -> CandidateBuffer:
        return allocate_buffer(padded_size(self.shape.items))

    def _counts(self, state: State, events: int = 0) -> ContextCounts:
        """Returns the counts in a state, with capacity for `events` more.

        Cached for the same tensors: making the view is most of the cost of one query.
        """
        if events:
            contexts.reserve(state, events)
        tensors, view = self._view
        same = view is not None and view.num_items == self.shape.items and len(tensors) == len(state)
        if view is None or not same or not all(map(is_, tensors, state.values())):
            view = contexts.view_of(state, self.shape.items)
            self._view = list(state.values()), view
        return view

    def grow(self, users: int, items: int, state: State) -> None:
        self.shape = replace(self.shape, users=users, items=items)
        self._copies = [], []
        contexts.grow(state, users, items)
        if items > len(self._buffer.slot):
            del self._buffer

    def batches(self, log: EventLog, windows: Sequence[range], first: int = 0) -> Iterator[WindowExamples]:
        return self._examples.batches(log, windows, first)

    def start(self) -> State:
        return contexts.empty(self.shape.users, self.shape.items, len(self.counts.half_lives))

    def _collect(self, window: Window, number: int, older: int, count: int, state: State) -> Examples:
        """Returns up to `count` examples of a window and counts its events.

        The first `older` events give no examples and are counted only in the table `user` and in popularity.
        Candidates are those that rank highest if all sources have the same weight.
        """
        n, rng = len(window) - older, np.random.default_rng([self._seed, number])
        count = min(n, count)
        is_sampled = np.zeros(n, np.bool_)
        is_sampled[rng.choice(n, count, replace=False) if n else []] = True
        examples = allocate_examples(count, len(self._equal_weights.gating_logits))
        counts, columns = self._counts(state, len(window)), (window.user, window.item, window.time)
        users_only = self.settings._replace(tables=self.settings.tables & IS_USER_TABLE)
        count_events(counts, users_only, *(column[:older] for column in columns))
        rest = *(column[older:] for column in columns), is_sampled, rng.random(count)
        collect_examples(counts, self.settings, self._equal_weights, *rest, self._buffer, examples)
        return to_tensors(examples, self.mixture.logits)

    def loss(self, batch: WindowExamples, state: State, step: Step) -> Loss:
        mixed, rescaled = self.mixture.loss(batch.examples)
        count = max(len(rescaled), 1)
        return Loss((mixed + rescaled).sum() / count, {"loss": loggable(rescaled.detach().sum() / count)})

    def after_step(self, batch: WindowExamples, state: State) -> None:
        if batch.end_state is not None:
            state.update(batch.end_state)

    def observe(self, window: Window, state: State) -> None:
        counts = self._counts(state, len(window))
        count_events(counts, self.settings, window.user, window.item, window.time)

    def apply_with_undo(self, window: Window, state: State) -> Callable[[], None]:
        undo = contexts.save_for_undo(self._counts(state, 1), int(window.user[0]), int(window.item[0]))
        self.observe(window, state)
        return undo

    def score(self, batch: Window, candidates: Tensor | None, state: State) -> Tensor:
        """Each thread counts all events in its own copy of the counts, and scores those that no other has taken."""
        weights, columns = self.mixture.weights(), (batch.user, batch.item, batch.time)
        out = torch.empty((len(batch), self.shape.items) if candidates is None else candidates.shape)
        some = np.empty((0, 0), np.int64) if candidates is None else candidates.cpu().numpy()
        workers, taken = self._workers(state, len(batch)), np.zeros(len(batch), np.int64)

        def work(thread: int) -> None:
            counts, buffer = workers[thread]
            scoring.score_and_count_events(counts, self.settings, weights, *columns, taken, buffer, some, out.numpy())

        run_side_by_side(work, len(workers))
        return out.log_()

    def _workers(self, state: State, events: int) -> list[tuple[ContextCounts, CandidateBuffer]]:
        """Returns the counts and the scratch of each thread that is to score a window of `events` events.

        Copies are cached, since all of them count the same events. They are made once so many events were scored that
        copying would have taken less, and dropped where the state is no longer the one they are copies of.
        """
        own = self._counts(state, events)
        tensors, copies = self._copies
        same = len(tensors) == len(state) and all(map(is_, tensors, state.values()))
        if not same or any(counts.clock[0] != own.clock[0] for counts, _ in copies):
            copies = []
        if not copies:
            self._scored += events
            size = sum(tensor.nbytes for tensor in state.values()) + sum(array.nbytes for array in self._buffer)
            more = min(torch.get_num_threads() - 1, MAX_COPIES_BYTES // size)
            if more > 0 and self._scored * COPIED_PER_EVENT >= more * size:
                made = (contexts.view_of(state.clone(), self.shape.items) for _ in range(more))
                buffer_size = len(self._buffer.slot)
                copies = [(counts, allocate_buffer(buffer_size)) for counts in made]
                self._scored = 0
            self._copies = list(state.values()), copies
        return [(own, self._buffer), *copies]

    def score_query(self, users: Tensor, times: Tensor, candidates: Tensor | None, state: State) -> Tensor:
        out = torch.empty(len(users), self.shape.items)
        counts, columns = self._counts(state), (users.cpu().numpy(), times.cpu().double().numpy())
        scoring.score_queries(counts, self.settings, self.mixture.weights(), *columns, self._buffer, out.numpy())
        return out.log_() if candidates is None else out.gather(1, candidates.cpu()).log_()

    def seen_items(self, users: Tensor, state: State) -> Tensor:
        out = torch.zeros(len(users), self.shape.items, dtype=torch.bool)
        contexts.mark_seen_items(self._counts(state).user, users.cpu().numpy(), out.numpy())
        return out

    def explain(self, user: int, time: float, items: Tensor, state: State) -> list[Explanation]:
        weights, half_lives = self.mixture.weights(), len(self.counts.half_lives)
        contributions = np.zeros((len(items), len(weights.gating_logits)), np.float32)
        nearest, query = np.zeros(len(items), np.int64), (user, time, items.numpy())
        explain_items(self._counts(state), self.settings, weights, *query, self._buffer, contributions, nearest)
        shares = (shares_by_reason(row, half_lives) for row in contributions)
        return [Explanation(by_reason, int(item)) for by_reason, item in zip(shares, nearest, strict=True)]
