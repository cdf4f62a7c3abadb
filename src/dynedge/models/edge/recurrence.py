"""The co-evolving recurrence: the paper's model, and the additions that made it better, each behind a switch.

Legend: n events of a window, U users, I items, d width of a state, W states written, K d-nodes of a window.

An event reads the states of its user and its item and writes both, by two GRUs. Active entities have one learned
vector ψ while training; a few d-nodes are read as φ. What the user wants next is an MLP of the user's state and the
last item; a candidate's score is its inner product with the candidate's state.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cached_property
from typing import cast

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dynedge.data.log import EventLog
from dynedge.data.windows import Window
from dynedge.errors import UsageError
from dynedge.models.base import Loss, Model, State, Step, told
from dynedge.models.candidate_rows import find, rows_and_moves
from dynedge.models.edge import repeat_bonus
from dynedge.models.edge.config import RecurrenceConfig
from dynedge.models.edge.dnode_constraint import Ties
from dynedge.models.edge.gpu_window_cache import Resident, check_memory, working_memory
from dynedge.models.edge.repeat_bonus import RepeatLists
from dynedge.models.growable import grown, wide
from dynedge.models.modules import CoupledGRU, Head, ItemFeatures, Shape
from dynedge.models.window_index import Prepared, alone, index
from dynedge.ops.all_scores import all_scores
from dynedge.ops.candidate_scores import ItemUpdates, candidate_scores
from dynedge.ops.dispatch import uses_triton
from dynedge.ops.gather_linear import GatherPart, gather_linear
from dynedge.ops.read_states import EntityTable, read_states
from dynedge.ops.sampled_softmax import CHUNK, CandidateColumns, ScoreBonus, sampled_softmax
from dynedge.plan.levels import NO_DNODES
from dynedge.plan.links import Linker
from dynedge.plan.plan_cache import PlanConfig
from dynedge.plan.planner import Plan, PlannedWindow
from dynedge.plan.schedule import Schedule, build_schedule
from dynedge.utils.arrays import Array
from dynedge.utils.prefetch import prefetch_map

SIDES = "user", "item"
DRAWN = 1 << 18  # negatives drawn for a window: beyond, chunks share theirs
RECORDED = 1 << 19  # events: the work of larger windows takes a GPU longer than a CPU takes to launch it
FEW = 20  # on a CPU the scores of all items take less than those of a twentieth of them, one by one


class Recurrence(Model):
    grows = True

    def __init__(
        self,
        config: RecurrenceConfig,
        shape: Shape,
        active_user: Array,
        active_item: Array,
        categories: Array,
        dnodes: int,
    ) -> None:
        super().__init__()
        self.config, self.shape = config, shape
        d = config.dim
        self.xi = nn.Parameter(0.1 * torch.randn(2, d))
        masks = active_user, active_item
        self.psi = nn.ParameterList(nn.Parameter(0.1 * torch.randn(int(mask.sum()), d)) for mask in masks)
        for side, mask in enumerate(masks):  # entity -> row of ψ, or -1
            self.register_buffer(f"psi_row_{side}", torch.from_numpy(np.where(mask, np.cumsum(mask) - 1, -1)))
        self.items = ItemFeatures(
            shape, d, ids=config.item_id, categories=categories if config.categories and categories.size else None
        )
        own = shape.features if config.event_features else 0
        self.event = nn.Linear(own, d) if own else None
        gap = 2 if config.time_gaps else 0
        self.gru = CoupledGRU(d, self.items.width + (d if own else 0) + gap)
        self.head = Head(d + self.items.width + gap, 2 * d, 2 * d if config.candidate_id else d)
        if config.candidate_id:
            self.candidate = nn.Parameter(torch.zeros(shape.items, d + 1))  # an id's vector, and its bias
        # What is added for items the user has had, by bucket: few numbers with much to say, which learn faster.
        self.bonus = nn.Parameter(torch.zeros(repeat_bonus.BUCKETS)) if config.history and self._full else None
        if self.bonus is not None:
            self.bonus.lr_scale = 10.0  # type: ignore[attr-defined]
        self.ties = Ties(dnodes, self.xi.detach()[0].expand(dnodes, d), config.solver, config.alpha)

    @property
    def _full(self) -> bool:
        return self.shape.items <= self.config.full_softmax_up_to

    # ---- windows

    def follow(self, plan: Plan) -> None:
        """Train by this plan: its windows, and its d-nodes in the order of the table of φ."""
        self.plan = plan
        self._first_phi = np.concatenate(([0], np.cumsum([len(dnodes) for dnodes in plan.dnodes]))).tolist()

    def facts(self) -> dict[str, list[int]]:
        uncut = make_plan(replace(self.config, dnodes=None, depth=None), self.plan.log, self.plan.config.train_end)
        return {
            "longest_path": [window.longest_path for window in self.plan.stats],
            "longest_path_uncut": [window.longest_path for window in uncut.stats],
            "dnodes": [window.dnodes for window in self.plan.stats],
        }

    def num_windows(self, train_end: int) -> int:
        return self.config.windows

    def windows(self, log: EventLog, train_end: int, first: int = 0) -> Iterator[Prepared]:
        def indexed(planned: tuple[int, PlannedWindow, RepeatLists | None]) -> Prepared:
            window = Window(log, planned[1].events)
            return self._index(window, planned[1].schedule, self._past(window), planned[0], planned[2])

        def planned(first: int) -> Iterator[tuple[int, PlannedWindow, RepeatLists | None]]:
            known, begun = repeat_bonus.empty_lists(), False
            for number, one in enumerate(self.plan.windows_from(first), first):
                if self.bonus is None:
                    yield number, one, None
                    continue
                if not begun:
                    repeat_bonus.count_events(Window(log, range(one.events.start)), known)
                    begun = True
                yield number, one, repeat_bonus.lists_before_events(Window(log, one.events), known, self.xi.device)

        if not uses_triton(self.xi):
            return prefetch_map(indexed, planned(first), threads=1)
        return self._resident.windows(len(self.plan), planned, indexed, first)

    def prepare(self, window: Window) -> Prepared:
        if len(window) == 1 and self.config.evolve_active and self.xi.device.type == "cpu":
            return alone(self._first_alone, window)
        return self._prepare(window)

    @cached_property
    def _first_alone(self) -> Prepared:
        none = np.zeros((1, self.shape.features), np.float32)
        return self._prepare(Window(EventLog.from_arrays([0], [0], [0.0], features=none), range(1)))

    def _prepare(self, window: Window) -> Prepared:
        past = self._past(window)
        linked = past if self.config.evolve_active else self._links(window)
        return self._index(window, build_schedule(window.user, window.item, linked, NO_DNODES), past)

    def _index(
        self, window: Window, schedule: Schedule, past: Array, number: int = -1, lists: RepeatLists | None = None
    ) -> Prepared:
        by_item = self.event is None and not self.config.time_gaps
        first_phi = self._first_phi[number] if number >= 0 else 0
        return index(window, schedule, past, by_item, self.xi, number=number, first_phi=first_phi, had=lists)

    @cached_property
    def _resident(self) -> Resident:
        check_memory(self)
        return Resident(self.xi.device, working_memory(self))

    def _past(self, window: Window) -> Array:
        return self._all_linker(window.user, window.item)

    def _links(self, window: Window) -> Array:
        return self._active_linker(window.user, window.item)

    @cached_property
    def _all_linker(self) -> Linker:
        return Linker(np.zeros(wide(self.shape.users), bool), np.zeros(wide(self.shape.items), bool))

    @cached_property
    def _active_linker(self) -> Linker:
        masks = [np.asarray(self._psi_row(side).cpu() >= 0) for side in (0, 1)]
        return Linker(*(np.pad(mask, (0, wide(len(mask)) - len(mask))) for mask in masks))

    def _psi_row(self, side: int) -> Tensor:
        return cast(Tensor, getattr(self, f"psi_row_{side}"))

    # ---- states

    def start(self) -> State:
        state, device = State(), self.xi.device
        for name, count in (("user", self.shape.users), ("item", self.shape.items)):
            state[name] = self.xi.new_zeros(count, self.config.dim)
            state[f"{name}_moved"] = torch.zeros(count, dtype=torch.bool, device=device)
            state[f"{name}_time"] = torch.full((count,), -1.0, dtype=torch.float64, device=device)
        state["last_item"] = torch.full((self.shape.users,), -1, device=device)
        if self.bonus is not None:
            state.update(repeat_bonus.empty_lists())
        return state

    @torch.no_grad()
    def grow(self, users: int, items: int, state: State) -> None:
        """New entities start at ξ, and a new item's id counts as the mean item's: nothing is known of it."""
        if items > self.shape.items:
            if not self.items.grown:
                self.items.grow()
            if self.config.candidate_id:
                self.candidate = cast(nn.Parameter, grown(self.candidate, items, self._mean_id))
        self.shape = replace(self.shape, users=users, items=items)
        for side, (name, count) in enumerate(zip(SIDES, (users, items), strict=True)):
            setattr(self, f"psi_row_{side}", grown(self._psi_row(side), count, -1))
            for part, fill in ((name, 0.0), (f"{name}_moved", False), (f"{name}_time", -1.0)):
                state[part] = grown(state[part], count, fill)
        state["last_item"] = grown(state["last_item"], users, -1)
        if users > len(self._all_linker.active_user) or items > len(self._all_linker.active_item):
            del self._all_linker
            self.__dict__.pop("_active_linker", None)

    @cached_property
    def _mean_id(self) -> Tensor:
        """Of the trained items: asked for before the first new one has a row."""
        return self.candidate.detach().double().mean(0).to(self.candidate)

    def _side(self, side: int, state: State) -> EntityTable:
        name = SIDES[side]
        return EntityTable(self.xi[side], self.psi[side], self._psi_row(side), state[name], state[f"{name}_moved"])

    def _roots(self, prepared: Prepared, phi: Tensor | None, state: State) -> Tensor:
        """The rows of the arena that no event of the window writes."""
        sides = self._side(0, state), self._side(1, state)
        # An active entity is an entry only after training: no gradient for ψ there.
        entries = [side._replace(psi=side.psi.detach()) for side in sides]
        groups = [((*entries, *sides)[k], ids) for k, ids in enumerate(prepared.roots) if k < 2 or len(ids)]
        return read_states(groups, phi)

    @torch.no_grad()
    def _advance(self, prepared: Prepared, arena: Tensor, state: State) -> None:
        for side, name in enumerate(SIDES):
            moved, last = prepared.roots[side].long(), prepared.last[side]
            state[name].index_copy_(0, moved, arena.index_select(0, prepared.exits[side]))
            state[f"{name}_moved"].index_fill_(0, moved, True)
            state[f"{name}_time"].index_copy_(0, last.entity.long(), last.time)
        state["last_item"].index_copy_(0, prepared.last[0].entity.long(), prepared.last[0].item.long())

    # ---- features

    def _gaps(self, time: Tensor, before: Tensor) -> Tensor:
        """[n, 2]: the logarithm of the time since, and whether there was a before at all."""
        there = before >= 0
        return torch.stack([torch.log1p((time - before).clamp_min(0)) * there, there], 1).to(self.xi.dtype)

    def _window_gaps(self, prepared: Prepared, state: State) -> list[Tensor]:
        """For users and for items, [n, 2]: since the entity's previous event, in the window or before it."""
        time = prepared.time
        found = []
        for name, entity, past in zip(SIDES, (prepared.user, prepared.item), prepared.past, strict=True):
            before = torch.where(past >= 0, time[past.clamp_min(0)], state[f"{name}_time"][entity])
            found.append(self._gaps(time, before))
        return found

    # ---- scores

    def _run(self, prepared: Prepared, state: State) -> tuple[Tensor, Tensor | None, Tensor]:
        """(arena, φ, what each event's user wants)."""
        arena, phi, items, gaps = self._evolve(prepared, state)
        asked = [(arena, prepared.reads[0]), (items, prepared.last_place), *((gap, None) for gap in gaps[:1])]
        return arena, phi, self.head.of_rows(asked)

    def _evolve(self, prepared: Prepared, state: State) -> tuple[Tensor, Tensor | None, Tensor, list[Tensor]]:
        """(arena, φ, items' features, time gaps). An item's features are looked up once, however often met."""
        phi = self.ties.read(self._phi_rows(prepared)) if prepared.dnodes else None
        items = self.items(torch.cat([prepared.items, state["last_item"].index_select(0, prepared.begin)])).to(
            self.xi
        )
        gaps = self._window_gaps(prepared, state) if self.config.time_gaps else []
        if self.event is not None:
            features = prepared.features.to(self.xi)
            own = gather_linear([(features, None)], self.event.weight, self.event.bias)
            shared = [(items, prepared.item_place), (own, None)]
        else:
            shared = [(items, prepared.item_place) if gaps else self._first(items, len(prepared.items))]
        roots = self._roots(prepared, phi, state)
        arena = self.gru(roots, shared, gaps, prepared.levels or prepared.schedule, prepared.place)
        return arena, phi, items, gaps

    def _first(self, rows: Tensor, count: int) -> GatherPart:
        """The first rows of a table: on a CPU by number, so that the table is not copied on the way back."""
        return (rows[:count], None) if rows.is_cuda else (rows, self._numbers(count))

    def _numbers(self, count: int) -> Tensor:
        return torch.arange(count, device=self.xi.device)

    def _phi_rows(self, prepared: Prepared) -> Tensor:
        return prepared.first_phi + self._numbers(prepared.dnodes)

    def _columns(self, prepared: Prepared, items: Array) -> CandidateColumns:
        assert prepared.schedule is not None
        return find(prepared.schedule, prepared.window.item, items, self.shape.items, self.xi.device)

    def _outside(self, items: Tensor, state: State) -> Tensor:
        return read_states([(self._side(1, state), items)])

    @property
    def _ids(self) -> Tensor | None:
        return self.candidate if self.config.candidate_id else None

    def _all_items(self, n: int) -> Array:
        return np.broadcast_to(np.arange(self.shape.items, dtype=np.int32), (-(-n // CHUNK), self.shape.items))

    def draw(self, prepared: Prepared, step: Step) -> Tensor | None:
        """int64[D, C]: the negatives, each for `_sharing` chunks in a row; none where all items are candidates."""
        if self._full:
            return None
        chunks, device = -(-len(prepared.window) // CHUNK), self.xi.device
        shape = -(-chunks // self._sharing(chunks)), self.config.negatives
        return torch.randint(self.shape.items, shape, generator=step.generator(device), device=device)

    def _sharing(self, chunks: int) -> int:
        """How many chunks share a draw: with each its own, a large window would have most items' rows moved."""
        return max(1, -(-chunks * self.config.negatives // DRAWN))

    @property
    def _stands_for(self) -> float:
        """How many items a candidate counts as."""
        every = self._full or not self.config.stand_for_all
        return 1.0 if every else max(1.0, self.shape.items / self.config.negatives)

    def repeats(self, prepared: Prepared) -> bool:
        few = len(prepared.window) <= RECORDED
        return few and prepared.levels is not None and self._resident.keeps(prepared)

    def _error(self, prepared: Prepared, wanted: Tensor, arena: Tensor, state: State, step: Step) -> Tensor:
        """The sum over the window's events; by all items, or by those drawn."""
        n, full = len(prepared.window), self._full
        chunks, true = -(-n // CHUNK), (prepared.item, prepared.reads[1])
        numbers, share = self._numbers(chunks), self._sharing(chunks)
        bonus = None if self.bonus is None or prepared.had is None else prepared.had.bonus(self.bonus)
        if prepared.levels is None:
            drawn = self.draw(prepared, step)
            some = self._all_items(n) if drawn is None else drawn.int()[numbers // share].cpu().numpy()
            columns = self._columns(prepared, some)
            outside = self._outside(columns.outside, state)
            return sampled_softmax(wanted, arena, outside, self._ids, columns, *true, bonus, self._stands_for)
        from dynedge.ops.sampled_softmax.triton import ChunkCandidates
        from dynedge.ops.sampled_softmax.triton import sampled_softmax as by_triton

        others = self._numbers(self.shape.items)
        if full:
            items = others.expand(chunks, -1).contiguous()
            elsewhere = prepared.rows + items
        else:
            drawn = self.draw(prepared, step) if step.drawn is None else step.drawn
            assert drawn is not None
            items, others = drawn[numbers // share], drawn.flatten()
            elsewhere = prepared.rows + self._numbers(len(others)).view(drawn.shape)[numbers // share]
        rows, moves = rows_and_moves(prepared, items, CHUNK * numbers)
        candidates = ChunkCandidates(items, torch.where(rows >= 0, rows, elsewhere), moves, full, share)
        outside = self._outside(others, state)
        known = wanted, arena, outside, self._ids, candidates
        return by_triton(*known, *true, prepared.after, bonus, self._stands_for)

    def loss(self, prepared: Prepared, state: State, step: Step) -> Loss:
        n = max(len(prepared.window), 1)
        arena, phi, wanted = self._run(prepared, state)
        if self.config.dropout:
            wanted = F.dropout(wanted, self.config.dropout, self.training)
        total = error = self._error(prepared, wanted, arena, state, step)
        residual = torch.zeros(())
        if phi is not None:
            tie, residual = self.ties.cost(self._phi_rows(prepared), phi, arena[prepared.targets])
            total = error + tie
        self._advance(prepared, arena, state)
        return Loss(total / n, {"loss": told(error.detach() / n), "residual": told(residual)})

    def passed(self, prepared: Prepared, state: State) -> None:
        if self.bonus is not None:
            repeat_bonus.count_events(prepared.window, state)

    def score(self, prepared: Prepared, candidates: Tensor | None, state: State) -> Tensor:
        arena, _, wanted = self._run(prepared, state)
        if (
            self.bonus is None
            and candidates is not None
            and (arena.is_cuda or FEW * candidates.shape[1] < self.shape.items)
        ):
            moves = ItemUpdates(prepared.roots[1], prepared.item_starts, prepared.item_events, prepared.after)
            found = candidate_scores(wanted, candidates, self._side(1, state), self._ids, moves, arena)
        else:
            states = read_states([(self._side(1, state), self._numbers(self.shape.items))])
            found = all_scores(wanted, states, self._ids, prepared.item, prepared.after, arena)
            if self.bonus is not None:
                _add(repeat_bonus.lists_before_events(prepared.window, state, found.device).bonus(self.bonus), found)
            found = found if candidates is None else found.gather(1, candidates)
        self._advance(prepared, arena, state)
        return found

    def observe(self, window: Window, state: State) -> None:
        prepared = self.prepare(window)
        self._advance(prepared, self._evolve(prepared, state)[0], state)
        self.passed(prepared, state)

    def suppose(self, window: Window, state: State) -> Callable[[], None]:
        if len(window) != 1:
            return super().suppose(window, state)
        kept = []
        for name, row in zip(SIDES, (int(window.user[0]), int(window.item[0])), strict=True):
            columns = [name, f"{name}_moved", f"{name}_time", *(["last_item"] if name == "user" else [])]
            kept += [(state[column][row], state[column][row].clone()) for column in columns]
        forget = repeat_bonus.save_for_undo(window, state) if self.bonus is not None else None
        self.observe(window, state)

        def undo() -> None:
            for now, before in kept:
                now.copy_(before)
            if forget is not None:
                forget()

        return undo

    def states(self, side: int, rows: Tensor, state: State) -> Tensor:
        return read_states([(self._side(side, state), rows)])

    def item_rows(self, items: Tensor, state: State) -> Tensor:
        states = self.states(1, items, state)
        return torch.cat([states, states.new_zeros(len(items), 1) if self._ids is None else self._ids[items]], 1)

    def asked(self, user: int, time: float, state: State) -> tuple[Tensor, Tensor]:
        moment = torch.tensor([time], dtype=torch.float64, device=self.xi.device)
        wanted = self._wanted(torch.tensor([user], device=self.xi.device), moment, state)[0]
        added = self.xi.new_zeros(1, self.shape.items)
        if self.bonus is not None:
            users = torch.tensor([user])
            _add(repeat_bonus.lists_now(users, moment, state, added.device).bonus(self.bonus.detach()), added)
        return added[0], torch.cat([wanted, wanted.new_ones(1)])

    def vectors(self, state: State) -> tuple[Tensor, Tensor]:
        """States; an item's is followed by its id's vector where candidates are scored by that too."""
        counts = self.shape.users, self.shape.items
        users, items = (
            read_states([(self._side(side, state), self._numbers(count))]) for side, count in enumerate(counts)
        )
        return users, items if self._ids is None else torch.cat([items, self._ids[:, :-1]], 1)

    def _wanted(self, users: Tensor, times: Tensor, state: State) -> Tensor:
        head = [read_states([(self._side(0, state), users)]), self.items(state["last_item"][users])]
        if self.config.time_gaps:
            head.append(self._gaps(times, state["user_time"][users]))
        found: Tensor = self.head(torch.cat(head, 1)).to(self.xi)
        return found

    def peek(self, users: Tensor, times: Tensor, candidates: Tensor | None, state: State) -> Tensor:
        wanted, d = self._wanted(users, times, state), self.config.dim
        with torch.autocast(wanted.device.type, enabled=False):  # scores in bfloat16 would tie
            found = wanted[:, :d] @ read_states([(self._side(1, state), self._numbers(self.shape.items))]).T
            if self.config.candidate_id:
                found = found + torch.addmm(self.candidate[:, -1], wanted[:, d:], self.candidate[:, :-1].T)
        if self.bonus is not None:
            _add(repeat_bonus.lists_now(users, times, state, found.device).bonus(self.bonus), found)
        return found if candidates is None else found.gather(1, candidates)


def _add(bonus: ScoreBonus, scores: Tensor) -> None:
    """In place, to float[n, I]."""
    at = bonus.event, bonus.item
    scores[at] = scores[at] + bonus.value.to(scores.dtype)


def make_plan(config: RecurrenceConfig, log: EventLog, train_end: int) -> Plan:
    max_dnodes = 0 if config.dnodes is None and config.depth is None else config.dnodes
    method = "best" if max_dnodes == 0 else config.method
    thresholds = config.active_users, config.active_items
    return Plan(log, PlanConfig(train_end, config.windows, *thresholds, method, max_dnodes, config.depth))


def restore(config: RecurrenceConfig, log: EventLog, tensors: dict[str, Tensor]) -> Recurrence:
    """A trained model from its tensors; of the log only its ids, categories and feature width are asked."""
    masks = [np.asarray(tensors[f"psi_row_{side}"] >= 0) for side in (0, 1)]
    categories, dnodes = np.asarray(log.item_categories), len(tensors["ties.phi"])
    model = Recurrence(config, Shape.of(log), masks[0], masks[1], categories, dnodes)
    model.load_state_dict(tensors)
    return model


def create(config: RecurrenceConfig, log: EventLog, train_end: int, seed: int) -> Recurrence:
    """A model for a log's training events, with its d-nodes chosen."""
    plan = make_plan(config, log, train_end)
    masks = plan.linker.active_user, plan.linker.active_item
    if train_end and all(mask[ids[:train_end]].all() for mask, ids in zip(masks, (log.user, log.item), strict=True)):
        thresholds = f"--active-users {config.active_users} and --active-items {config.active_items}"
        raise UsageError(
            f"{thresholds} make every user and item of the training events active, so that no state would ever "
            "move; raise one of them."
        )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        dnodes = sum(len(codes) for codes in plan.dnodes)
        model = Recurrence(config, Shape.of(log), *masks, np.asarray(log.item_categories), dnodes)
    model.follow(plan)
    return model
