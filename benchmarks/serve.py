"""Load test of `dynedge serve`: latency at a nominal and at four times the rate, and the speed of its parts.

    python benchmarks/serve.py                       # 300 mixed requests/s for 10 minutes, then 1,200/s for 2 minutes
    python benchmarks/serve.py --seconds 30
    python benchmarks/serve.py --parts               # observe, and the exact top 10 of 60,000 and of 1,000,000 items
    python benchmarks/serve.py --replicas 8          # reads per second of 1, 2, 4 and 8 replicas on a Redis Stream

A run is trained on a synthetic log and served by `dynedge serve` in a subprocess on this machine. One client
process with --connections connections sends requests at the times of a Poisson process, sampled beforehand and
independent of earlier responses; a request without a free connection waits, and its latency counts from its
scheduled time. Of ten requests, five are for recommendations of one user, three send 1 to 20 events, one is for
similar items and one for recommendations of ten users.

With --replicas, each replica has a core of its own, and so has its client process, whose --readers connections ask
for recommendations as fast as they are answered, while one more client sends 20 events a second, which every replica
applies. All replicas run all the time; 1, 2, 4, … of them are asked, in turn, several times. This needs redis-server,
the packages of the extras `serve` and `redis`, and two cores per replica.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import re
import selectors
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Coroutine, Iterator
from contextlib import ExitStack, contextmanager
from functools import cached_property
from multiprocessing import get_context
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
import torch
from machine_info import describe_machine

from dynedge.data.log import EventLog, read_log
from dynedge.data.synthetic import synthesize
from dynedge.data.windows import Window
from dynedge.inference.event_input import Event
from dynedge.inference.quantized_search import QuantizedSearch
from dynedge.inference.session import Session
from dynedge.models.edge.config import EdgeConfig
from dynedge.models.edge.event_step import EventStep
from dynedge.models.edge.model import Edge
from dynedge.models.edge.query_step import QueryStep
from dynedge.runs.folder import MODEL, RUN_FILES
from dynedge.runs.manifest import write_manifest
from dynedge.utils.tensor_io import load_tensors, save_tensors


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rate", type=float, default=300.0, help="Requests per second.")
    parser.add_argument("--seconds", type=float, default=600.0, help="Duration at the nominal rate.")
    parser.add_argument("--connections", type=int, default=128, help="Number of connections.")
    parser.add_argument("--recipe", default="demo", help="Recipe of the synthetic log (dynedge synth).")
    parser.add_argument("--events", type=int, default=50_000, help="Number of events of the synthetic log.")
    parser.add_argument("--replicas", type=int, default=0, help="Reads of up to this many replicas instead.")
    parser.add_argument("--readers", type=int, default=4, help="Connections per replica, with --replicas.")
    parser.add_argument("--rounds", type=int, default=3, help="Measurements of each number of replicas.")
    parser.add_argument("--folder", type=Path, help="Log and run of an earlier call, or to be made there.")
    parser.add_argument("--parts", action="store_true", help="Only the parts: observe, recommend and top-k search.")
    args = parser.parse_args()
    print(f"{describe_machine()}; torch {torch.__version__}, {torch.get_num_threads()} threads")
    if args.parts:
        benchmark_observe(args.events)
        benchmark_search()
        return
    with tempfile.TemporaryDirectory(prefix="serve-") as folder:
        root = Path(folder)
        log, run = train(args.folder or root, args.recipe, args.events)
        if args.replicas:
            benchmark_replicas(root, log, run, args.replicas, args.readers, min(args.seconds, 20.0), args.rounds)
            return
        with Service(run, root / "data") as service:
            answers(load(service, log, min(5.0, args.seconds), args.rate, args.connections))  # warm-up
            for factor, seconds in ((1, args.seconds), (4, max(args.seconds / 5, 5.0))):
                memory, busy = service.mib(), service.cpu_seconds()
                responses = answers(load(service, log, seconds, factor * args.rate, args.connections))
                busy = 1000 * (service.cpu_seconds() - busy) / len(responses)
                report(f"{factor * args.rate:,.0f} requests/s for {seconds:,.0f} s", responses)
                print(f"  memory of the service {memory:,.0f} -> {service.mib():,.0f} MiB", end="")
                print(f" ({service.mib() / memory - 1:+.1%}), CPU time {busy:.2f} ms per request", end="")
                print(f"; load average of the machine {os.getloadavg()[0]:.1f}", flush=True)


def train(root: Path, recipe: str, events: int) -> tuple[EventLog, Path]:
    """Returns a synthetic log and a run trained on it; those in the folder, if there are any."""
    if (root / "run").exists():
        return read_log(root / "log"), root / "run"
    log = synthesize(recipe, root / "log", events=events, quiet=True)
    command = [sys.executable, "-m", "dynedge", "train", str(root / "log"), "--out", str(root / "run")]
    subprocess.run([*command, "--epochs", "1", "--windows", "40"], check=True, capture_output=True)
    use_both_experts(root / "run")
    return log, root / "run"


def use_both_experts(run: Path, weight: float = 0.2) -> None:
    """Sets the fusion weight, which validation may have chosen as zero: such a run is served by one expert alone."""
    parameters = load_tensors(run / MODEL)
    parameters["weight"].fill_(weight)
    save_tensors(run / MODEL, parameters)
    write_manifest(run, RUN_FILES)


class Service:
    """`dynedge serve` in a subprocess; with `core`, on that core alone."""

    def __init__(self, run: Path, data: Path, *options: str, core: int | None = None) -> None:
        command = [sys.executable, "-m", "dynedge", "serve", str(run), "--data", str(data), "--port", "0"]
        self.command, self.core = [*command, *options], core

    def __enter__(self) -> Service:
        with on_core(self.core):
            self.process = subprocess.Popen(self.command, stdout=subprocess.PIPE, text=True)
        return self

    @cached_property
    def port(self) -> int:
        """Printed once the service is ready."""
        assert self.process.stdout
        return int(self.process.stdout.readline().split()[0].rsplit(":", 1)[1])

    def __exit__(self, *error: object) -> None:
        self.process.terminate()
        self.process.wait()

    def mib(self) -> float:
        """Resident memory."""
        match = re.search(r"VmRSS:\s+(\d+) kB", Path(f"/proc/{self.process.pid}/status").read_text())
        return int(match[1]) / 1024 if match else 0.0

    def cpu_seconds(self) -> float:
        """CPU time so far."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@contextmanager
