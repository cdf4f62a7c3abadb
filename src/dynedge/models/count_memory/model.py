"""The count memory: a mixture of count-based sources, weighted by a gating network.

One of the two experts of `edge`; with constant weights it is a heuristic (baselines/heuristics.py). Its State is an
index of all events (event_index.py); what a query needs is counted when it is asked for (candidates.py), so an event
costs next to nothing until then. Its parameters are two small networks (gating.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from operator import is_
from typing import Any, Self, TypeVar

import numpy as np
import torch
from torch import Tensor

from dynedge.data.log import EventLog
from dynedge.data.windows import MirroredWindow, Window
from dynedge.models.base import LogShape, Loss, Model, State, Step, loggable
from dynedge.models.capabilities import Explainable, Explanation, Growable, RemembersSeen, Undoable
from dynedge.models.count_memory import event_index, ranking, scoring
from dynedge.models.count_memory.append_in_threads import append_in_threads
from dynedge.models.count_memory.candidate_buffer import CandidateBuffer, allocate_buffer
from dynedge.models.count_memory.collect_examples import (
    Examples,
    allocate_examples,
    collect_examples,
    to_tensors,
)
from dynedge.models.count_memory.config import MemoryConfig
from dynedge.models.count_memory.contexts import CONTEXT_SOURCES, count_settings, max_candidates
from dynedge.models.count_memory.event_index import LENGTH, RECENT_EVENTS, EventIndex, popularity_of
from dynedge.models.count_memory.example_cache import ExampleCache, WindowExamples
from dynedge.models.count_memory.explain import explain_items, shares_by_reason
from dynedge.models.count_memory.gating import Mixture
from dynedge.models.count_memory.popularity import Popularity, copy_popularity, count_popularity
from dynedge.models.count_memory.queries import Events
from dynedge.models.count_memory.window_popularity import PopularityCounter, WindowPopularity
from dynedge.models.growable import padded_size
from dynedge.ops.all_scores.by_block import BLOCK, ItemBlocks, WindowScores, copy_blocks, given_scores
from dynedge.ops.thread_pool import run_side_by_side
from dynedge.utils.array_type import Array

MIN_PART = 4  # events for which another thread pays: scoring one takes some 100 µs, waking a thread 100 to 300
MIN_QUERIES = 32  # the same for queries, of which a service answers few at once while it applies events
LARGE_WINDOW = 1 << 15  # events that are appended in threads; smaller logs do not compile the kernels for that
APPENDING_THREADS = 4  # from which that pays: an event takes up to three times the CPU time
MANY_EVENTS = 1000  # that are counted by the PopularityCounter
MAX_COPIED = 2 << 30  # bytes of copies that threads have for themselves
NO_LIMIT = 1 << 30
MIN_EXAMPLES = 300  # examples of a window that is learned from after training: fewer, and their noise is learned
CACHED_EXAMPLES = 40_000  # of such windows, 10 KB each
STANDARDIZED_EVENTS = 200_000  # last training events that are counted for the scale of the networks' inputs …
STANDARDIZED_SAMPLE = 1000  # … and those of their last quarter that are sampled
COPIED_PER_EVENT = 1 << 18  # bytes: a low estimate of what is copied in the time that scoring an event takes

Own = TypeVar("Own")


class CountMemory(Model, Growable, Explainable, Undoable, RemembersSeen):
    """Its scores are unnormalised probabilities. `counts`, if given, says what is counted in place of the config."""

    def __init__(self, config: Any, shape: LogShape, counts: MemoryConfig | None = None) -> None:
        super().__init__(config, shape)
        self.counts = config = config if counts is None else counts
        self._seed = 0  # of the choice of training examples
        self.settings = count_settings(config)
        sources = 1 + len(config.half_lives) + CONTEXT_SOURCES
        self._counter = PopularityCounter()
        self._view: tuple[list[Tensor], EventIndex | None] = [], None
        self._scratch: list[CandidateBuffer] = []
        hidden = config.gating_hidden, config.rescaling_hidden, config.rescaling_second
        self.mixture = Mixture(torch.zeros(sources), *hidden)
        self._equal_weights = Mixture(torch.zeros(sources), 0, 0).weights()
        self._continued: dict[range, WindowExamples] = {}
        self._examples = ExampleCache(self.start, self._collect, self.observe, config.training_examples)

    @classmethod
    def create(cls, config: MemoryConfig, log: EventLog, train_end: int, seed: int) -> Self:
        model = super().create(config, log, train_end, seed)
        model._seed = seed
        model._standardize_inputs(log, train_end)
        return model

    def _standardize_inputs(self, log: EventLog, train_end: int) -> None:
        """By a sample of the last training events: earlier ones would have more empty contexts than later events."""
        if self.mixture.gating_in is None and self.mixture.rescaling_in is None:
            return
        first = max(0, train_end - STANDARDIZED_EVENTS)
        sampled = max(first, train_end - (train_end - first) // 4)
        state = self.start()
        self.observe(Window(log, range(first, sampled)), state)
        self.mixture.standardize(self._collect(Window(log, range(sampled, train_end)), 0, STANDARDIZED_SAMPLE, state))

    # ---- state

    def start(self) -> State:
        return event_index.empty(self.shape.users, self.shape.items, len(self.counts.half_lives))

    def check_state(self, state: State) -> None:
        event_index.check(state, self.shape.users, self.shape.items, len(self.counts.half_lives))

    def _index(self, state: State) -> EventIndex:
        """Returns the index in a state; cached for the same tensors: making the view is much of a query's cost."""
        tensors, view = self._view
        same = view is not None and view.num_items == self.shape.items and len(tensors) == len(state)
        if view is None or not same or not all(map(is_, tensors, state.values())):
            view = event_index.view_of(state, self.shape.items)
            self._view = list(state.values()), view
        return view

    def _mirrored(self, window: Window) -> Window:
        """The window as it is counted: in a log of one population an event is one of both its entities."""
        return MirroredWindow(window.log, window.events) if self.shape.one_population else window

    @property
    def _step(self) -> int:
        """Number of counted events for each event of the log."""
        return 2 if self.shape.one_population else 1

    def _append(self, window: Window, state: State) -> Events:
        """Appends a window to the index; its popularity and its latest items are still those before the window."""
        window = self._mirrored(window)
        # Copies, because the columns of a log are read-only: one type to compile for.
        user, item, time = (np.array(column) for column in (window.user, window.item, window.time))
        clock = int(state["clock"])
        in_threads = len(item) >= LARGE_WINDOW and torch.get_num_threads() >= APPENDING_THREADS
        places = (append_in_threads if in_threads else event_index.append)(state, self.shape.items, user, item, time)
        latest = np.concatenate((state["latest_items"].numpy(), item.astype(np.int32, copy=False)))
        return Events(user, item, time, places, clock, latest, 1)

    def _finish(self, events: Events, state: State) -> None:
        """Advances popularity and latest items past a window that was appended."""
        index = self._index(state)
        if len(events.item) > MANY_EVENTS:
            self._count(events, state, np.empty(0, np.int64))
            self._counter.finish(index)
        else:
            count_popularity(popularity_of(index), self.settings.weight_growth, events.item)
        index.latest_items[:] = events.latest_items[-RECENT_EVENTS:]

    def observe(self, window: Window, state: State) -> None:
        self._finish(self._append(window, state), state)

    def apply_with_undo(self, window: Window, state: State) -> Callable[[], None]:
        if self.shape.one_population:
            before = state.clone()
            self.observe(window, state)
            return lambda: state.update(before)
        undo = event_index.save_for_undo(state, int(window.user[0]), int(window.item[0]), self.settings.weight_growth)
        self.observe(window, state)
        return undo

    def grow(self, users: int, items: int, state: State) -> None:
        if self.shape.one_population:
            users = items = max(users, items)
        self.shape = replace(self.shape, users=users, items=items)
        self._scratch = [buffer for buffer in self._scratch if len(buffer.slot) >= items]
        event_index.grow(state, users, items)

    # ---- training

    def start_epoch(self, epoch: int) -> None:
        self._examples.shuffles = epoch > 0

    def batches(self, log: EventLog, windows: Sequence[range], first: int = 0) -> Iterator[WindowExamples]:
        return self._examples.batches(log, windows, range(first, len(windows)))

    def prepare_segments(self, log: EventLog, windows: Sequence[range], segments: Sequence[range]) -> None:
        """Collects the examples of these windows alone; `segment_batches` reads them."""
        self._examples.collect(log, windows, segments)

    def segment_batches(self, log: EventLog, windows: Sequence[range], numbers: range) -> Iterator[WindowExamples]:
        return self._examples.batches(log, windows, numbers)

    def continued_batch(self, window: Window, state: State) -> WindowExamples:
        """The share of events that become examples is that of training; those of the latest windows are cached."""
        cached = self._continued.get(window.events)
        if cached is not None and cached.window.log is window.log:
            self.observe(window, state)
            return cached
        share = self.counts.training_examples / max(int(state["clock"]), 1)
        count = max(MIN_EXAMPLES, round(share * len(window)))
        examples = self._collect(window, window.events.start, count, state)
        self._continued[window.events] = WindowExamples(window, examples, end_state=None)
        while len(self._continued) > 1 and sum(map(_num_examples, self._continued.values())) > CACHED_EXAMPLES:
            del self._continued[next(iter(self._continued))]
        return self._continued[window.events]

    def with_replay(self, batch: WindowExamples, earlier: Sequence[WindowExamples]) -> WindowExamples:
        parts = zip(*(one.examples for one in (batch, *earlier)), strict=True)
        return replace(batch, examples=Examples(*map(torch.cat, parts)))

    def _collect(self, window: Window, number: int, count: int, state: State) -> Examples:
        """Returns up to `count` examples of a window and appends its events.

        Candidates are those that rank highest if all sources have the same weight.
        """
        n, rng = len(window), np.random.default_rng([self._seed, number])
        count = min(n, count)
        sampled = np.sort(rng.choice(n, count, replace=False)) if n else np.empty(0, np.int64)
        sampled, offsets = self._step * sampled, rng.random(count)
        examples = allocate_examples(count, len(self._equal_weights.gating_logits))
        events = self._append(window, state)
        index = self._index(state)
        popularity = self._count(events, state, sampled)
        threads = min(torch.get_num_threads(), max(1, count // MIN_PART))
        readers, remaining = self._counter.readers(threads), iter(range(threads))
        with self._scratch_memory(threads) as buffers:

            def collect(thread: int) -> None:
                for part in remaining:
                    parts = events, sampled, offsets, part, threads, buffers[thread], readers[part], examples
                    collect_examples(index, popularity, self.settings, self._equal_weights, *parts)

            run_side_by_side(collect, threads)
        self._counter.finish(index)
        index.latest_items[:] = events.latest_items[-RECENT_EVENTS:]
        return to_tensors(examples, self.mixture.logits)

    def _count(self, events: Events, state: State, sampled: Array) -> WindowPopularity:
        """Counts a window; the popularity of the state stays that before the window until `self._counter.finish`."""
        parts = state["popularity"], events.clock, self.settings.weight_growth, events.item, sampled
        return self._counter.count(self._index(state), *parts)

    def _in_order(
        self,
        work: Callable[[Own, int, int, int, CandidateBuffer], None],
        copy: Callable[[], Own],
        count: int,
        size: int,
    ) -> None:
        """Calls work(own, at, start, stop, buffer) for parts of range(count) on several threads, in order on each.

        `own` is a copy, of `size` bytes, that the thread has for itself; its last call took it to event `at`.
        """
        copies: dict[int, tuple[int, Own]] = {}

        def with_copy(thread: int, start: int, stop: int, buffer: CandidateBuffer) -> None:
            at, own = copies[thread] if thread in copies else (0, copy())
            work(own, at, start, stop, buffer)
            copies[thread] = stop, own

        least = max(MIN_PART, 1 + size // COPIED_PER_EVENT)
        self._in_parts(with_copy, count, least, 1 + MAX_COPIED // max(size, 1))

    def _in_parts(
        self,
        work: Callable[[int, int, int, CandidateBuffer], None],
        count: int,
        least: int,
        most_threads: int = NO_LIMIT,
    ) -> None:
        """Calls work(thread, start, stop, buffer) for parts of range(count), of `least` or more, in threads."""
        threads = min(torch.get_num_threads(), most_threads)
        parts = max(1, min(2 * threads if threads > 1 else 1, count // least))
        remaining, used = iter(range(parts)), min(threads, parts)
        with self._scratch_memory(used) as buffers:

            def run(thread: int) -> None:
                for part in remaining:
                    work(thread, count * part // parts, count * (part + 1) // parts, buffers[thread])

            run_side_by_side(run, used)

    @contextmanager
    def _scratch_memory(self, count: int) -> Iterator[list[CandidateBuffer]]:
        """Scratch memory, one for each thread; not used again after an exception, which may leave it unclean."""
        buffers, self._scratch = self._scratch, []
        items = padded_size(self.shape.items)
        while len(buffers) < count:
            buffers.append(allocate_buffer(items, max_candidates(self.settings, items), len(self.counts.half_lives)))
        yield buffers
        self._scratch = buffers

    def loss(self, batch: WindowExamples, state: State, step: Step) -> Loss:
        mixed, rescaled = self.mixture.loss(batch.examples)
        count = max(len(rescaled), 1)
        return Loss((mixed + rescaled).sum() / count, {"loss": loggable(rescaled.detach().sum() / count)})

    def after_step(self, batch: WindowExamples, state: State) -> None:
        if batch.end_state is not None:
            state.update(batch.end_state)

    # ---- scoring: not the logarithm, which would take as long as the rest where there are many items

    def score(self, batch: Window, candidates: Tensor | None, state: State) -> Tensor:
        weights = self.mixture.weights()
        width = self.shape.items if candidates is None else candidates.shape[1]
        events = self._append(batch, state)
        out = torch.from_numpy(np.empty((len(events.user), width), np.float32))  # numpy asks for large pages
        some = np.empty((0, 0), np.int64) if candidates is None else candidates.cpu().numpy().repeat(self._step, 0)
        index = self._index(state)
        popularity = popularity_of(index)

        def work(own: Popularity, at: int, start: int, stop: int, buffer: CandidateBuffer) -> None:
            count_popularity(own, self.settings.weight_growth, events.item[at:start])
            parts = events, start, stop, buffer, some, out.numpy()
            scoring.score_events(index, own, self.settings, weights, *parts)

        if out.shape[1]:
            self._in_order(work, partial(copy_popularity, popularity), len(out), _size(popularity))
        self._finish(events, state)
        return out[:: self._step]

    def scores_per_rank(self, items: int) -> int:
        return 1 + items // BLOCK

    def rank(self, batch: Window, candidates: Tensor | None, true: Tensor, state: State) -> Tensor:
        """Without a row of scores of all items."""
        if candidates is not None:
            return super().rank(batch, candidates, true, state)
        return self.rank_sums(batch, given_scores(torch.empty(len(batch), 0)), [0.0], state)[0]

    def rank_sums(
        self, batch: Window, added: tuple[WindowScores, ItemBlocks], weights: Sequence[float], state: State
    ) -> Tensor:
        """float64[W, n]: ranks of the events' items by log(score) + weight · added, for each of the weights.

        By the scores alone where nothing is added. Advances the state.
        """
        networks, events = self.mixture.weights(), self._append(batch, state)
        window, blocks = added
        out, factors = np.empty((len(batch), len(weights))), np.array(weights, np.float32)
        index = self._index(state)
        popularity = popularity_of(index)

        def copy() -> tuple[Popularity, ItemBlocks]:
            return copy_popularity(popularity), copy_blocks(blocks)

        def work(own: tuple[Popularity, ItemBlocks], at: int, start: int, stop: int, buffer: CandidateBuffer) -> None:
            counts, items = own
            ranking.advance(counts, self.settings, events, window, items, at, start)
            parts = events, start, stop, buffer, window, items, factors, out
            ranking.rank_events(index, counts, self.settings, networks, *parts)

        self._in_order(work, copy, len(out), _size(popularity) + _size(blocks))
        self._finish(events, state)
        return torch.from_numpy(out).T

    def score_query(self, users: Tensor, times: Tensor, candidates: Tensor | None, state: State) -> Tensor:
        out = torch.empty((len(users), self.shape.items) if candidates is None else candidates.shape)
        some = np.empty((0, 0), np.int64) if candidates is None else candidates.cpu().numpy()
        index, user = self._index(state), users.cpu().numpy().astype(np.int32)  # as in a window
        place = index.user_blocks[user, LENGTH].astype(np.int32)
        queries = user, user, times.cpu().double().numpy(), place, int(index.clock[0]), index.latest_items, 0
        arguments = index, popularity_of(index), self.settings, self.mixture.weights(), Events(*queries)

        def work(thread: int, start: int, stop: int, buffer: CandidateBuffer) -> None:
            scoring.score_events(*arguments, start, stop, buffer, some, out.numpy())

        self._in_parts(work, len(users), MIN_QUERIES)
        return out

    def seen_items(self, users: Tensor, state: State) -> Tensor:
        out = torch.zeros(len(users), self.shape.items, dtype=torch.bool)
        event_index.mark_seen_items(self._index(state), users.cpu().numpy(), out.numpy())
        return out

    def explain(self, user: int, time: float, items: Tensor, state: State) -> list[Explanation]:
        weights, half_lives, index = self.mixture.weights(), len(self.counts.half_lives), self._index(state)
        contributions = np.zeros((len(items), len(weights.gating_logits)), np.float32)
        nearest, query = np.zeros(len(items), np.int64), (user, time, items.numpy())
        arguments = index, popularity_of(index), self.settings, weights, *query
        with self._scratch_memory(1) as buffers:
            explain_items(*arguments, buffers[0], contributions, nearest)
        shares = (shares_by_reason(row, half_lives) for row in contributions)
        return [Explanation(by_reason, int(item)) for by_reason, item in zip(shares, nearest, strict=True)]


def _size(arrays: Iterable[Array]) -> int:
    """In bytes."""
    return sum(array.nbytes for array in arrays)


def _num_examples(batch: WindowExamples) -> int:
    return len(batch.examples.query_features)
