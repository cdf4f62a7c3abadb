"""`one-population`: the recurrence with one table of states, for logs whose users and items are the same entities.

Legend: n events of a window, N entities, d width of a state, W states written, C negatives, R rows of the arena.

An event of a with b reads one state of each and writes both, whichever role they had before. The recurrent weights
are shared by both roles; the weights of the event's features depend on the role. The query vector is an MLP of the
user's state, of the entity it last met in either role and of that entity's state. In a log with two kinds of entities
the items follow the users in the table.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dynedge.data.log import EventLog
from dynedge.data.windows import Window
from dynedge.models.base import LogShape, Loss, Model, State, Step, check_finite, loggable
from dynedge.models.capabilities import HasStates
from dynedge.models.coevolving_base import NEVER
from dynedge.models.edge.config import OnePopulationConfig
from dynedge.models.entity_rows import Rows
from dynedge.models.layers import Head
from dynedge.ops.all_scores import all_scores
from dynedge.ops.gather_linear import gather_linear, gather_rows
from dynedge.ops.level_gru import level_gru
from dynedge.ops.sampled_softmax import LossInputs
from dynedge.ops.sampled_softmax.own_negatives import own_negatives_softmax
from dynedge.ops.time_gaps import time_gap_features
from dynedge.plan.schedule import NO_ROW, Schedule
from dynedge.plan.shared_schedule import build_shared_schedule
from dynedge.utils.array_type import Array
from dynedge.utils.prefetch import prefetch_map


@dataclass(frozen=True, eq=False)
class PairWindow:
    """A window with its schedule and what each event's two entities did before it."""

    window: Window
    schedule: Schedule
    user: Tensor  # int64[n]
    item: Tensor  # int64[n]
    time: Tensor  # float64[n]
    features: Tensor  # float32[n, ..]
    reads: Tensor  # int64[n, 2]: the rows of user and item just before the event
    previous: Tensor  # int64[n, 2]: the previous event of each in the window, or −1
    partner: Tensor  # int64[n]: whom the user met in its previous event of the window, or −1