def on_core(core: int | None) -> Iterator[None]:
    """Context in which this process, and what it starts, runs on one core."""
    cores = os.sched_getaffinity(0)
    if core is not None:
        os.sched_setaffinity(0, {core})
    yield
    os.sched_setaffinity(0, cores)


def core_pairs() -> list[tuple[int, int]]:
    """Returns pairs of this process's cores: the two threads of a physical core where there are such."""
    free, pairs = sorted(os.sched_getaffinity(0)), list[tuple[int, int]]()
    for core in list(free):
        siblings = _siblings(core) & set(free) - {core}
        if core in free and siblings:
            pairs.append((core, min(siblings)))
            free = [other for other in free if other not in pairs[-1]]
    half = len(free) // 2
    return pairs + list(zip(free[:half], free[half : 2 * half], strict=True))


def _siblings(core: int) -> set[int]:
    path = Path(f"/sys/devices/system/cpu/cpu{core}/topology/thread_siblings_list")
    if not path.exists():
        return set()
    ranges = [part.split("-") for part in path.read_text().strip().split(",")]
    return {core for ends in ranges for core in range(int(ends[0]), int(ends[-1]) + 1)}


def answers(requests: Coroutine[Any, Any, Responses]) -> Responses:
    """In an event loop whose timers are not rounded up to milliseconds, as those of epoll are."""
    with asyncio.Runner(loop_factory=lambda: asyncio.SelectorEventLoop(selectors.SelectSelector())) as runner:
        return runner.run(requests)


Responses = list[tuple[str, int, float]]  # kind of request, status (0: no response), latency in seconds


async def load(service: Service, log: EventLog, seconds: float, rate: float, connections: int) -> Responses:
    rng, due = random.Random(seconds * rate), 0.0
    planned: asyncio.Queue[tuple[float, str, bytes]] = asyncio.Queue()
    users = log.user_ids.take(range(min(log.num_users, 5000)))
    items = log.item_ids.take(range(min(log.num_items, 5000)))
    timestamp = float(log.time[-1])
    while (due := due + rng.expovariate(rate)) < seconds:
        timestamp += 1 / rate
        planned.put_nowait((due, *request(rng, users, items, timestamp)))
    responses: Responses = []
    started = time.perf_counter()
    await asyncio.gather(*(connection(service.port, planned, started, responses) for _ in range(connections)))
    return responses


