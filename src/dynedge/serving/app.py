"""The service over HTTP. Every route is a few lines: check, ask the engine, answer.

Questions run in a thread of their own, one at a time, between moves of the states; events wait for the engine's
writer. The loop itself never waits for either.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Annotated, Any, Protocol

from fastapi import FastAPI, Query
from fastapi import Path as InPath
from starlette.responses import FileResponse, JSONResponse, PlainTextResponse, Response

from dynedge import __version__
from dynedge.data.timestamps import parse_timestamp
from dynedge.errors import UsageError
from dynedge.inference.event_input import Event
from dynedge.inference.session import Live
from dynedge.serving import answers as questions
from dynedge.serving import problem_details as problems
from dynedge.serving import schemas as bodies
from dynedge.serving.answers import UnknownError
from dynedge.serving.batcher import Together, Wanted
from dynedge.serving.engine import Engine
from dynedge.serving.metrics import Metrics
from dynedge.serving.middleware import Guard
from dynedge.serving.run_info import facts
from dynedge.serving.validation import checked

PAGE = Path(__file__).parent / "page"
MOST_SHOWN = 200

Id = Annotated[str, InPath(min_length=1, max_length=256)]
Amount = Annotated[int, Query(ge=1, le=bodies.MOST_ITEMS)]
Shown = Annotated[int, Query(ge=1, le=MOST_SHOWN)]
Moment = Annotated[str | None, Query(max_length=64, description="A number in the log's unit, or ISO 8601.")]

COMMON: dict[int | str, dict[str, Any]] = {
    status: {"model": bodies.Problem, "content": {problems.KIND: {}}} for status in (401, 403, 404, 421, 422, 503)
}
WRITES = COMMON | dict.fromkeys((400, 413, 507), COMMON[422])


class Source(Protocol):
    """A thread that brings events from elsewhere."""

    def start(self) -> None: ...

    def stop(self) -> None: ...


def make_app(
    engine: Engine, token: str | None = None, hosts: tuple[str, ...] = (), sources: Sequence[Source] = ()
) -> FastAPI:
    """The service; it starts and stops its sources, and closes the engine at its end."""

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        for source in sources:
            source.start()
        yield
        for source in sources:
            await asyncio.to_thread(source.stop)
        asking.shutdown()
        looking.shutdown()
        await asyncio.to_thread(engine.close)

    asking, looking = ThreadPoolExecutor(1, "dynedge-questions"), ThreadPoolExecutor(1, "dynedge-looking")
    together = Together(engine, asking)
    metrics, told_facts = Metrics(engine), dict[int, Any]()
    app = FastAPI(title="dynedge", version=__version__, lifespan=lifespan, responses=COMMON)
    app.add_middleware(Guard, token=token, hosts=hosts, told=metrics.tell)
    problems.add_to(app)

    async def ask(question: Callable[..., Any], *given: Any, **more: Any) -> Any:
        def locked() -> Any:
            with engine.lock:
                return question(engine.live, *given, **more)

        return await asyncio.get_running_loop().run_in_executor(asking, locked)

    async def look(question: Callable[..., Any], *given: Any) -> Any:
        """For what needs no lock: the journal, ids, files."""
        return await asyncio.get_running_loop().run_in_executor(looking, question, *given)

    def moment(told: Any) -> float | None:
        return None if told is None else parse_timestamp(told, engine.live.time_unit, "time")

    # ---- events

    @app.post("/events", response_model=bodies.Receipt, responses=WRITES)
    async def events(body: bodies.EventsIn) -> Response:
        """One or up to 1,000 events, in the order in which they happened. Answered once they are durable."""
        given = [checked(engine.live, event) for event in body.events]
        receipt = await asyncio.wrap_future(engine.submit(given))
        return JSONResponse(vars(receipt))

    # ---- recommendations

    @app.get("/users/{id:path}/recommendations", response_model=bodies.Recommended)
    async def recommendations(
        id: Id, k: Amount = 10, time: Moment = None, filter_seen: bool = False, why: bool = False
    ) -> Response:
        """The user's best items at `time`, or at the newest event's. `why`: what each item's score comes from."""
        at = moment(time)
        found = await asyncio.wrap_future(together.ask(id, Wanted(k, at, filter_seen)))
        return JSONResponse(await ask(questions.explained, found, at) if why else found)

    @app.post("/recommendations", response_model=bodies.RecommendedMany, responses=WRITES)
    async def many_recommendations(body: bodies.AskedIn) -> Response:
        """The same for up to 1,000 users, in the order asked."""
        at = moment(body.time)
        found = await ask(questions.recommendations, body.user_ids, body.k, at, filter_seen=body.filter_seen)
        return JSONResponse({"users": found})

    @app.post("/users/{id:path}/what-if", responses=WRITES)
    async def what_if(id: Id, body: bodies.WhatIfIn) -> Response:
        """The user's best items now, and as they would be after one more event; nothing is stored."""
        at = moment(body.timestamp)

        def question(live: Live) -> questions.Told:
            event = Event(id, str(body.item_id), questions.moment(live, at))
            return questions.what_if(live, event, body.k, filter_seen=body.filter_seen)

        return JSONResponse(await ask(question))

    # ---- looking into it

    @app.get("/users/{id:path}/timeline")
    async def timeline(id: Id, limit: Shown = 50) -> Response:
        """The user's latest events in the journal, the newest first."""
        found = await look(engine.journal.of_user, _own(engine.live, 0, id), limit)
        names = engine.live.items
        shown = [
            {
                "item_id": names[names.find(event.item)] if names.find(event.item) >= 0 else event.item,
                "time": event.time,
                "event_id": event.event_id,
            }
            for event in found
        ]
        return JSONResponse({"user_id": engine.live.users[_row(engine.live, 0, id)], "events": shown})

    @app.get("/users/{id:path}/drift")
    async def user_drift(id: Id) -> Response:
        """Where the user's state went: the latest moves this service has seen, the oldest first."""
        return await drift(0, id)

    @app.get("/items/{id:path}/drift")
    async def item_drift(id: Id) -> Response:
        """The same of an item."""
        return await drift(1, id)

    async def drift(side: int, told: str) -> Response:
        row = _row(engine.live, side, told)
        found = await look(engine.traces.path, side, row)
        if found is None:
            raise UsageError(f"the model {engine.live.config.name} has no states to look at.")
        return JSONResponse({"id": (engine.live.users, engine.live.items)[side][row], "path": found})

    @app.get("/users/{id:path}")
    async def user(id: Id) -> Response:
        """Whether the user is known, since when, and their last event here."""
        row, live = _row(engine.live, 0, id), engine.live
        last = await look(engine.journal.of_user, _own(live, 0, id), 1)
        told = {"user_id": live.users[row], "known": True, "new": row >= live.ids.num_users}
        return JSONResponse(told | {"last": {"item_id": last[0].item, "time": last[0].time} if last else None})

    @app.get("/items/{id:path}/similar", response_model=bodies.Similar)
    async def similar(id: Id, k: Amount = 10) -> Response:
        """The items whose vectors point the same way, by cosine."""
        return JSONResponse(await ask(questions.similar, id, k))

    @app.get("/items/{id:path}")
    async def item(id: Id) -> Response:
        """Whether the item is known, and how often it has been met."""

        def question(live: Live) -> questions.Told:
            row = _row(live, 1, id)
            told = {"item_id": live.items[row], "known": True, "new": row >= live.ids.num_items}
            return told | {"events": int(live.coverage.item_counts[row])}

        return JSONResponse(await ask(question))

    @app.get("/search")
    async def search(
        side: Annotated[str, Query(pattern="^(users|items)$")],
        prefix: Annotated[str, Query(max_length=256)] = "",
        limit: Shown = 20,
    ) -> Response:
        """Users or items whose ids begin so, whatever the case."""
        names = engine.live.users if side == "users" else engine.live.items
        return JSONResponse({"ids": await look(names.search, prefix, limit)})

    @app.get("/live")
    async def live_now() -> Response:
        """What happens: events and states moved in each of the last 120 seconds, and in all."""
        live = engine.live
        return JSONResponse(
            {
                "events": engine.journal.end,
                "accepted": engine.accepted,
                "duplicates": engine.duplicates,
                "late": engine.late,
                "users_moved": engine.traces.moved[0],
                "items_moved": engine.traces.moved[1],
                "users": len(live.users),
                "items": len(live.items),
                "newest": live.coverage.last_time if math.isfinite(live.coverage.last_time) else None,
                "seconds": engine.traces.rates(),
            }
        )

    @app.get("/run")
    async def run() -> Response:
        """The run that is served: learning curve, longest paths, residuals, metrics with intervals."""
        live = engine.live
        if id(live) not in told_facts:
            told_facts.clear()
            told_facts[id(live)] = await look(facts, live)
        return JSONResponse(told_facts[id(live)])

    @app.post("/reload")
    async def reload() -> Response:
        """Open the run's folder anew, replay the journal into it, and put it in the old one's place."""
        return JSONResponse({"position": await look(engine.swap)})

    # ---- the service itself

    @app.get("/health")
    async def health() -> Response:
        """The process is there."""
        return JSONResponse({"status": "ok"})

    @app.get("/ready")
    async def ready() -> Response:
        """It takes events and answers questions."""
        if engine.broken:
            return problems.problem(503, f"the service has to be started anew ({engine.broken}).", problems.RETRY)
        return JSONResponse({"status": "ready", "position": engine.journal.end, "run": engine.live.folder.name})

    @app.get("/metrics", response_class=PlainTextResponse)
    async def prometheus() -> Response:
        """For Prometheus."""
        return PlainTextResponse(metrics.text())

    @app.get("/", include_in_schema=False)
    async def page() -> Response:
        return _page_file("index.html")

    @app.get("/page/{name}", include_in_schema=False)
    async def page_file(name: str) -> Response:
        return _page_file(name)

    return app


def _row(live: Live, side: int, told: str) -> int:
    row = (live.users, live.items)[side].find(told)
    if row < 0:
        raise UnknownError(f"nobody knows the {('user', 'item')[side]} {told!r}.")
    return row


def _own(live: Live, side: int, told: str) -> str:
    """As the journal has it."""
    return str((live.users, live.items)[side][_row(live, side, told)])


def _page_file(name: str) -> Response:
    path = PAGE / name
    if path.parent != PAGE or not path.is_file():
        return problems.problem(404, f"there is no page {name!r}.")
    policy = "default-src 'self'; img-src 'self' data:; frame-ancestors 'none'; base-uri 'none'; form-action 'none'"
    return FileResponse(path, headers={"Content-Security-Policy": policy, "X-Content-Type-Options": "nosniff"})
