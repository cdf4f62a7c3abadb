"""The co-evolving recurrence: the paper's model, and the additions that made it better, each behind a switch.

Legend: n events of a window, U users, I items, d width of a state, W states written, K d-nodes of a window.

An event reads the states of its user and its item and writes both, by two GRUs. Active entities have one learned
vector ψ while training; a few d-nodes are read as φ. What the user wants next is an MLP of the user's state and the
last item; a candidate's score is its inner product with the candidate's state.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dynedge.config import option
from dynedge.errors import UsageError
from dynedge.events.log import EventLog
from dynedge.models.candidates import CHUNK, Candidates, find, scores
from dynedge.models.contract import Loss, Model, State, Step, Window
from dynedge.models.layers import CoupledGRU, ItemFeatures, Shape, mlp
from dynedge.models.ties import SOLVERS, Ties
from dynedge.plan.levels import NO_CUT
from dynedge.plan.links import Linker
from dynedge.plan.planner import Plan, Setting
from dynedge.plan.schedule import Schedule, build

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class RecurrenceConfig:
    """The recurrence. The defaults are the recipe `edge`."""

    dim: int = option(64, "width of states and embeddings", least=1)
    windows: int = option(300, "training windows an epoch is cut into", least=1)
    active_users: int | None = option(None, "users with more training events have one learned vector", least=0)
    active_items: int | None = option(None, "the same for items", least=0)
    method: str = option("best", "how d-nodes are chosen", choices=("best", "longest-path", "depth"))
    dnodes: int | None = option(None, "d-nodes a window; none, unless a depth is given", least=0)
    depth: int | None = option(None, "no path longer than this, with as few d-nodes as it takes", least=1)
    solver: str = option("refresh", "how φ is tied to its state", choices=SOLVERS)
    alpha: float = option(1.0, "weight of the tie", least=0)
    negatives: int = option(512, "items drawn for each chunk of events, beside the true ones", least=1)
    full_softmax_up_to: int = option(4096, "with no more items than this, all are candidates", least=0)
    item_id: bool = option(True, "item ids are features of an event, and of the last item")
    categories: bool = option(True, "so are the items' categories")
    event_features: bool = option(True, "the event's own features")
    time_gaps: bool = option(True, "the logarithm of the time since the entity's last event")
    candidate_id: bool = option(True, "a candidate is scored by its id and a bias too, not by its state alone")
    evolve_active: bool = option(True, "after training, active entities evolve too, from ψ")


# The paper's model to the letter: (200, 100) and 160 d-nodes a window, found by Algorithm 2 and tied by the penalty;
# ten negatives an event drawn uniformly (shared by a chunk of events, so ten a chunk); an item's id and categories
# are features of the event and of the last item; states alone are scored; no time gaps.
PAPER = RecurrenceConfig(
    active_users=200,
    active_items=100,
    method="longest-path",
    dnodes=160,
    solver="penalty",
    negatives=10,
    full_softmax_up_to=0,
    time_gaps=False,
    candidate_id=False,
)


@dataclass(frozen=True, eq=False)
class Prepared:
    """A window with every index the model needs."""

    window: Window
    schedule: Schedule
    past: Array  # int32[n, 2]: the previous event of the same user and of the same item, active or not; below 0: none
    first_phi: int = 0  # where the window's d-nodes start in the table of φ


class Recurrence(Model):
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
        self.head = mlp(d + self.items.width + gap, 2 * d, 2 * d if config.candidate_id else d)
        if config.candidate_id:
            self.candidate = nn.Parameter(torch.zeros(shape.items, d + 1))  # an id's vector, and its bias
        self.ties = Ties(dnodes, self.xi.detach()[0].expand(dnodes, d), config.solver, config.alpha)

    # ---- windows

    def follow(self, plan: Plan) -> None:
        """Train by this plan: its windows, and its d-nodes in the order of the table of φ."""
        self.plan = plan
        self._first_phi = np.concatenate(([0], np.cumsum([len(cut) for cut in plan.cuts]))).tolist()

    def facts(self) -> dict[str, list[int]]:
        uncut = make_plan(replace(self.config, dnodes=None, depth=None), self.plan.log, self.plan.setting.train_end)
        return {
            "longest_path": [window.longest_path for window in self.plan.stats],
            "longest_path_uncut": [window.longest_path for window in uncut.stats],
            "dnodes": [window.dnodes for window in self.plan.stats],
        }

    def num_windows(self, train_end: int) -> int:
        return self.config.windows

    def windows(self, log: EventLog, train_end: int, first: int = 0) -> Iterator[Prepared]:
        for number, planned in enumerate(self.plan.since(first), first):
            window = Window(log, planned.events)
            yield Prepared(window, planned.schedule, self._past(window), self._first_phi[number])

    def prepare(self, window: Window) -> Prepared:
        past = self._past(window)
        linked = past if self.config.evolve_active else self._links(window)
        return Prepared(window, build(window.user, window.item, linked, NO_CUT), past)

    def _past(self, window: Window) -> Array:
        return self._all_linker(window.user, window.item)

    def _links(self, window: Window) -> Array:
        return self._active_linker(window.user, window.item)

    @cached_property
    def _all_linker(self) -> Linker:
        return Linker(np.zeros(self.shape.users, bool), np.zeros(self.shape.items, bool))

    @cached_property
    def _active_linker(self) -> Linker:
        return Linker(*(np.asarray(self._psi_row(side) >= 0) for side in (0, 1)))

    def _psi_row(self, side: int) -> Tensor:
        return cast(Tensor, getattr(self, f"psi_row_{side}"))

    # ---- states

    def start(self) -> State:
        state = State()
        for name, count in (("user", self.shape.users), ("item", self.shape.items)):
            state[name] = self.xi.new_zeros(count, self.config.dim)
            state[f"{name}_moved"] = torch.zeros(count, dtype=torch.bool)
            state[f"{name}_time"] = torch.full((count,), -1.0, dtype=torch.float64)
        state["last_item"] = torch.full((self.shape.users,), -1)
        return state

    def _states(self, side: int, entities: Tensor, state: State) -> Tensor:
        """[.., d]: the states of entities as they are; ξ or ψ, with gradient, where they have not moved yet."""
        name = ("user", "item")[side]
        row = self._psi_row(side)[entities]
        fresh = self.xi[side].expand(len(entities), -1)
        if len(self.psi[side]):
            learned = F.embedding(row.clamp_min(0), self.psi[side], sparse=True)
            fresh = torch.where((row >= 0)[:, None], learned, fresh)
        return torch.where(state[f"{name}_moved"][entities, None], state[name][entities], fresh)

    def _advance(self, prepared: Prepared, written: Tensor, state: State) -> None:
        schedule, window = prepared.schedule, prepared.window
        last = written.detach()[torch.from_numpy(schedule.exits - schedule.first_written)]
        users = len(schedule.entry_users)
        for name, entities, vectors in (
            ("user", schedule.entry_users, last[:users]),
            ("item", schedule.entry_items, last[users:]),
        ):
            index = torch.from_numpy(entities).long()
            state[name][index] = vectors
            state[f"{name}_moved"][index] = True
        time = torch.from_numpy(window.time)
        user, item = torch.from_numpy(window.user).long(), torch.from_numpy(window.item).long()
        final = [torch.from_numpy(_is_last(prepared.past[:, side])) for side in (0, 1)]
        state["user_time"][user[final[0]]] = time[final[0]]
        state["item_time"][item[final[1]]] = time[final[1]]
        state["last_item"][user[final[0]]] = item[final[0]]

    # ---- features

    def _gaps(self, time: Tensor, before: Tensor) -> Tensor:
        """[n, 2]: the logarithm of the time since, and whether there was a before at all."""
        there = before >= 0
        return torch.stack([torch.log1p((time - before).clamp_min(0)) * there, there], 1).to(self.xi.dtype)

    def _before(self, prepared: Prepared, side: int, values: Tensor, entering: Tensor) -> Tensor:
        """For each event, a value of the entity's previous event: in the window, else what the state holds."""
        past = torch.from_numpy(prepared.past[:, side]).long()
        return torch.where(past >= 0, values[past.clamp_min(0)], entering)

    def _features(self, prepared: Prepared, state: State) -> tuple[Tensor, Tensor]:
        """(features of the events for the two GRUs [2, n, F], features for the head [n, ..])."""
        window, config = prepared.window, self.config
        user, item = torch.from_numpy(window.user).long(), torch.from_numpy(window.item).long()
        parts = [self.items(item)]
        if self.event is not None:
            parts.append(self.event(torch.from_numpy(window.features).to(self.xi.dtype)))
        shared = torch.cat(parts, 1)
        last = self._before(prepared, 0, item, state["last_item"][user])
        head = [self.items(torch.where(last < 0, self.shape.items, last))]
        if not config.time_gaps:
            return shared.expand(2, -1, -1), head[0]
        time = torch.from_numpy(window.time)
        gaps = [
            self._gaps(time, self._before(prepared, side, time, state[f"{name}_time"][entity]))
            for side, (name, entity) in enumerate((("user", user), ("item", item)))
        ]
        both = torch.stack([torch.cat([shared, gap], 1) for gap in gaps])
        return both, torch.cat([*head, gaps[0]], 1)

    # ---- scores

    def _run(self, prepared: Prepared, state: State) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """(arena, φ, written, what each event's user wants)."""
        schedule = prepared.schedule
        features, for_head = self._features(prepared, state)
        phi_rows = torch.arange(prepared.first_phi, prepared.first_phi + len(schedule.codes))
        phi = self.ties.read(phi_rows) if len(schedule.codes) else self.xi.new_zeros((0, self.config.dim))
        groups = schedule.entry_users, schedule.entry_items, schedule.psi_users, schedule.psi_items
        parts = [self._states(k % 2, torch.from_numpy(ids).long(), state) for k, ids in enumerate(groups)]
        roots = torch.cat([*parts, phi])
        written = self.gru(roots, features, schedule)
        arena = torch.cat([roots, written])
        users = arena.index_select(0, torch.from_numpy(schedule.reads[:, 0]))
        return arena, phi, written, self.head(torch.cat([users, for_head], 1))

    def _scores(self, wanted: Tensor, arena: Tensor, candidates: Candidates, state: State) -> Tensor:
        """[n, C] of the chunks' candidates."""
        outside = self._states(1, torch.from_numpy(candidates.outside).long(), state)
        d = self.config.dim
        found = scores(wanted[:, :d], torch.cat([arena, outside]), candidates)
        if self.config.candidate_id:
            found = found + self._id_scores(wanted[:, d:], candidates.items)
        return found

    def _id_scores(self, wanted: Tensor, items: Array) -> Tensor:
        """[n, C]: by the candidates' ids, for items [m, C]; all items if C is their number."""
        if items.shape[1] == self.shape.items:
            return torch.addmm(self.candidate[:, -1], wanted, self.candidate[:, :-1].T)
        n, chunks = len(wanted), len(items)
        table = F.embedding(torch.from_numpy(items), self.candidate, sparse=True)  # [m, C, d + 1]
        padded = F.pad(wanted, (0, 0, 0, chunks * CHUNK - n)).view(chunks, CHUNK, -1)
        return torch.baddbmm(table[:, None, :, -1], padded, table[:, :, :-1].transpose(1, 2)).flatten(0, 1)[:n]

    def _candidates(self, prepared: Prepared, items: Array) -> Candidates:
        return find(prepared.schedule, prepared.window.item, items, self.shape.items)

    def _all_items(self, n: int) -> Array:
        return np.broadcast_to(np.arange(self.shape.items, dtype=np.int32), (-(-n // CHUNK), self.shape.items))

    def loss(self, prepared: Prepared, state: State, step: Step) -> Loss:
        window, n = prepared.window, max(len(prepared.window), 1)
        arena, phi, written, wanted = self._run(prepared, state)
        true = torch.from_numpy(window.item).long()
        if self.shape.items <= self.config.full_softmax_up_to:
            found = self._scores(wanted, arena, self._candidates(prepared, self._all_items(len(window))), state)
            error = F.cross_entropy(found, true, reduction="sum")
        else:
            error = self._sampled_error(prepared, wanted, arena, true, state, step)
        rows = torch.arange(prepared.first_phi, prepared.first_phi + len(phi))
        targets = written[torch.from_numpy(prepared.schedule.targets - prepared.schedule.first_written)]
        tie, residual = self.ties.cost(rows, phi, targets)
        self._advance(prepared, written, state)
        log = {"loss": float(error.detach()) / n, "residual": residual}
        return Loss((error + tie) / n, log)

    def _sampled_error(
        self, prepared: Prepared, wanted: Tensor, arena: Tensor, true: Tensor, state: State, step: Step
    ) -> Tensor:
        """Softmax over the true item and the chunk's negatives; a negative that is the true item is left out."""
        shape = -(-len(true) // CHUNK), self.config.negatives
        drawn = torch.randint(self.shape.items, shape, generator=step.generator())
        negative = self._scores(wanted, arena, self._candidates(prepared, drawn.int().numpy()), state)
        hit = drawn.repeat_interleave(CHUNK, 0)[: len(true)] == true[:, None]
        d = self.config.dim
        positive = (wanted[:, :d] * arena.index_select(0, torch.from_numpy(prepared.schedule.reads[:, 1]))).sum(1)
        if self.config.candidate_id:
            own = F.embedding(true, self.candidate, sparse=True)
            positive = positive + (wanted[:, d:] * own[:, :-1]).sum(1) + own[:, -1]
        logits = torch.cat([positive[:, None], negative.masked_fill(hit, -torch.inf)], 1)
        return F.cross_entropy(logits, torch.zeros_like(true), reduction="sum")

    def score(self, prepared: Prepared, candidates: Tensor | None, state: State) -> Tensor:
        arena, _, written, wanted = self._run(prepared, state)
        found = self._scores(wanted, arena, self._candidates(prepared, self._all_items(len(prepared.window))), state)
        self._advance(prepared, written, state)
        return found if candidates is None else found.gather(1, candidates)

    def peek(self, users: Tensor, times: Tensor, candidates: Tensor | None, state: State) -> Tensor:
        last = state["last_item"][users]
        head = [self._states(0, users, state), self.items(torch.where(last < 0, self.shape.items, last))]
        if self.config.time_gaps:
            head.append(self._gaps(times, state["user_time"][users]))
        wanted, d = self.head(torch.cat(head, 1)), self.config.dim
        found = wanted[:, :d] @ self._states(1, torch.arange(self.shape.items), state).T
        if self.config.candidate_id:
            found = found + torch.addmm(self.candidate[:, -1], wanted[:, d:], self.candidate[:, :-1].T)
        return found if candidates is None else found.gather(1, candidates)


def _is_last(past: Array) -> Array:
    """bool[n]: no later event of the window has this one as its previous."""
    last = np.ones(len(past), bool)
    last[past[past >= 0]] = False
    return last


def make_plan(config: RecurrenceConfig, log: EventLog, train_end: int) -> Plan:
    k = 0 if config.dnodes is None and config.depth is None else config.dnodes
    method = "best" if k == 0 else config.method
    thresholds = config.active_users, config.active_items
    return Plan(log, Setting(train_end, config.windows, *thresholds, method, k, config.depth))


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
        dnodes = sum(len(cut) for cut in plan.cuts)
        model = Recurrence(config, Shape.of(log), *masks, np.asarray(log.item_categories), dnodes)
    model.follow(plan)
    return model