def request(
    rng: random.Random, users: list[int | str], items: list[int | str], timestamp: float
) -> tuple[str, bytes]:
    kind, user = rng.randrange(10), quote(str(rng.choice(users)), safe="")
    if kind < 5:
        return "recommend", get(f"/users/{user}/recommendations?k=10")
    if kind < 8:
        events = [
            {"user_id": str(rng.choice(users)), "item_id": str(rng.choice(items)), "timestamp": timestamp}
            for _ in range(rng.choice([1, 1, 1, 1, 20]))
        ]
        return "events", post("/events", {"events": events})
    if kind < 9:
        return "similar", get(f"/items/{quote(str(rng.choice(items)), safe='')}/similar?k=10")
    return "ten users", post("/recommendations", {"user_ids": [str(one) for one in rng.choices(users, k=10)]})


def get(path: str) -> bytes:
    return f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".encode()


def post(path: str, body: object) -> bytes:
    text = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nContent-Length: {len(text)}"
    return f"{head}\r\n\r\n".encode() + text


async def connection(
    port: int, planned: asyncio.Queue[tuple[float, str, bytes]], started: float, responses: Responses
) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    while not planned.empty():
        due, kind, raw = planned.get_nowait()
        await asyncio.sleep(max(0.0, started + due - time.perf_counter()))
        status = 0
        try:
            writer.write(raw)
            status = await status_of(reader)
        except (OSError, asyncio.IncompleteReadError):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
        responses.append((kind, status, time.perf_counter() - started - due))
    writer.close()


async def status_of(reader: asyncio.StreamReader) -> int:
    """Reads a response and returns its status."""
    head = await reader.readuntil(b"\r\n\r\n")
    length = re.search(rb"content-length: (\d+)", head, re.IGNORECASE)
    await reader.readexactly(int(length[1]) if length else 0)
    return int(head.split(b" ", 2)[1])


def report(title: str, responses: Responses) -> None:
    statuses = Counter(status for _, status, _ in responses)
    print(f"\n{title}: {len(responses):,} requests, status codes {dict(sorted(statuses.items()))}")
    for kind in (*sorted({kind for kind, *_ in responses}), "all answered"):
        latencies = [
            latency for other, status, latency in responses if status == 200 and kind in (other, "all answered")
        ]
        if latencies:
            p50, p99 = np.percentile(latencies, [50, 99]) * 1000
            longest = max(latencies) * 1000
            print(f"  {kind:14} {len(latencies):7,}   p50 {p50:7.2f} ms   p99 {p99:7.2f} ms   max {longest:8.1f} ms")
    halves = [[latency for _, status, latency in half if status == 200] for half in _halves(responses)]
    if all(halves):
        first, second = (np.median(half) * 1000 for half in halves)
        print(f"  {'p50 by half':14} {first:.2f} ms, then {second:.2f} ms")
    refused = [latency for _, status, latency in responses if status in (429, 503)]
    if refused:
        print(f"  {'refused':14} {len(refused):7,}   p50 {np.percentile(refused, 50) * 1000:7.2f} ms")


