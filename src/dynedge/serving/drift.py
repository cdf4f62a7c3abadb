"""Activity and embedding drift for the page: update rates per second, and recent states of users and items.

None of this is durable: it starts empty with the service.
"""

from __future__ import annotations

import time
from collections import deque
from typing import Any

import numpy as np
import torch

from dynedge.data.log import EventLog
from dynedge.inference.session import Session
from dynedge.models.capabilities import HasStates, capable
from dynedge.utils.array_type import Array

CAPACITY = 1 << 16  # states stored for users, and as many for items
SAMPLED_EVENTS = 256  # newest events of one update whose states are stored
PAUSE = 0.02  # seconds between two stored updates
SECONDS = 120  # history of update rates
PROJECTED_ENTITIES = 20_000  # entities whose covariance gives the projection


class DriftTracker:
    """Counts state updates and stores a sample of the states they produced."""

    def __init__(self) -> None:
        self.updates = [0, 0]  # state updates of users and of items since the service started
        self._rates: deque[list[int]] = deque(maxlen=SECONDS)  # [second, events, state updates]
        self._history: list[_StateHistory | None] = [None, None]
        self._next_sample = 0.0

    @torch.no_grad()
    def reset(self, session: Session) -> None:
        """Starts empty histories for a session's states."""
        for side, ids in enumerate((session.users, session.items)):
            rows = torch.arange(min(len(ids), PROJECTED_ENTITIES), device=session.device)
            model = capable(session.model, HasStates)
            if model is not None:
                states = model.entity_states(side, rows, session.state)
                self._history[side] = _StateHistory(np.asarray(states.float().cpu()))
            else:
                self._history[side] = None

    @torch.no_grad()
    def record(self, session: Session, events: EventLog) -> None:
        """Records the states that these events have just produced."""
        sides = np.unique(events.user), np.unique(events.item)
        self._count(len(events), len(sides[0]) + len(sides[1]))
        self.updates[0] += len(sides[0])
        self.updates[1] += len(sides[1])
        if time.monotonic() < self._next_sample:
            return
        self._next_sample = time.monotonic() + PAUSE
        for side, rows in enumerate((events.user[-SAMPLED_EVENTS:], events.item[-SAMPLED_EVENTS:])):
            history, model = self._history[side], capable(session.model, HasStates)
            if history is not None and model is not None and len(rows):
                entities, last = np.unique(rows[::-1], return_index=True)
                on_device = torch.from_numpy(entities).long().to(session.device)
                states = model.entity_states(side, on_device, session.state)
                times = events.time[-SAMPLED_EVENTS:][::-1][last]
                history.append(entities, times, np.asarray(states.float().cpu()))

    def _count(self, events: int, updates: int) -> None:
        now = int(time.time())
        if not self._rates or self._rates[-1][0] != now:
            self._rates.append([now, 0, 0])
        self._rates[-1][1] += events
        self._rates[-1][2] += updates

    def per_second(self) -> list[dict[str, int]]:
        """Returns events and state updates in each of the last complete seconds, oldest first."""
        now, counts = int(time.time()), {second: more for second, *more in list(self._rates)}
        seconds = range(now - SECONDS, now)
        rows = ((second, *counts.get(second, (0, 0))) for second in seconds)
        return [{"time": second, "events": events, "state_updates": updates} for second, events, updates in rows]

    def trajectory(self, side: int, row: int) -> list[dict[str, float]] | None:
        """Returns the stored states of one entity, oldest first; None for a model without states."""
        history = self._history[side]
        return None if history is None else history.trajectory(row)


class _StateHistory:
    """Ring buffer of states of one side, with a projection onto their two principal components."""

    def __init__(self, states: Array) -> None:
        width = states.shape[1]
        self._mean = states.mean(0) if len(states) else np.zeros(width, np.float32)
        spectrum = np.linalg.eigh(np.cov(states.T.astype(np.float64)) if len(states) > 1 else np.eye(width))
        self._components = spectrum.eigenvectors[:, : -min(3, width + 1) : -1].astype(np.float32)
        self._rows, self._times = np.full(CAPACITY, -1, np.int64), np.full(CAPACITY, 0.0)
        self._states, self._next = np.full((CAPACITY, width), 0, np.float32), 0  # not zeros: memory is taken now

    def append(self, rows: Array, times: Array, states: Array) -> None:
        slots = (self._next + np.arange(len(rows))) % CAPACITY
        self._rows[slots], self._times[slots], self._states[slots] = rows, times, states
        self._next = int(self._next + len(rows)) % CAPACITY

    def trajectory(self, row: int) -> list[dict[str, float]]:
        """Time, projection, norm, length of the last step and distance from the first stored state."""
        slots = np.flatnonzero(self._rows == row)
        slots = slots[np.argsort((slots - self._next) % CAPACITY)]
        states = self._states[slots]
        projected = (states - self._mean) @ self._components
        columns: dict[str, Any] = {
            "time": self._times[slots],
            "x": projected[:, 0],
            "y": projected[:, 1] if projected.shape[1] > 1 else np.zeros(len(projected)),
            "norm": np.linalg.norm(states, axis=1),
            "step": np.linalg.norm(np.diff(states, axis=0, prepend=states[:1]), axis=1),
            "distance_from_first": np.linalg.norm(states - states[:1], axis=1),
        }
        lists = [np.asarray(column, np.float64).tolist() for column in columns.values()]
        return [dict(zip(columns, point, strict=True)) for point in zip(*lists, strict=True)]