class OnePopulation(Model, HasStates):
    def __init__(self, config: OnePopulationConfig, shape: LogShape) -> None:
        super().__init__(config, shape)
        d, bound = config.dim, config.dim**-0.5
        own = shape.features if config.event_features else 0
        width = d + own + 2  # id of the partner, features, time gap

        def uniform(*sizes: int) -> nn.Parameter:
            return nn.Parameter(torch.empty(sizes).uniform_(-bound, bound))

        self.xi = nn.Parameter(0.1 * torch.randn(d))
        users = 0 if shape.one_population else shape.users
        self.user_ids = nn.Parameter(0.1 * torch.randn(users, d))
        self.item_ids = nn.Parameter(0.1 * torch.randn(shape.items + 1, d))  # the last row: no entity
        self.own, self.other, self.own_bias = uniform(3 * d, d), uniform(3 * d, d), uniform(3 * d)
        self.feature, self.bias = uniform(2, 3 * d, width), uniform(2, 3 * d)  # by role
        self.head = Head(3 * d + 2, 2 * d, 2 * d)
        self.candidate = nn.Parameter(torch.zeros(shape.items, d + 1))  # id embedding and bias
        self.skip = nn.Linear(2 * d, 2 * d, bias=False)  # from the last partner, as candidates are scored by it
        nn.init.zeros_(self.skip.weight)

    @property
    def _first_item(self) -> int:
        """The entity that item 0 is."""
        return 0 if self.shape.one_population else self.shape.users

    @property
    def _entities(self) -> int:
        return self._first_item + self.shape.items

    def entity_rows(self) -> dict[str, Rows]:
        users = {} if self.shape.one_population else {"user_ids": Rows(users=True, std=0.1)}
        return {**users, "item_ids": Rows(items=True, none=True, std=0.1), "candidate": Rows(items=True)}

    # ---- state

    def start(self) -> State:
        count, like = self._entities, self.xi
        return State(
            entity=like.new_zeros(count, self.config.dim),
            moved=torch.zeros(count, dtype=torch.bool, device=like.device),
            time=torch.full((count,), NEVER, dtype=torch.float64, device=like.device),
            partner=torch.full((count,), -1, device=like.device),
        )

    def check_state(self, state: State) -> None:
        from dynedge.models.state_checks import check_names, check_tensor

        count = self._entities
        check_names(state, self.start())
        check_tensor(state, "entity", self.xi.dtype, (count, self.config.dim))
        check_tensor(state, "moved", torch.bool, (count,))
        check_tensor(state, "time", torch.float64, (count,), NEVER)
        check_tensor(state, "partner", torch.int64, (count,), -1, count - 1)

    def entity_states(self, side: int, entities: Tensor, state: State) -> Tensor:
        """[q, d]: the states of users or items; ξ for those without events."""
        return self._states(entities + (self._first_item if side == 1 else 0), state)

    def _states(self, entities: Tensor, state: State) -> Tensor:
        return torch.where(state["moved"][entities, None], state["entity"][entities], self.xi)

    def _item_states(self, state: State) -> Tensor:
        return self.entity_states(1, torch.arange(self.shape.items, device=self.xi.device), state)

    def vectors(self, state: State) -> tuple[Tensor, Tensor]:
        users = torch.arange(self.shape.users, device=self.xi.device)
        items = torch.cat([self._item_states(state), self.candidate[:, :-1]], 1)
        return self.entity_states(0, users, state), items

    # ---- windows

    def prepare(self, window: Window) -> PairWindow:
        user, item = window.user, window.item + np.int32(self._first_item)
        schedule = build_shared_schedule(user, item)
        previous, partner = _previous(user, item)
        device = self.xi.device

        def placed(array: Array, dtype: type = np.int64) -> Tensor:
            return torch.from_numpy(array.astype(dtype)).to(device)

        ids = placed(user), placed(item)
        times = placed(window.time, np.float64), placed(window.features, np.float32)
        links = placed(schedule.read_rows), placed(previous), placed(partner)
        return PairWindow(window, schedule, *ids, *times, *links)

    def batches(self, log: EventLog, windows: Sequence[range], first: int = 0) -> Iterator[PairWindow]:
        return prefetch_map(lambda events: self.prepare(Window(log, events)), windows[first:], threads=1)

    # ---- forward

    def _forward(self, batch: PairWindow, state: State) -> tuple[Tensor, Tensor]:
        """(queries [n, 2d], arena [R, d])."""
        entry = torch.from_numpy(batch.schedule.entry_items.astype(np.int64)).to(self.xi.device)
        roots = self._states(entry, state)
        pair = torch.stack([batch.user, batch.item], 1)
        in_window = batch.previous >= 0
        before = torch.where(in_window, batch.time[batch.previous.clamp_min(0)], state["time"][pair])
        gaps = [time_gap_features(batch.time, before[:, side]).to(self.xi) for side in (0, 1)]
        pre = torch.stack([self._products(batch, side, gaps[side]) for side in (0, 1)], 1).flatten(0, 1)
        step = torch.from_numpy(batch.schedule.event.astype(np.int64)).to(self.xi.device)
        own, other, bias = (
            part.expand(2, *part.shape).contiguous() for part in (self.own, self.other, self.own_bias)
        )
        written = level_gru(roots, gather_rows(pre, step ^ 1), own, other, bias, batch.schedule)
        arena = torch.cat([roots, written])
        last = torch.where(in_window[:, 0], batch.partner, state["partner"][batch.user])
        before_event = gather_rows(arena, batch.reads[:, 0])
        return self._query(before_event, last, self._partner_states(batch, last, arena, state), gaps[0]), arena

    def _products(self, batch: PairWindow, side: int, gaps: Tensor) -> Tensor:
        """[n, 3d]: the event's features times their weights, for the entity on this side: the partner's id first."""
        partner = self._id(batch.item if side == 0 else batch.user)
        parts = [partner, gaps] + ([batch.features.to(self.xi)] if self.config.event_features else [])
        return gather_linear([(part, None) for part in parts], self.feature[side], self.bias[side])

    def _id(self, entities: Tensor) -> Tensor:
        """Id embeddings; −1 is the row of no entity."""
        table = torch.cat([self.user_ids, self.item_ids])
        return F.embedding(entities % len(table), table)

    def _partner_states(self, batch: PairWindow, last: Tensor, arena: Tensor, state: State) -> Tensor:
        """[n, d]: the state of each user's last partner just before the event; 0 without one."""
        rows = self._rows_before(batch, last.clamp_min(0))
        outside = self._states(last.clamp_min(0), state)
        states = torch.where((rows >= 0)[:, None], gather_rows(arena, rows.clamp_min(0)), outside)
        return states * (last >= 0)[:, None]

    def _query(self, own: Tensor, last: Tensor, last_state: Tensor, gap: Tensor) -> Tensor:
        item = last - self._first_item
        ids = F.embedding(item.clamp_min(0), self.candidate, sparse=True)[:, :-1] * (item >= 0)[:, None]
        query = self.head(torch.cat([own, self._id(last), last_state, gap], 1))
        query = query + self.skip(torch.cat([last_state, ids], 1))
        return F.dropout(query, self.config.dropout, self.training) if self.config.dropout else query

    @torch.no_grad()
    def _advance(self, batch: PairWindow, arena: Tensor, state: State) -> None:
        schedule, device = batch.schedule, self.xi.device
        entities = torch.from_numpy(schedule.entry_items.astype(np.int64)).to(device)
        state["entity"][entities] = arena[torch.from_numpy(schedule.exit_rows.astype(np.int64)).to(device)]
        state["moved"][entities] = True
        pair = batch.user.cpu().numpy(), batch.item.cpu().numpy()
        last, partner = _last_of_entities(*pair, schedule.entry_items)
        state["time"][entities] = batch.time[torch.from_numpy(last).to(device)]
        state["partner"][entities] = torch.from_numpy(partner).to(device)

    # ---- the contract

    def loss(self, batch: PairWindow, state: State, step: Step) -> Loss:
        n, count, items, device = max(len(batch.user), 1), self.config.negatives, self.shape.items, self.xi.device
        query, arena = self._forward(batch, state)
        negatives = torch.randint(items, (len(batch.user), count), generator=step.generator(device), device=device)
        rows = self._rows_before(batch, negatives + self._first_item)
        outside = self.entity_states(1, negatives.flatten(), state)
        place = torch.where(rows >= 0, rows, len(arena) + torch.arange(rows.numel(), device=device).view_as(rows))
        true = batch.item - self._first_item, batch.reads[:, 1]
        inputs = LossInputs(query, arena, outside, self.candidate, *true)
        total = own_negatives_softmax(inputs, negatives, place, math.log(max(items / count, 1.0)))
        self._advance(batch, arena, state)
        return Loss(total / n, {"loss": loggable(total.detach() / n)})

    def _rows_before(self, batch: PairWindow, entities: Tensor) -> Tensor:
        """int64[n, ..]: the rows of entities just before each event, or NO_ROW."""
        steps = 2 * np.arange(len(batch.user)).reshape(-1, *[1] * (entities.dim() - 1))
        rows = batch.schedule.rows_before(entities.cpu().numpy(), steps)
        return torch.from_numpy(rows.astype(np.int64)).to(self.xi.device)

    def score(self, batch: PairWindow, candidates: Tensor | None, state: State) -> Tensor:
        query, arena = self._forward(batch, state)
        n, device, first = len(batch.user), query.device, self._first_item
        # The steps of an event, as the schedule numbers them: that of its item, then that of its user. All states
        # that a step writes are visible to later steps; the steps of users have an empty query.
        after = np.full(2 * n, NO_ROW, np.int64)
        after[batch.schedule.item_events] = batch.schedule.item_rows
        entity = torch.stack([batch.item, batch.user], 1).flatten()
        row = torch.from_numpy(after).to(device)
        row = torch.where(entity >= first, row, NO_ROW)
        queries = torch.stack([query, torch.zeros_like(query)], 1).flatten(0, 1)
        items = (entity - first).clamp_min(0)
        scores = all_scores(queries, self._item_states(state), self.candidate, items, row, arena)[::2]
        self._advance(batch, arena, state)
        return scores if candidates is None else scores.gather(1, candidates)

    def observe(self, window: Window, state: State) -> None:
        batch = self.prepare(window)
        with torch.no_grad():
            _, arena = self._forward(batch, state)
            check_finite(arena)
            self._advance(batch, arena, state)

    def score_query(self, users: Tensor, times: Tensor, candidates: Tensor | None, state: State) -> Tensor:
        last = state["partner"][users]
        gap = time_gap_features(times, state["time"][users]).to(self.xi)
        last_state = self._states(last.clamp_min(0), state) * (last >= 0)[:, None]
        query = self._query(self.entity_states(0, users, state), last, last_state, gap)
        d, states = self.config.dim, self._item_states(state)
        scores = query[:, :d] @ states.T + query[:, d:] @ self.candidate[:, :-1].T + self.candidate[:, -1]
        return scores if candidates is None else scores.gather(1, candidates)


