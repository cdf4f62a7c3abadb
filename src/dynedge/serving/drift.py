"""What the service remembers of how its states moved, for people to look at: rates, and the latest states' paths.

Nothing here is needed to go on: it starts empty with the service.
"""

from __future__ import annotations

import time
from collections import deque
from typing import Any

import numpy as np
import torch

from dynedge.data.log import EventLog
from dynedge.inference.session import Live
from dynedge.utils.arrays import Array

KEPT = 1 << 16  # states, of users and of items
SAMPLED = 256  # events of one move whose states are kept
PAUSE = 0.02  # seconds after a move was looked at before the next one is
SECONDS = 120  # of rates
LOOKED_AT = 20_000  # entities whose spread gives the two directions of the picture


class Traces:
    def __init__(self) -> None:
        self.moved = [0, 0]  # states of users and of items, since the service started
        self._rates: deque[list[int]] = deque(maxlen=SECONDS)  # [second, events, states]
        self._sides: list[_Path | None] = [None, None]
        self._next = 0.0

    @torch.no_grad()
    def begin(self, live: Live) -> None:
        """Of these states from now on."""
        for side, names in enumerate((live.users, live.items)):
            rows = torch.arange(min(len(names), LOOKED_AT), device=live.device)
            states = live.model.states(side, rows, live.state)
            self._sides[side] = None if states is None else _Path(np.asarray(states.float().cpu()))

    @torch.no_grad()
    def add(self, live: Live, events: EventLog) -> None:
        """These events moved the states to where they are now."""
        sides = np.unique(events.user), np.unique(events.item)
        self._count(len(events), len(sides[0]) + len(sides[1]))
        self.moved[0] += len(sides[0])
        self.moved[1] += len(sides[1])
        if time.monotonic() < self._next:
            return
        self._next = time.monotonic() + PAUSE
        for side, rows in enumerate((events.user[-SAMPLED:], events.item[-SAMPLED:])):
            path = self._sides[side]
            if path is not None and len(rows):
                last, first = np.unique(rows[::-1], return_index=True)
                states = live.model.states(side, torch.from_numpy(last).long().to(live.device), live.state)
                assert states is not None
                path.add(last, events.time[-SAMPLED:][::-1][first], np.asarray(states.float().cpu()))

    def _count(self, events: int, states: int) -> None:
        now = int(time.time())
        if not self._rates or self._rates[-1][0] != now:
            self._rates.append([now, 0, 0])
        self._rates[-1][1] += events
        self._rates[-1][2] += states

    def rates(self) -> list[dict[str, int]]:
        """Events and states moved in each of the last seconds that are over, the oldest first."""
        now, found = int(time.time()), {second: more for second, *more in list(self._rates)}
        seconds = range(now - SECONDS, now)
        nothing = [0, 0]
        return [
            {"time": at, "events": found.get(at, nothing)[0], "states": found.get(at, nothing)[1]} for at in seconds
        ]

    def path(self, side: int, row: int) -> list[dict[str, float]] | None:
        path = self._sides[side]
        return None if path is None else path.of(row)


class _Path:
    """The latest states of one side, whoever's, in a ring; seen from the two directions in which they differ most."""

    def __init__(self, states: Array) -> None:
        self._middle = states.mean(0) if len(states) else np.zeros(states.shape[1], np.float32)
        spread = np.linalg.eigh(np.cov(states.T.astype(np.float64)) if len(states) > 1 else np.eye(states.shape[1]))
        self._directions = spread.eigenvectors[:, : -min(3, states.shape[1] + 1) : -1].astype(np.float32)
        self._rows, self._times = np.full(KEPT, -1, np.int64), np.zeros(KEPT)
        self._states, self._at = np.zeros((KEPT, states.shape[1]), np.float32), 0

    def add(self, rows: Array, times: Array, states: Array) -> None:
        places = (self._at + np.arange(len(rows))) % KEPT
        self._rows[places], self._times[places], self._states[places] = rows, times, states
        self._at = int(self._at + len(rows)) % KEPT

    def of(self, row: int) -> list[dict[str, float]]:
        """When, where in the picture, how long the state is, how far it came by this move and since the first."""
        places = np.flatnonzero(self._rows == row)
        places = places[np.argsort((places - self._at) % KEPT)]
        states = self._states[places]
        seen = (states - self._middle) @ self._directions
        steps = np.linalg.norm(np.diff(states, axis=0, prepend=states[:1]), axis=1)
        columns: dict[str, Any] = {
            "time": self._times[places],
            "x": seen[:, 0],
            "y": seen[:, 1] if seen.shape[1] > 1 else np.zeros(len(seen)),
            "norm": np.linalg.norm(states, axis=1),
            "step": steps,
            "from_first": np.linalg.norm(states - states[:1], axis=1),
        }
        lists = [np.asarray(column, np.float64).tolist() for column in columns.values()]
        return [dict(zip(columns, point, strict=True)) for point in zip(*lists, strict=True)]