def _halves(responses: Responses) -> tuple[Responses, Responses]:
    """The responses of the first and of the second half of the time: users' histories are longer in the second."""
    return responses[: len(responses) // 2], responses[len(responses) // 2 :]


def benchmark_replicas(
    root: Path, log: EventLog, run: Path, most: int, readers: int, seconds: float, rounds: int
) -> None:
    """Reads per second of 1, 2, 4, … replicas that share a stream, each with a client process of its own."""
    sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
    from serving.redis_server import RedisServer

    (root / "redis").mkdir()
    users = [str(user) for user in log.user_ids.take(range(min(log.num_users, 5000)))]
    items = [str(item) for item in log.item_ids.take(range(min(log.num_items, 5000)))]
    counts = [count for count in (2**k for k in range(10)) if count < most] + [most]
    pairs: list[tuple[int | None, int | None]] = [*core_pairs()]
    cores = f"{len(os.sched_getaffinity(0))} cores"
    if len(pairs) < most:
        pairs, cores = [(None, None)] * most, f"{cores}, too few for {most} replicas and their clients to scale"
    print(f"{rounds} rounds of {seconds:g} s each; {cores}")
    rates: dict[int, list[float]] = {count: [] for count in counts}
    with RedisServer(root / "redis") as redis, ExitStack() as stack:
        with Service(run, root / "first") as first:
            _ = first.port  # it has compiled the kernels, on all cores
        options = "--journal", redis.url("events")
        replicas = [Service(run, root / "data", *options, core=core) for core, _ in pairs[:most]]
        services = [stack.enter_context(replica) for replica in replicas]
        ports = [service.port for service in services]
        pool = stack.enter_context(get_context("spawn").Pool(most))
        sender = EventSender(ports, users, items, float(log.time[-1]))
        for count in [most, *counts * rounds]:  # the first is the warm-up
            work = [(port, users, readers, seconds, core) for port, (_, core) in zip(ports, pairs, strict=False)]
            reading = pool.starmap_async(read_as_fast_as_answered, work[:count], chunksize=1)
            while not reading.ready():
                sender.send()
                reading.wait(0.05)
            rates[count].append(sum(reading.get()) / seconds)
            print(f"{count} replicas asked: {rates[count][-1]:,.0f} reads/s", flush=True)
        del rates[most][0]
        print(f"{sender.sent:,} events sent")
    for count, of_rounds in rates.items():
        scaled = [rate / one for rate, one in zip(of_rounds, rates[1], strict=True)]
        shown = " ".join(f"{rate:,.0f}" for rate in of_rounds)
        print(f"{count} replicas: {np.median(of_rounds):8,.0f} reads/s ({shown}), {np.median(scaled):.2f} times one")


class EventSender:
    """Sends random events one by one, to each replica in turn."""

    def __init__(self, ports: list[int], users: list[str], items: list[str], newest: float) -> None:
        self._ports, self._users, self._items, self._newest, self.sent = ports, users, items, newest, 0

    def send(self) -> None:
        self.sent += 1
        event = {"user_id": random.choice(self._users), "item_id": random.choice(self._items)}
        body = {"events": [event | {"timestamp": self._newest + 0.05 * self.sent}]}
        asyncio.run(send_once(self._ports[self.sent % len(self._ports)], post("/events", body)))


def read_as_fast_as_answered(port: int, users: list[str], readers: int, seconds: float, core: int | None) -> int:
    """Number of recommendations answered with status 200 in this time; the client is on `core`."""

    async def read_all() -> int:
        deadline = time.perf_counter() + seconds
        return sum(await asyncio.gather(*(_read(port, users, deadline, seed) for seed in range(readers))))

    with on_core(core):
        return asyncio.run(read_all())


async def _read(port: int, users: list[str], deadline: float, seed: int) -> int:
    rng, answered = random.Random(seed), 0
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    while time.perf_counter() < deadline:
        writer.write(get(f"/users/{quote(rng.choice(users), safe='')}/recommendations?k=10"))
        answered += await status_of(reader) == 200
    writer.close()
    return answered


async def send_once(port: int, raw: bytes) -> int:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(raw)
    status = await status_of(reader)
    writer.close()
    return status


def benchmark_observe(events: int) -> None:
    """Session.observe without a journal: in batches, and one event at a time, as a step and as windows."""
    with tempfile.TemporaryDirectory(prefix="serve-") as folder:
        log, run = train(Path(folder), "demo", events)
        session, at = Session.open(run), len(log) * 8 // 10
        sent = [
            Event(str(log.user_ids[u]), str(log.item_ids[i]), t)
            for u, i, t in zip(log.user[at:].tolist(), log.item[at:].tolist(), log.time[at:].tolist(), strict=True)
        ]
        step, windows = "one compiled step", "as windows"  # the latter without models/edge/event_step.py
        for size, count, how in ((1000, 5000, windows), (1, 2000, step), (1, 500, windows), (1, 2000, step)):
            compiled = how == step
            EventStep.supports = staticmethod(lambda model, compiled=compiled: compiled)  # type: ignore[method-assign]
            for event in sent[:50]:
                session.observe([event])
            batch, sent = sent[:count], sent[count:] + sent[:count]
            started, busy = time.perf_counter(), time.process_time()
            for k in range(0, count, size):
                session.observe(batch[k : k + size])
            rates = count / (time.perf_counter() - started), count / (time.process_time() - busy)
            print(
                f"observe, {size:5} at a time, {how:17}: {rates[0]:10,.0f} events/s; "
                f"{rates[1]:10,.0f} per second of CPU time"
            )
        benchmark_recommend(session)
        benchmark_growth(log, run)


def benchmark_growth(log: EventLog, run: Path, rounds: int = 5) -> None:
    """Session.top_items after more events: random ones, so that every item follows every other, or the log's own."""
    rng, rows, sessions = random.Random(0), np.arange(min(log.num_users, 200)), dict[tuple[str, int], Session]()
    users, items = log.user_ids.take(range(log.num_users)), log.item_ids.take(range(log.num_items))
    for how in ("random events", "events of the log, again and again"):
        for count in (2_000, 64_000, 256_000, 1_024_000, 2_048_000):
            session, time_of_event = Session.open(run), float(log.time[-1])
            for start in range(0, count, 4096):
                chosen = range(start, min(start + 4096, count))
                pairs = [(int(log.user[k % len(log)]), int(log.item[k % len(log)])) for k in chosen]
                if how == "random events":
                    pairs = [(rng.randrange(len(users)), rng.randrange(len(items))) for _ in chosen]
                session.observe([Event(str(users[u]), str(items[i]), time_of_event + start) for u, i in pairs])
            sessions[how, count] = session
    times = {key: float("inf") for key in sessions}
    for _ in range(rounds):
        for key, session in sessions.items():
            busy = time.process_time()
            for row in rows:
                session.top_items(rows[row : row + 1], 10)
            times[key] = min(times[key], (time.process_time() - busy) / len(rows))
    for (how, count), seconds in times.items():
        print(f"best 10 for one user after {count:7,} {how}: {1000 * seconds:6.3f} ms of CPU time")


def benchmark_recommend(session: Session, rounds: int = 3) -> None:
    """Session.top_items of one user and of ten: the recurrence's part as a compiled step and by tensor operations."""
    rows = np.arange(min(len(session.users), 300))
    step, tensors = "one compiled step", "tensor operations"  # the latter without models/edge/query_step.py
    supports, times = QueryStep.supports, dict[tuple[int, str], list[float]]()
    for how in [step, tensors] * (rounds + 1):
        QueryStep.supports = staticmethod(supports if how == step else lambda model: False)  # type: ignore[method-assign]
        for size in (1, 10):
            busy, batches = time.process_time(), np.array_split(rows, len(rows) // size)
            for batch in batches:
                session.top_items(batch, 10)
            times.setdefault((size, how), []).append((time.process_time() - busy) / len(batches))
    QueryStep.supports = staticmethod(supports)  # type: ignore[method-assign]
    for (size, how), seconds in times.items():  # the first round compiles
        what = f"best 10 of {len(session.items):,} items, {size:2} users"
        print(f"{what}, {how:17}: {1000 * min(seconds[1:]):6.3f} ms of CPU time")


def benchmark_search(queries: int = 50) -> None:
    """Exact top 10 of `edge`: every item has a state; the count memory has 20,000 events."""
    for items in (60_000, 1_000_000):
        rng = np.random.default_rng(0)
        user, item = rng.integers(0, 1000, 20_000), (items * rng.random(20_000) ** 3).astype(np.int64)
        log = EventLog.from_arrays(user, item, 60.0 * np.arange(20_000), num_users=1000, num_items=items)
        torch.manual_seed(0)
        model = Edge.create(EdgeConfig(), log, len(log), 0).eval()
        with torch.no_grad():
            model.weight.fill_(0.2)
            state = model.start()
            model.observe(Window(log, range(len(log))), state)
            state["recurrence.item"].normal_(std=0.4)
            state["recurrence.item_moved"].fill_(True)
            search, now, times = QuantizedSearch(model, state, items), float(log.time[-1]), []
            for query_user in range(queries):
                started, busy = time.perf_counter(), time.process_time()
                base, query = model.query_vector(query_user, now, state)
                scores, _ = search.top_k(base, query, 10, state)
                times.append((time.perf_counter() - started, time.process_time() - busy))
                if query_user < 3:
                    scores_of_all = model.score_query(
                        torch.tensor([query_user]), torch.tensor([now], dtype=torch.float64), None, state
                    )[0]
                    torch.testing.assert_close(scores, scores_of_all.topk(10).values, atol=1e-4, rtol=1e-4)
        ms = 1000 * np.array(times)
        p50, p99, cpu = np.median(ms[:, 0]), np.percentile(ms[:, 0], 99), np.median(ms[:, 1])
        print(f"top 10 of {items:9,}: p50 {p50:6.2f} ms, p99 {p99:6.2f} ms; {cpu:6.2f} ms of CPU time")


if __name__ == "__main__":
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    main()
