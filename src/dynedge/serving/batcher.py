"""Request batching: concurrent recommendation requests share one forward pass.

Scoring many users at once takes a model little longer than scoring one.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from concurrent.futures import Executor, Future
from typing import NamedTuple

from dynedge.inference.recommend import UserRecommendations, recommend
from dynedge.serving.engine import Engine
from dynedge.serving.service_queries import query_time


class QueryOptions(NamedTuple):
    """Options that requests must share to be scored together."""

    k: int
    time: float | None
    filter_seen: bool


class Answer(NamedTuple):
    recommendations: UserRecommendations
    position: int  # of the journal, at which it was given


Request = tuple[str, Future[Answer]]


class RequestBatcher:
    """Collects requests until the executor is free, then answers all of them."""

    def __init__(self, engine: Engine, executor: Executor) -> None:
        self._engine, self._executor = engine, executor
        self._pending: list[tuple[QueryOptions, Request]] = []
        self._lock = threading.Lock()

    def submit(self, user: str, options: QueryOptions) -> Future[Answer]:
        """Returns a future of the user's recommendations; the first pending request schedules the batch."""
        answer: Future[Answer] = Future()
        with self._lock:
            self._pending.append((options, (user, answer)))
            if len(self._pending) == 1:
                self._executor.submit(self._answer_pending)
        return answer

    def _answer_pending(self) -> None:
        with self._engine.lock:
            with self._lock:
                pending, self._pending = self._pending, []
            batches = defaultdict[QueryOptions, list[Request]](list)
            for options, request in pending:
                if request[1].set_running_or_notify_cancel():
                    batches[options].append(request)
            for options, batch in batches.items():
                self._answer(options, batch)

    def _answer(self, options: QueryOptions, batch: list[Request]) -> None:
        session, users = self._engine.session, [user for user, _ in batch]
        try:
            time = query_time(session, options.time)
            answers = list(recommend(session, users, options.k, time, filter_seen=options.filter_seen))
        except Exception as error:
            for _, future in batch:
                future.set_exception(error)
        else:
            for (_, future), answer in zip(batch, answers, strict=True):
                future.set_result(Answer(answer, self._engine.position))
