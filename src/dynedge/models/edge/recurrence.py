"""The co-evolving recurrence: EDGE's model, with additions that each have a config switch.

Legend: n events of a window, U users, I items, d width of a state, W states written, K d-nodes of a window.

An event reads the states of its user and its item and writes both, by two GRUs. Active entities have one learned
vector ψ while training; the readers of a few d-nodes read φ instead of the state. The query vector is an MLP of the
user's state and the last item's features; a candidate's score is its inner product with the candidate's state.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from typing import NamedTuple, Self, cast

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dynedge.data.log import EventLog
from dynedge.data.windows import Window
from dynedge.errors import UsageError
from dynedge.models.base import LogShape, Loss, State, Step, Tensors, check_finite, loggable, seeded
from dynedge.models.candidate_states import candidates_of_chunks, num_chunks, rows_before
from dynedge.models.capabilities import GraphCapturable, Growable, Searchable, TrainsSegments, Undoable
from dynedge.models.coevolving_base import ENTITY_TENSORS, CoevolvingModel
from dynedge.models.dynamic_base import Forward
from dynedge.models.edge import popularity
from dynedge.models.edge.config import RecurrenceConfig
from dynedge.models.edge.dnode_constraint import DNodeConstraint
from dynedge.models.edge.event_step import EventStep
from dynedge.models.edge.gpu_window_cache import GPUWindowCache, check_memory, working_memory
from dynedge.models.edge.query_step import QueryStep
from dynedge.models.edge.score_lists import (
    GATES,
    LISTED,
    ListedCandidates,
    ListSources,
    ScoreLists,
    listed_candidates,
)
from dynedge.models.edge.user_profile import UserProfile, has_profile
from dynedge.models.entity_rows import Rows
from dynedge.models.growable import grown, padded_size
from dynedge.models.layers import CoupledGRU, Head, ItemFeatures, UserFeatures
from dynedge.models.ring_buffer import SIDES
from dynedge.models.state_checks import check_names
from dynedge.models.window_index import WindowIndex, index_event, index_window
from dynedge.ops.all_scores import all_scores
from dynedge.ops.all_scores.by_block import ItemBlocks, WindowScores, block_scores, given_scores
from dynedge.ops.candidate_scores import ItemUpdates, candidate_scores
from dynedge.ops.decayed_counts import decayed_counts
from dynedge.ops.decaying_columns import as_powers
from dynedge.ops.dispatch import uses_triton
from dynedge.ops.gather_linear import GatherPart, gather_linear, rows_of, table_and_parts
from dynedge.ops.list_log_sum import ListedRows, list_log_sum
from dynedge.ops.read_states import EntityTable, read_states, replace_rows
from dynedge.ops.sampled_softmax import ListedScores, LossInputs, ScoreBonus, sampled_softmax
from dynedge.ops.sampled_softmax.own_negatives import own_negatives_softmax
from dynedge.ops.time_gaps import time_gap_features, time_gaps
from dynedge.plan.levels import NO_DNODES
from dynedge.plan.links import ACTIVE, Linker
from dynedge.plan.plan_cache import PlanConfig
from dynedge.plan.planner import Plan, PlannedWindow
from dynedge.plan.schedule import Schedule, build_schedule
from dynedge.utils.array_type import Array
from dynedge.utils.prefetch import prefetch_map
from dynedge.utils.process_group import local_processes

MAX_NEGATIVES = 1 << 18  # negatives sampled per window: beyond, neighbouring chunks share theirs
CAPTURED_EVENTS = 1 << 19  # in larger windows the GPU takes longer to compute than the CPU to launch
MAX_NORMS = 1 << 12  # states of a window, roughly, whose mean norm is logged
FEW_USERS = 16  # queries up to which a compiled step is faster than tensor operations
ListedWindow = tuple[int, PlannedWindow, ScoreLists | None]  # number of the window, its plan, its events' lists
FEW = 20  # on a CPU the scores of all items take less time than those of a twentieth of them, one by one


class Evolved(NamedTuple):
    """The states of a window, and what else a step reads again."""

    arena: Tensor
    phi: Tensor | None  # of the window's d-nodes
    items: Tensor  # features of the window's items, computed once each
    users: list[Tensor]  # features of the events' users [n, ..], if there are any
    gaps: list[Tensor]  # time gaps of users and of items, if they are used


class Recurrence(CoevolvingModel, Growable, Searchable, Undoable, GraphCapturable, TrainsSegments):
    in_float32 = False
    _planned_windows: list[range] | None = None

    def __init__(
        self,
        config: RecurrenceConfig,
        shape: LogShape,
        active: tuple[Array, Array],
        dnode_side: Array,
        *,
        lists: bool = True,
        candidate_id: bool = False,
        profile: bool = False,
    ) -> None:
        """`active`: masks of the active users and items; `dnode_side` int[D]: sides of the d-nodes of all windows.

        `lists`: whether the items that `config` lists are listed also where negatives are sampled; `candidate_id`:
        whether candidates are scored by an id embedding too; `profile`: whether queries have a profile of the user's
        items. All stay as they are when items are added.
        """
        super().__init__(config, shape)
        d = config.dim
        self.profile = UserProfile(shape.items, d, config.profile_dropout) if profile else None
        self.xi = nn.Parameter(0.1 * torch.randn(2, d))
        self.add_learned_vectors(*active, d)
        self.items = ItemFeatures(shape, d, ids=config.item_id, categories=config.categories)
        has_features = config.user_features and shape.user_category_counts
        self.users = UserFeatures(shape, d) if has_features else None
        users = self.users.width if self.users is not None else 0
        own = shape.features if config.event_features else 0
        self.event = nn.Linear(own, d) if own else None
        gap = 2 if config.time_gaps else 0
        self.gru = CoupledGRU(d, self.items.width + users + (d if own else 0) + gap)
        scored = 2 * d if candidate_id else d
        lists = lists or self.full_softmax
        self.lists = ListSources(config.history and lists, config.successors and lists)
        inputs = d + self.items.width + users + gap + (scored if config.copy_path else 0)
        self.head = Head(inputs, 2 * d, scored + (GATES if self.lists else 0))
        # Id embedding and bias of each item.
        self.candidate = nn.Parameter(torch.zeros(shape.items, d + 1)) if candidate_id else None
        # From the last item, as candidates are scored by it, straight to the query.
        self.skip = nn.Linear(scored, scored, bias=False) if config.copy_path else None
        if self.skip is not None:
            nn.init.zeros_(self.skip.weight)
        # Score offsets of listed items: few numbers with much effect, which learn faster.
        self.bonus = nn.Parameter(self.lists.start_values(shape.items)) if self.lists else None
        if self.bonus is not None:
            self.bonus.lr_scale = 10.0  # type: ignore[attr-defined]
        # What the popularity columns count on average, in the place of the query that they are multiplied by.
        self.popularity_weight = nn.Parameter(torch.zeros(self.popularity.width)) if config.popularity else None
        if self.popularity_weight is not None:
            self.popularity_weight.lr_scale = 10.0  # type: ignore[attr-defined]
        self.dnode_constraint = DNodeConstraint(
            self.xi.detach()[torch.as_tensor(dnode_side, dtype=torch.int64)],
            config.solver,
            config.alpha,
            warmup=config.phi_warmup,
            lr_factor=config.phi_lr_factor,
        )

    @classmethod
    def create(cls, config: RecurrenceConfig, log: EventLog, train_end: int, seed: int) -> Self:
        """A model for a log's training events, with its d-nodes chosen."""
        plan = make_plan(config, log, train_end)
        active = plan.linker.active_user, plan.linker.active_item
        train = log.user[:train_end], log.item[:train_end]
        if train_end and all(mask[ids].all() for mask, ids in zip(active, train, strict=True)):
            raise UsageError(
                f"--active-users {config.active_users} and --active-items {config.active_items} make every user and "
                "item of the training events active, so that no state would ever change; raise one of them."
            )
        with seeded(seed):
            dnode_side = np.concatenate([NO_DNODES, *plan.dnodes]) & 1
            options = {
                "lists": train_end <= config.listed_events,
                "candidate_id": log.num_items <= config.candidate_id_up_to,
                "profile": has_profile(config, log.num_items),
            }
            model = cls(config, LogShape.of(log), active, dnode_side, **options)
        model.follow(plan)
        return model

    def entity_rows(self) -> dict[str, Rows]:
        ids = {"candidate": Rows(items=True)} if self.candidate is not None else {}
        users = {} if self.users is None else self.users.entity_rows("users.")
        profile = {"profile.items": Rows(items=True)} if self.profile is not None else {}
        return super().entity_rows() | self.items.entity_rows("items.") | users | ids | profile

    def grown_tensors(self, shape: LogShape, seed: int) -> dict[str, Tensor]:
        users = {} if self.users is None else {"users.codes": UserFeatures(shape, 1).codes}
        return super().grown_tensors(shape, seed) | {"items.codes": self.items.codes_for(shape)} | users

    @classmethod
    def restore(cls, config: RecurrenceConfig, shape: LogShape, tensors: Tensors) -> Self:
        users, items = (np.asarray(tensors[f"psi_row_{side}"] >= 0) for side in (0, 1))
        options = {
            "lists": "bonus" in tensors,
            "candidate_id": "candidate" in tensors,
            "profile": "profile.items" in tensors,
        }
        dnode_side = np.zeros(len(tensors["dnode_constraint.phi"]), np.int64)  # φ is loaded
        model = cls(config, shape, (users, items), dnode_side, **options)
        model.load_state_dict(tensors)
        model.check_psi_rows()
        return model

    # ---- windows

    def begin_training(self, log: EventLog, train_end: int) -> None:
        """Lets the ids of rare candidates learn more slowly, and those without training events not at all.

        They are negatives in every event, and Adam moves a row as far by many tiny gradients as by large ones: an
        item that comes up after training would have learned that it never does.
        """
        if self.candidate is not None and self.config.id_rate_events:
            events = np.bincount(log.item[:train_end], minlength=self.shape.items)
            share = events / (events + self.config.id_rate_events)
            self.candidate.row_lr_scale = torch.from_numpy(share).to(self.candidate)  # type: ignore[attr-defined]

    def num_windows(self, train_end: int) -> int:
        return self.config.num_windows(train_end)

    def training_windows(self, train_end: int) -> list[range]:
        planned = self._planned_windows
        return planned if planned and planned[-1].stop == train_end else super().training_windows(train_end)

    def follow(self, plan: Plan) -> None:
        """Trains by this plan: its windows, and its d-nodes in the order of the table of φ."""
        self.plan, self._planned_windows = plan, plan.windows
        self._first_phi = np.concatenate(([0], np.cumsum([len(dnodes) for dnodes in plan.dnodes]))).tolist()

    def run_info(self) -> dict[str, list[int]]:
        no_dnodes = replace(self.config, dnodes=None, dnodes_share=None, depth=None)
        uncut = make_plan(no_dnodes, self.plan.log, self.plan.config.train_end)
        return {
            "longest_path": [window.longest_path for window in self.plan.stats],
            "longest_path_uncut": [window.longest_path for window in uncut.stats],
            "dnodes": [window.dnodes for window in self.plan.stats],
        }

    def batches(self, log: EventLog, windows: Sequence[range], first: int = 0) -> Iterator[WindowIndex]:
        entry = self.lists.start(*self.sizes)
        if self.bonus is not None and first < len(windows):
            self.lists.count_events(Window(log, range(windows[first].start)), entry)
        return self.segment_batches(log, windows, range(first, len(windows)), entry)

    def segment_batches(
        self, log: EventLog, windows: Sequence[range], numbers: range, entry: State
    ) -> Iterator[WindowIndex]:
        if uses_triton(self.xi):
            plan_from, index = self._indexing(log, windows, numbers, entry)
            return self._window_cache.windows(numbers, plan_from, index)
        return self._uncached_batches(log, windows, numbers, entry)

    def _uncached_batches(
        self, log: EventLog, windows: Sequence[range], numbers: range, entry: State
    ) -> Iterator[WindowIndex]:
        plan_from, index = self._indexing(log, windows, numbers, entry)
        return prefetch_map(index, plan_from(numbers.start), threads=1)

    def _indexing(
        self, log: EventLog, windows: Sequence[range], numbers: range, entry: State
    ) -> tuple[Callable[[int], Iterator[ListedWindow]], Callable[[ListedWindow], WindowIndex]]:
        """(planned windows from a number on, a planned window's index), given the lists before the first window."""
        if list(windows) != self.plan.windows:
            raise ValueError("the plan was made for other windows than those to train on.")
        lists = State({name: entry[name].clone() for name in self.lists.start(0, 0)})

        def index(planned: ListedWindow) -> WindowIndex:
            window = Window(log, planned[1].events)
            return self._index(window, planned[1].schedule, self._past(window), planned[0], planned[2])

        def plan_from(first: int) -> Iterator[ListedWindow]:
            if self.bonus is not None and first > numbers.start:
                self.lists.count_events(Window(log, range(windows[numbers.start].start, windows[first].start)), lists)
            for number, planned in enumerate(self.plan.windows_from(first, numbers.stop), first):
                window = Window(log, planned.events)
                yield number, planned, None if self.bonus is None else self.lists.before_events(window, lists)

        return plan_from, index

    def prepare_segments(self, log: EventLog, windows: Sequence[range], segments: Sequence[range]) -> None:
        """Shares the machine's cores among the segments that are planned side by side."""
        self.plan.threads = max(1, self.plan.threads // (local_processes() * max(len(segments), 1)))

    @torch.no_grad()
    def sweep(self, log: EventLog, windows: Sequence[range], numbers: range, state: State) -> None:
        for batch in self._uncached_batches(log, windows, numbers, state):
            arena, *_ = self._evolve(batch, state)
            self.advance(batch, Forward(arena, arena), state)
            self.after_step(batch, state)

    def rows_read(self, batch: WindowIndex | None, state: State) -> dict[str, Tensor]:
        """The features of items; ψ is read by negatives too, and is therefore left to be known everywhere."""
        if batch is None:
            items = self.arange(0)
        else:
            items = torch.cat([batch.items, state["last_item"].index_select(0, batch.begin)])
        return {f"items.tables.{k}": codes[items] for k, codes in enumerate(self.items.codes)}

    def window_rows(self) -> dict[str, Sequence[int]]:
        names = "dnode_constraint.phi", "dnode_constraint.multiplier"
        return {name: self._first_phi for name in names if name in self.state_dict()}

    def prepare(self, window: Window) -> WindowIndex:
        if len(window) == 1 and self.config.evolve_active and self.xi.device.type == "cpu":
            return index_event(self._index_of_one, window)
        return self._prepare(window)

    @property
    def schedule_of_one(self) -> Schedule:
        """The schedule of a window of one event on a CPU."""
        schedule: Schedule = self._index_of_one.schedule
        return schedule

    @cached_property
    def _event_step(self) -> EventStep:
        return EventStep(self)

    @cached_property
    def _query_step(self) -> QueryStep:
        return QueryStep(self)

    @cached_property
    def _index_of_one(self) -> WindowIndex:
        """The index of a window of one event: all that such windows have in common."""
        features = np.zeros((1, self.shape.features), np.float32)
        return self._prepare(Window(EventLog.from_arrays([0], [0], [0.0], features=features), range(1)))

    def continued_batch(self, window: Window, state: State) -> WindowIndex:
        """Without d-nodes; the lists are counted here, so that `after_step` need not."""
        return self._prepare(window, None if self.bonus is None else self.lists.before_events(window, state))

    def _prepare(self, window: Window, lists: ScoreLists | None = None) -> WindowIndex:
        past = self._past(window)
        links = past if self.config.evolve_active else self._links(window, past)
        return self._index(window, build_schedule(window.user, window.item, links, NO_DNODES), past, lists=lists)

    def _links(self, window: Window, past: Array) -> Array:
        """The previous events that are read: not those of active entities."""
        links = past.copy()
        for side, entities in enumerate((window.user, window.item)):
            links[self._is_active[side][entities], side] = ACTIVE
        return links

    def _index(
        self, window: Window, schedule: Schedule, past: Array, number: int = -1, lists: ScoreLists | None = None
    ) -> WindowIndex:
        listed: ScoreLists | ListedCandidates | None = lists
        if lists is not None and not self.full_softmax:
            listed = listed_candidates(lists, window, schedule, LISTED)
        return index_window(
            window,
            schedule,
            past,
            self.xi,
            by_item=self.event is None and self.users is None,
            own_inputs=self.config.time_gaps,
            with_past=self.users is not None or self.config.time_gaps or self.config.copy_path,
            triton=True,
            number=number,
            first_phi=self._first_phi[number] if number >= 0 else 0,
            lists=None if listed is None else listed.to(self.xi.device),
        )

    @cached_property
    def _window_cache(self) -> GPUWindowCache:
        check_memory(self)
        return GPUWindowCache(self.xi.device, working_memory(self))

    def _past(self, window: Window) -> Array:
        return self._linker(window.user, window.item)

    @cached_property
    def _linker(self) -> Linker:
        return Linker(np.zeros(padded_size(self.shape.users), bool), np.zeros(padded_size(self.shape.items), bool))

    @cached_property
    def _is_active(self) -> list[Array]:
        """bool[users or more], bool[items or more]"""
        masks = [np.asarray(self.psi_row(side).cpu() >= 0) for side in (0, 1)]
        return [np.pad(mask, (0, padded_size(len(mask)) - len(mask))) for mask in masks]

    # ---- states

    @property
    def popularity(self) -> popularity.Rates:
        """The half-lives of an item's popularity columns."""
        return popularity.rates(self.config.dim, self.xi.device)

    @property
    def _state_width(self) -> int:
        """Number of a state's columns by which candidates are scored; the popularity columns follow."""
        return self.config.dim - (self.popularity.width if self.config.popularity else 0)

    def start(self) -> State:
        state = super().start()
        if self.config.popularity:
            state.update(popularity.empty(self.shape.items, self.popularity, self.xi.detach()))
        state.update(self.lists.start(*self.sizes))
        return state

    def check_state(self, state: State) -> None:
        counted = (popularity.COUNTS, popularity.EVENT, popularity.CLOCK) if self.config.popularity else ()
        check_names(state, (*ENTITY_TENSORS, *counted, *self.lists.start(0, 0)))
        self.check_entities(state)
        if self.config.popularity:
            popularity.check(state, self.shape.items, self.popularity, self.xi.dtype)
        self.lists.check(*self.sizes, state)

    @torch.no_grad()
    def grow(self, users: int, items: int, state: State) -> None:
        """New entities start at ξ; a new item has no id, as those without training events."""
        if items > self.shape.items:
            if not self.items.grown:
                self.items.grow()
            if self.candidate is not None:
                self.candidate = cast(nn.Parameter, grown(self.candidate, items, 0.0))
            if self.profile is not None:
                self.profile.grow(items)
        if users > self.shape.users and self.users is not None and not self.users.grown:
            self.users.grow()
        self.shape = replace(self.shape, users=users, items=items)
        for side, (name, count) in enumerate(zip(SIDES, (users, items), strict=True)):
            setattr(self, f"psi_row_{side}", grown(self.psi_row(side), count, -1))
            for part, fill in ((name, 0.0), (f"{name}_moved", False), (f"{name}_time", -1.0)):
                state[part] = grown(state[part], count, fill)
        state["last_item"] = grown(state["last_item"], users, -1)
        self.lists.grow(users, items, state)
        if self.config.popularity:
            state[popularity.COUNTS] = grown(state[popularity.COUNTS], items, 0.0)
            state[popularity.EVENT] = grown(state[popularity.EVENT], items, popularity.NO_EVENT)
        if users > len(self._linker.active_user) or items > len(self._linker.active_item):
            del self._linker
            self.__dict__.pop("_is_active", None)

    def _roots(self, index: WindowIndex, phi: Tensor | None, state: State) -> Tensor:
        """The rows of the arena that no event of the window writes."""
        tables = self.entity_table(0, state), self.entity_table(1, state)
        # An active entity is an entry only after training: no gradient for ψ there, and none for ξ of active ones.
        entries = [table._replace(psi=table.psi.detach()) for table in tables]
        active = [table._replace(xi=table.xi.detach()) for table in tables]
        groups = [((*entries, *active)[k], ids) for k, ids in enumerate(index.roots) if k < 2 or len(ids)]
        return read_states(groups, phi)

    def _gaps(self, time: Tensor, previous: Tensor) -> Tensor:
        return time_gap_features(time, previous).to(self.xi.dtype)

    # ---- forward

    def _evolve(self, index: WindowIndex, state: State) -> Evolved:
        phi = self.dnode_constraint.read(self._phi_rows(index)) if index.dnodes else None
        last_items = state["last_item"].index_select(0, index.begin)
        items, (of_window, place) = self.items.with_first(torch.cat([index.items, last_items]), len(index.items))
        items = items.to(self.xi)
        gaps = []
        if self.config.time_gaps:
            gaps = time_gaps(index.time, self.entity_times(index, state), self.xi)
        users = [] if self.users is None else [self.users(index.user).to(self.xi)]
        own: list[GatherPart] = [(part, None) for part in users]
        if self.event is not None:
            features = index.features.to(self.xi)
            own.append((gather_linear([(features, None)], self.event.weight, self.event.bias), None))
        by_item = not own and (not gaps or len(index.own_place[0]) > 0)
        shared = [(of_window.to(self.xi), place) if by_item else (items, index.item_place), *own]
        arena = self.gru(self._roots(index, phi, state), shared, gaps, index.schedule, index.place, index.own_place)
        return Evolved(arena, phi, items, users, gaps)

    def forward_window(self, index: WindowIndex, state: State) -> Forward:
        """`extra` holds the gates of the events' lists; then φ of the window's d-nodes and the part that reads the
        states which φ should equal, if there are any."""
        arena, phi, items, users, gaps = self._evolve(index, state)
        copied = [] if phi is None else [index.targets]
        last_items, rows = None, None
        if self.config.copy_path:
            last_items = self.last_items(index, state)
            rows = rows_before(index, last_items[:, None], self.arange(len(last_items)))[:, 0]
        distinct = not len(index.roots[2])  # only ψ is read by several events
        arena, (own, *parts) = table_and_parts(
            arena, index.reads[0], copied, distinct=distinct, triton=index.uses_triton, last=rows
        )
        inputs = [own, (items, index.last_place), *((one, None) for one in users + gaps[:1])]
        last = None
        if last_items is not None and rows is not None:
            in_window, *parts = parts
            last = self._last_item_vectors(last_items, rows, rows_of(in_window), state)
        query, gates = self._split(self.head.of_rows(inputs if last is None else [*inputs, (last, None)]), last)
        query = self._with_profile(query, index.lists)
        return Forward(query, arena, (gates,) if phi is None else (gates, phi, parts[0]))

    def _with_profile(self, query: Tensor, lists: ScoreLists | ListedCandidates | None) -> Tensor:
        """The query, to whose part for id embeddings the user's profile is added."""
        if self.profile is None:
            return query
        assert isinstance(lists, ScoreLists), "a model with a profile has the full softmax, and so all lists"
        return query + F.pad(self.profile(lists.to(query.device)), (self.config.dim, 0)).to(query.dtype)

    def _split(self, out: Tensor, last: Tensor | None) -> tuple[Tensor, Tensor]:
        """(queries, gates of the lists) of the head's output and of the last items' vectors."""
        if self.lists:
            query, gates = torch.split_with_sizes(out, [self.query_width, out.shape[1] - self.query_width], 1)
        else:
            query, gates = out, out[:, :0]
        return self._weighted(query if self.skip is None else query + self.skip(last)), gates

    @property
    def query_width(self) -> int:
        return self.config.dim * (1 if self.candidate is None else 2)

    def _last_item_vectors(self, item: Tensor, rows: Tensor, in_window: Tensor, state: State) -> Tensor:
        """[n, D]: state, as it is just before the event, and id embedding of the user's last item; 0 without one.

        `item` int64[n], −1: none; `in_window` [n, d] are their states where the window has touched them (rows ≥ 0).
        """
        outside = torch.where(rows >= 0, -1, item)
        return self._with_ids(replace_rows(in_window, self.entity_table(1, state), outside), item)

    def _with_ids(self, states: Tensor, item: Tensor) -> Tensor:
        """States of items followed by their id embeddings; 0 for item −1."""
        if self.candidate is not None:
            ids = F.embedding(item.clamp_min(0), self.candidate, sparse=not self.full_softmax)
            states = torch.cat([states, ids[:, :-1]], 1)
        return states * (item >= 0)[:, None]

    def _weighted(self, query: Tensor) -> Tensor:
        """The query with dropout, except of the weights of popularity columns, and with their learned means."""
        if self.popularity_weight is None:
            return F.dropout(query, self.config.dropout, self.training) if self.config.dropout else query
        before, after = self._state_width, query.shape[1] - self.config.dim
        if self.config.dropout and self.training:
            kept = F.dropout(torch.ones_like(query), self.config.dropout)
            kept[:, before : self.config.dim] = 1
            query = query * kept
        return query + F.pad(self.popularity_weight, (before, after)).to(query.dtype)

    @torch.no_grad()
    def _counts(self, index: WindowIndex, state: State) -> Tensor:
        """[.., F]: decayed counts of the window's items after each of their events, in the order of item_events."""
        entry = index.roots[1].long()
        before = state[popularity.COUNTS][entry], state[popularity.EVENT][entry]
        lists = index.item_starts, index.item_events
        return decayed_counts(*before, *lists, state[popularity.CLOCK], self.popularity.counts)

    def _scored(self, index: WindowIndex, arena: Tensor, state: State) -> Tensor:
        """The arena as candidates are scored by it: with popularity columns in the rows of items."""
        if not self.config.popularity:
            return arena
        clock, events = state[popularity.CLOCK], index.item_events.long()
        own = arena.new_zeros(len(arena), self.popularity.width)
        users, entry, psi_users, psi = index.roots
        for first, items in ((len(users), entry), (len(users) + len(entry) + len(psi_users), psi)):
            own[first : first + len(items)] = self._popularity_now(items.long(), state)
        after = popularity.columns(self._counts(index, state), clock + events, clock, self.popularity)
        own.index_copy_(0, index.after.index_select(0, events).long(), after)
        return torch.cat([arena[:, : self._state_width], own], 1)

    def _popularity_now(self, items: Tensor, state: State) -> Tensor:
        """[q, columns]: in the state, relative to its clock."""
        counts, event = state[popularity.COUNTS][items], state[popularity.EVENT][items]
        return popularity.columns(counts, event, state[popularity.CLOCK], self.popularity)

    def _decay(self, events: int, state: State) -> Tensor | None:
        """Of the popularity columns, for the next events."""
        return popularity.decay(events, state[popularity.CLOCK], self.popularity) if self.config.popularity else None

    def item_vectors(self, items: Tensor, state: State) -> Tensor:
        """[q, d] as candidates are scored by them, the popularity columns last."""
        states = self.entity_states(1, items, state)
        if not self.config.popularity:
            return states
        return torch.cat([states[:, : self._state_width], self._popularity_now(items, state)], 1)

    @torch.no_grad()
    def advance(self, index: WindowIndex, forward: Forward, state: State) -> None:
        if self.config.popularity:
            entry, last = index.roots[1].long(), index.item_starts[1:].long() - 1
            counts, clock = self._counts(index, state)[last], state[popularity.CLOCK]
            state[popularity.COUNTS].index_copy_(0, entry, counts)
            state[popularity.EVENT].index_copy_(0, entry, clock + index.item_events[last])
            clock += len(index.window)
        super().advance(index, forward, state)

    def _phi_rows(self, index: WindowIndex) -> Tensor:
        return torch.arange(index.first_phi, index.first_phi + index.dnodes, device=self.xi.device)

    @property
    def candidate_ids(self) -> Tensor | None:
        return self.candidate

    # ---- loss

    def sample_negatives(self, batch: WindowIndex, step: Step) -> Tensor | None:
        """int64[.., C]: the negatives, each row for one event or for `_sharing` chunks in a row."""
        if self.full_softmax:
            return None
        chunks, device = num_chunks(len(batch.window)), self.xi.device
        shape = len(batch.window), self.config.negatives
        if not self.config.negatives_per_event:
            shape = -(-chunks // self._sharing(chunks)), self.config.negatives
        return torch.randint(self.shape.items, shape, generator=step.generator(device), device=device)

    def _sharing(self, chunks: int) -> int:
        """Number of chunks that share negatives: else a large window would update most items' rows."""
        return max(1, -(-chunks * self.config.negatives // MAX_NEGATIVES))

    @property
    def _negative_weight(self) -> float:
        """Number of items that a candidate counts as."""
        counts_once = self.full_softmax or not self.config.sampling_correction
        return 1.0 if counts_once else max(1.0, self.shape.items / self.config.negatives)

    def is_graph_capturable(self, batch: WindowIndex) -> bool:
        return len(batch.window) <= CAPTURED_EVENTS and batch.uses_triton and self._window_cache.holds(batch)

    def window_loss(self, batch: WindowIndex, forward: Forward, state: State, step: Step) -> Tensor:
        """The sum of the events' generalized cross-entropies, over all items or over sampled ones."""
        negatives = self.sample_negatives(batch, step) if step.negatives is None else step.negatives
        arena, decay = self._scored(batch, forward.arena, state), self._decay(len(batch.window), state)
        bonus, listed = None, None
        if self.bonus is not None and isinstance(batch.lists, ScoreLists):
            bonus = batch.lists.bonus(self.bonus, forward.extra[0])
        elif isinstance(batch.lists, ListedCandidates):
            listed = self._listed_scores(batch.lists, forward, arena, batch.item, decay, state)
        true = batch.item, batch.reads[1]
        if negatives is not None and self.config.negatives_per_event:
            rows = rows_before(batch, negatives, self.arange(len(negatives)))
            place = torch.where(rows >= 0, rows, batch.rows + self.arange(negatives.numel()).view_as(rows))
            outside = self.item_vectors(negatives.flatten(), state)
            inputs = LossInputs(forward.query, arena, outside, self.candidate_ids, *true, decay)
            weight, q = math.log(self._negative_weight), self.config.generalized_cross_entropy
            return own_negatives_softmax(inputs, negatives, place, weight, listed, q)
        share = self._sharing(num_chunks(len(batch.window)))
        candidates = candidates_of_chunks(batch, negatives, self.shape.items, share)
        outside = self.item_vectors(candidates.outside, state)
        scored = forward.query, arena, outside, self.candidate_ids, candidates
        q = self.config.generalized_cross_entropy
        return sampled_softmax(*scored, *true, bonus, self._negative_weight, batch.after, decay, listed, q)

    def _listed_scores(
        self,
        listed: ListedCandidates,
        forward: Forward,
        arena: Tensor,
        item: Tensor,
        decay: Tensor | None,
        state: State,
    ) -> ListedScores:
        """The bonus of each event's own item, and the scores of the other listed ones."""
        start, event, items, _ = lists = listed.lists
        assert self.bonus is not None
        query, value = forward.query, lists.values(self.bonus, forward.extra[0])
        of_true = torch.where(items == item[event], value, 0.0)
        true = value.new_zeros(len(query)).index_add(0, event, of_true)
        rows, outside = ListedRows(start, event, items, listed.row), self.item_vectors(listed.outside, state)
        weighted = value + listed.log_weight.to(value.dtype)
        others = list_log_sum(query, weighted, arena, outside, self.candidate_ids, rows, item, decay)
        return ListedScores(true, others)

    def loss(self, batch: WindowIndex, state: State, step: Step) -> Loss:
        n = max(len(batch.window), 1)
        forward = self.forward_window(batch, state)
        total = window_loss = self.window_loss(batch, forward, state, step)
        residual = torch.zeros(())
        if batch.dnodes:
            _, phi, targets = forward.extra
            penalty, residual = self.dnode_constraint.penalty(self._phi_rows(batch), phi, rows_of(targets))
            total = window_loss + penalty
        self.advance(batch, forward, state)
        written = forward.arena.detach()[batch.rows - len(batch.place) :]
        logged = {"loss": window_loss.detach() / n, "residual": residual, "state_norm": _mean_norm(written)}
        return Loss(total / n, {name: loggable(number) for name, number in logged.items()})

    def end_epoch(self, epoch: int) -> dict[str, float]:
        self.dnode_constraint.end_epoch()
        return {}

    def after_step(self, batch: WindowIndex, state: State) -> None:
        if batch.number >= 0:
            self.lists.count_events(batch.window, state)

    # ---- scores

    @property
    def full_softmax(self) -> bool:
        """As at first for a model with a profile, also when items are added."""
        return self.profile is not None or super().full_softmax

    def _listed(self, batch: WindowIndex, state: State) -> WindowIndex:
        """A batch for scores, with the lists before its events; counts the events in the state."""
        return replace(batch, lists=self.lists.before_events(batch.window, state)) if self.lists else batch

    def score(self, batch: WindowIndex, candidates: Tensor | None, state: State) -> Tensor:
        return super().score(self._listed(batch, state), candidates, state)

    def window_scores(self, batch: WindowIndex, forward: Forward, candidates: Tensor | None, state: State) -> Tensor:
        few = candidates is not None and FEW * candidates.shape[1] < self.shape.items
        arena, decay = self._scored(batch, forward.arena, state), self._decay(len(batch.window), state)
        lists = batch.lists
        if candidates is not None and (few or forward.arena.is_cuda):
            updates = ItemUpdates(batch.roots[1], batch.item_starts, batch.item_events, batch.after)
            tables = self._scored_table(state), self.candidate_ids
            scores = candidate_scores(forward.query, candidates, *tables, updates, arena, decay)
            if self.bonus is None or not isinstance(lists, ScoreLists):
                return scores
            values = F.pad(lists.to(scores.device).values(self.bonus, forward.extra[0]), (0, 1))
            return scores + values[lists.of_candidates(candidates).to(scores.device)]
        vectors = self.item_vectors(self.arange(self.shape.items), state)
        scores = all_scores(forward.query, vectors, self.candidate_ids, batch.item, batch.after, arena, decay)
        if self.bonus is not None and isinstance(lists, ScoreLists):
            _add_bonus(lists.to(scores.device).bonus(self.bonus, forward.extra[0]), scores)
        return scores if candidates is None else scores.gather(1, candidates)

    @property
    def scores_blocks(self) -> bool:
        """Whether `scores_by_block` computes only the scores that are asked for."""
        return self.xi.device.type == "cpu" and self.xi.dtype == torch.float32

    def scores_by_block(self, batch: WindowIndex, state: State) -> tuple[WindowScores, ItemBlocks]:
        """The scores of all items as `score` has them, for a caller that needs few of them; advances the state."""
        if not self.scores_blocks:
            return given_scores(self.score(batch, None, state))
        batch = self._listed(batch, state)
        with self._precision():
            forward = self.forward_window(batch, state)
        arena, decay = self._scored(batch, forward.arena, state), self._decay(len(batch.window), state)
        bonus = None
        if self.bonus is not None and isinstance(batch.lists, ScoreLists):
            bonus = batch.lists.bonus(self.bonus, forward.extra[0])
        vectors = self.item_vectors(self.arange(self.shape.items), state)
        events = batch.item, batch.after, arena, decay, bonus
        scores = block_scores(forward.query, vectors, self.candidate_ids, *events)
        self.advance(batch, forward, state)
        return scores

    def _scored_table(self, state: State) -> EntityTable:
        """The table of items' states, with popularity columns."""
        table = self.entity_table(1, state)
        if not self.config.popularity:
            return table
        vectors = self.item_vectors(self.arange(self.shape.items), state)
        return table._replace(stored=vectors, has_stored=torch.ones_like(table.has_stored))

    def observe(self, window: Window, state: State) -> None:
        if len(window) == 1 and EventStep.supports(self):
            self._event_step.observe(window, state)
            self.lists.count_events(window, state)
            return
        batch = self.prepare(window)
        arena, *_ = self._evolve(batch, state)
        check_finite(arena)
        self.advance(batch, Forward(arena, arena), state)
        self.lists.count_events(window, state)

    def apply_with_undo(self, window: Window, state: State) -> Callable[[], None]:
        saved = []
        for name, row in zip(SIDES, (int(window.user[0]), int(window.item[0])), strict=True):
            columns = [name, f"{name}_moved", f"{name}_time", *(["last_item"] if name == "user" else [])]
            if name == "item" and self.config.popularity:
                columns += [popularity.COUNTS, popularity.EVENT]
            saved += [(state[column][row], state[column][row].clone()) for column in columns]
        if self.config.popularity:
            saved.append((state[popularity.CLOCK], state[popularity.CLOCK].clone()))
        undo_lists = self.lists.save_for_undo(window, state)
        self.observe(window, state)

        def undo() -> None:
            for current, before in saved:
                current.copy_(before)
            undo_lists()

        return undo

    def item_matrix(self, items: Tensor, state: State) -> Tensor:
        states, ids = self.entity_states(1, items, state), self.candidate_ids
        return torch.cat([states, states.new_zeros(len(items), 1) if ids is None else ids[items]], 1)

    def query_vector(self, user: int, time: float, state: State) -> tuple[Tensor, Tensor]:
        if QueryStep.supports(self):
            return self._query_step.query_vector(user, time, state)
        times = torch.tensor([time], dtype=torch.float64, device=self.xi.device)
        users = torch.tensor([user], device=self.xi.device)
        lists = self._lists_now(users, times, state)
        queries, gates = self._query_and_gates(users, times, lists, state)
        query = queries[0]
        columns = slice(self._state_width, self.config.dim)
        if not self.config.popularity:
            base = self.xi.new_zeros(1, self.shape.items)
        else:
            base = (query[columns] @ self.all_item_vectors(state)[:, columns].T)[None]
        if self.config.popularity:
            query = query.clone()
            query[columns] = 0
        if self.bonus is not None and lists is not None:
            _add_bonus(lists.bonus(self.bonus.detach(), gates), base)
        return base[0], torch.cat([query, query.new_ones(1)])

    def vectors(self, state: State) -> tuple[Tensor, Tensor]:
        """States; an item's is followed by its id embedding where candidates are scored by that too."""
        users, items = super().vectors(state)
        ids = self.candidate_ids
        return users, items if ids is None else torch.cat([items, ids[:, :-1]], 1)

    def query(self, users: Tensor, times: Tensor, state: State) -> Tensor:
        return self._query_and_gates(users, times, self._lists_now(users, times, state), state)[0]

    def _lists_now(self, users: Tensor, times: Tensor, state: State) -> ScoreLists | None:
        return self.lists.now(users, times, state).to(self.xi.device) if self.lists else None

    def _query_and_gates(
        self, users: Tensor, times: Tensor, lists: ScoreLists | None, state: State
    ) -> tuple[Tensor, Tensor]:
        inputs = [self.entity_states(0, users, state), self.items(state["last_item"][users])]
        if self.users is not None:
            inputs.append(self.users(users))
        if self.config.time_gaps:
            inputs.append(self._gaps(times, state["user_time"][users]))
        if self.config.copy_path:
            last = state["last_item"][users]
            inputs.append(self._with_ids(self.entity_states(1, last.clamp_min(0), state), last))
        query, gates = self._split(self.head(torch.cat(inputs, 1)), inputs[-1])
        return self._with_profile(query, lists).to(self.xi), gates.to(self.xi)

    def all_item_vectors(self, state: State) -> Tensor:
        vectors, decay = super().all_item_vectors(state), self._decay(1, state)
        return vectors if decay is None else as_powers(vectors, decay)

    def score_query(self, users: Tensor, times: Tensor, candidates: Tensor | None, state: State) -> Tensor:
        few = len(users) <= FEW_USERS and QueryStep.supports(self)
        scores = (self._query_step.scores if few else self.score_queries)(users, times, state)
        return scores if candidates is None else scores.gather(1, candidates)

    def score_queries(self, users: Tensor, times: Tensor, state: State) -> Tensor:
        """[n, I]: the scores of all items by tensor operations, for many users or on a GPU."""
        lists = self._lists_now(users, times, state)
        with self._precision():
            query, gates = self._query_and_gates(users, times, lists, state)
        scores = self.query_scores(query, state)
        if self.bonus is not None and lists is not None:
            _add_bonus(lists.bonus(self.bonus, gates), scores)
        return scores


def _add_bonus(bonus: ScoreBonus, scores: Tensor) -> None:
    """In place, to float[n, I]."""
    at = bonus.event, bonus.item
    scores[at] = scores[at] + bonus.value.to(scores.dtype)


def _mean_norm(states: Tensor) -> Tensor:
    """Of some of the states, at equal distances, where there are many."""
    some = states[:: max(1, len(states) // MAX_NORMS)]
    return some.norm(dim=1).mean() if len(some) else states.new_zeros(())


def make_plan(config: RecurrenceConfig, log: EventLog, train_end: int) -> Plan:
    max_dnodes, windows = config.dnodes, config.num_windows(train_end)
    if config.dnodes_share is not None:
        if max_dnodes is not None or config.depth is not None:
            raise UsageError("give only one of dnodes, dnodes_share and depth.")
        max_dnodes = math.ceil(config.dnodes_share * train_end / windows)
    elif max_dnodes is None and config.depth is None:
        max_dnodes = 0
    method = "best" if max_dnodes == 0 else config.method
    thresholds, listed = (config.active_users, config.active_items), None
    if config.balanced_windows and config.history:
        all_items = log.num_items <= config.full_softmax_up_to
        listed = config.full_softmax_up_to if all_items else LISTED if train_end <= config.listed_events else None
    return Plan(log, PlanConfig(train_end, windows, *thresholds, method, max_dnodes, config.depth, listed=listed))