def _previous(user: Array, item: Array) -> tuple[Array, Array]:
    """int64[n, 2]: the previous event of user and item in the window, or −1; int64[n]: whom the user met there."""
    pairs = np.stack([user, item], 1)
    entity, event = pairs.ravel(), np.repeat(np.arange(len(user)), 2)
    order = np.lexsort((event, entity))
    before = np.full(len(entity), -1, np.int64)
    same = entity[order][1:] == entity[order][:-1]
    before[order[1:][same]] = event[order[:-1][same]]
    previous = before.reshape(-1, 2)
    loops = user == item  # the second entry of an event with itself is that event
    previous[loops] = previous[loops].min(1, keepdims=True)
    met = previous[:, 0].clip(0)
    partner = np.where(user[met] == user, item[met], user[met])
    return previous, np.where(previous[:, 0] >= 0, partner, -1).astype(np.int64)


def _last_of_entities(user: Array, item: Array, entities: Array) -> tuple[Array, Array]:
    """int64[entities]: the last event of each entity of the window, and whom it met there."""
    last = np.zeros(len(entities), np.int64)
    events = np.arange(len(user))
    for side in (user, item):
        np.maximum.at(last, np.searchsorted(entities, side), events)
    return last, np.where(user[last] == entities, item[last], user[last]).astype(np.int64)
