"""Questions that wait are answered together: about many users at once, a model takes little longer than about one."""

from __future__ import annotations

import threading
from collections import defaultdict
from concurrent.futures import Executor, Future
from typing import NamedTuple

from dynedge.serving import answers as questions
from dynedge.serving.answers import Told
from dynedge.serving.engine import Engine


class Wanted(NamedTuple):
    """What must be the same for two questions to be asked together."""

    k: int
    time: float | None
    filter_seen: bool


class Together:
    def __init__(self, engine: Engine, executor: Executor) -> None:
        self._engine, self._executor = engine, executor
        self._waiting: list[tuple[Wanted, str, Future[Told]]] = []
        self._lock = threading.Lock()

    def ask(self, user: str, wanted: Wanted) -> Future[Told]:
        """The user's recommendations. Whoever is first has the executor answer; others join until it begins."""
        answer: Future[Told] = Future()
        with self._lock:
            self._waiting.append((wanted, user, answer))
            if len(self._waiting) == 1:
                self._executor.submit(self._answer)
        return answer

    def _answer(self) -> None:
        with self._engine.lock:
            with self._lock:
                waiting, self._waiting = self._waiting, []
            groups = defaultdict[Wanted, list[tuple[str, Future[Told]]]](list)
            for wanted, user, answer in waiting:
                if answer.set_running_or_notify_cancel():
                    groups[wanted].append((user, answer))
            for (k, time, filter_seen), asked in groups.items():
                users = [user for user, _ in asked]
                try:
                    found = questions.recommendations(self._engine.live, users, k, time, filter_seen=filter_seen)
                except Exception as error:
                    for _, answer in asked:
                        answer.set_exception(error)
                else:
                    for (_, answer), told in zip(asked, found, strict=True):
                        answer.set_result(told)
