"""Request batching: concurrent recommendation requests share one forward pass.

Scoring many users at once takes a model little longer than scoring one. A request that finds no other and nothing to
wait for is answered at once, in the event loop, if that takes no longer than handing it to another thread and back.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import defaultdict
from concurrent.futures import Executor, Future
from typing import NamedTuple

from dynedge.inference.recommend import UserRecommendations, recommend
from dynedge.inference.rules import Rules
from dynedge.serving.engine import Engine
from dynedge.serving.service_queries import query_time


class QueryOptions(NamedTuple):
    """Options that requests must share to be scored together."""

    k: int
    time: float | None
    rules: Rules


class Answer(NamedTuple):
    recommendations: UserRecommendations
    position: int  # of the journal, at which it was given


Request = tuple[str, Future[Answer]]
SHORT_SECONDS = 0.002  # of CPU time of a query that may be answered in the event loop


class RequestBatcher:
    """Collects requests until the executor is free, then answers all of them."""

    def __init__(self, engine: Engine, executor: Executor) -> None:
        self._engine, self._executor = engine, executor
        self._pending: list[tuple[QueryOptions, Request]] = []
        self._lock = threading.Lock()
        self._arrived = 0  # requests that have not been answered
        self._seconds = float("inf")  # of CPU time that the last answer to a single request took

    async def answer(self, user: str, options: QueryOptions) -> Answer:
        """Returns the user's recommendations."""
        self._arrived += 1
        try:
            if self._seconds < SHORT_SECONDS:
                await asyncio.sleep(0)  # requests that have arrived meanwhile are counted
                if self._arrived == 1 and self._engine.lock.acquire(blocking=False):
                    try:
                        return self._recommend([user], options)[0]
                    finally:
                        self._engine.lock.release()
            return await asyncio.wrap_future(self.submit(user, options))
        finally:
            self._arrived -= 1

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
        try:
            answers = self._recommend([user for user, _ in batch], options)
        except Exception as error:
            for _, future in batch:
                future.set_exception(error)
        else:
            for (_, future), answer in zip(batch, answers, strict=True):
                future.set_result(answer)

    def _recommend(self, users: list[str], options: QueryOptions) -> list[Answer]:
        session, started = self._engine.session, time.thread_time()
        at = query_time(session, options.time)
        answers = recommend(session, users, options.k, at, options.rules)
        if len(users) == 1:
            self._seconds = time.thread_time() - started
        return [Answer(answer, self._engine.position) for answer in answers]
