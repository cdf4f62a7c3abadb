"""What the routes share: the engine, two worker threads, request batching and metrics.

Queries run in one worker thread, one at a time, under the engine's lock; work that needs no lock (journal, ids,
files) runs in another. The event loop never waits for either; it answers short recommendation requests itself
(batcher.py).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Concatenate, ParamSpec, TypeVar

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from dynedge.data.timestamps import Timestamp, parse_timestamp
from dynedge.inference.session import Session
from dynedge.serving.batcher import RequestBatcher
from dynedge.serving.engine import BehindError, Engine
from dynedge.serving.metrics import Metrics
from dynedge.serving.run_info import run_info
from dynedge.serving.service_queries import Record

REACH_SECONDS, REACH_PAUSE = 1.0, 0.002  # longest wait for a position, and pause between two looks
P = ParamSpec("P")
T = TypeVar("T")


class Service:
    def __init__(self, engine: Engine) -> None:
        self.engine, self.metrics = engine, Metrics(engine)
        self._query_thread = ThreadPoolExecutor(1, "dynedge-queries")
        self._io_thread = ThreadPoolExecutor(1, "dynedge-io")
        self.batcher = RequestBatcher(engine, self._query_thread)
        self._run_info: tuple[Session, dict[str, Any]] | None = None

    @property
    def session(self) -> Session:
        return self.engine.session

    async def query(
        self, function: Callable[Concatenate[Session, P], T], *arguments: P.args, **options: P.kwargs
    ) -> T:
        """Calls function(session, …) in the query thread, under the engine's lock."""

        def locked() -> T:
            with self.engine.lock:
                return function(self.engine.session, *arguments, **options)

        return await asyncio.get_running_loop().run_in_executor(self._query_thread, locked)

    async def answer(
        self, function: Callable[Concatenate[Session, P], Record], *arguments: P.args, **options: P.kwargs
    ) -> Response:
        """Returns the record of a query as a response, with the position of the state that it was read from."""

        def record(session: Session) -> Record:
            return function(session, *arguments, **options) | {"position": self.position_text()}

        return JSONResponse(await self.query(record))

    def position_text(self, position: int | None = None) -> str:
        """Returns a position as clients see it, by default that of the state."""
        return self.engine.journal.text(self.engine.position if position is None else position)

    async def reach(self, min_position: str | None) -> None:
        """Waits until the state has reached a position; raises BehindError if that takes long."""
        if min_position is None:
            return
        position, deadline = self.engine.journal.parse(min_position), time.monotonic() + REACH_SECONDS
        while self.engine.position < position:
            if time.monotonic() > deadline:
                raise BehindError(f"this replica is at {self.position_text()} and has not reached {min_position} yet")
            await asyncio.sleep(REACH_PAUSE)

    async def background(self, function: Callable[..., T], *arguments: Any) -> T:
        """Calls a function that needs no lock in the I/O thread."""
        return await asyncio.get_running_loop().run_in_executor(self._io_thread, function, *arguments)

    def parse_time(self, value: Timestamp | None) -> float | None:
        return None if value is None else parse_timestamp(value, self.session.time_unit, "time")

    async def run_info(self) -> dict[str, Any]:
        """Returns information about the served run, read once per session."""
        session = self.session
        if self._run_info is None or self._run_info[0] is not session:
            self._run_info = session, await self.background(run_info, session)
        return self._run_info[1]

    def shutdown(self) -> None:
        self._query_thread.shutdown()
        self._io_thread.shutdown()
        self.engine.close()


def service_of(request: Request) -> Service:
    """Returns the service of the application that handles a request."""
    service: Service = request.app.state.service
    return service
