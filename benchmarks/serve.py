"""A service under load: how fast it answers, what it does with four times as much, and how fast its parts are.

    python benchmarks/serve.py                       # 300 mixed requests/s for 5 minutes, then 1,200/s for a minute
    python benchmarks/serve.py --seconds 30
    python benchmarks/serve.py --parts               # observe, and the exact best 10 of 60,000 and of 1,000,000 items

A run is trained on a made-up log and served by `dynedge serve`, as a process of its own on this machine. Requests are
sent at moments drawn beforehand (a Poisson process), whatever became of the ones before, by one process with
--connections connections; a request that finds none free waits, and its time counts from when it was due. Of ten
requests five ask for recommendations, three send 1 to 20 events, one asks for similar items, one for ten users.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import re
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from urllib.parse import quote

import numpy as np
import torch
from machine import machine

from dynedge.data.log import EventLog
from dynedge.data.synthetic import synthesize
from dynedge.data.windows import Window
from dynedge.inference.event_input import Event
from dynedge.inference.quantized_search import QuantizedSearch
from dynedge.inference.session import Session
from dynedge.models.registry import BUILT_IN as MODELS


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rate", type=float, default=300.0, help="requests a second")
    parser.add_argument("--seconds", type=float, default=300.0)
    parser.add_argument("--connections", type=int, default=128)
    parser.add_argument("--recipe", default="demo", help="of the log, as `dynedge synth` names them")
    parser.add_argument("--events", type=int, default=50_000, help="of the log")
    parser.add_argument("--parts", action="store_true", help="the parts alone")
    args = parser.parse_args()
    print(f"{machine()}; torch {torch.__version__}, {torch.get_num_threads()} threads")
    if args.parts:
        observing(args.events)
        searching()
        return
    with tempfile.TemporaryDirectory(prefix="serve-") as folder:
        place = Path(folder)
        log, run = trained(place, args.recipe, args.events)
        with Service(run, place / "data") as service:
            asyncio.run(load(service, log, min(5.0, args.seconds), args.rate, args.connections))  # to warm up
            for times, seconds in ((1, args.seconds), (4, max(args.seconds / 5, 5.0))):
                before = service.mib()
                found = asyncio.run(load(service, log, seconds, times * args.rate, args.connections))
                tell(f"{times * args.rate:,.0f} requests/s for {seconds:,.0f} s", found, before, service.mib())


def trained(place: Path, recipe: str, events: int) -> tuple[EventLog, Path]:
    log = synthesize(recipe, place / "log", events=events, quiet=True)
    train = [sys.executable, "-m", "dynedge", "train", str(place / "log"), "--out", str(place / "run")]
    subprocess.run([*train, "--epochs", "1", "--windows", "40"], check=True, capture_output=True)
    return log, place / "run"


class Service:
    """`dynedge serve` as a process of its own."""

    def __init__(self, run: Path, data: Path) -> None:
        self.command = [sys.executable, "-m", "dynedge", "serve", str(run), "--data", str(data), "--port", "0"]

    def __enter__(self) -> Service:
        self.process = subprocess.Popen(self.command, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout
        self.port = int(self.process.stdout.readline().split()[0].rsplit(":", 1)[1])
        return self

    def __exit__(self, *error: object) -> None:
        self.process.terminate()
        self.process.wait()

    def mib(self) -> float:
        found = re.search(r"VmRSS:\s+(\d+) kB", Path(f"/proc/{self.process.pid}/status").read_text())
        return int(found[1]) / 1024 if found else 0.0


Found = list[tuple[str, int, float]]  # what was asked, the status (0: no answer), seconds


async def load(service: Service, log: EventLog, seconds: float, rate: float, connections: int) -> Found:
    draw, due = random.Random(seconds * rate), 0.0
    planned: asyncio.Queue[tuple[float, str, bytes]] = asyncio.Queue()
    users = log.user_ids.take(range(min(log.num_users, 5000)))
    items = log.item_ids.take(range(min(log.num_items, 5000)))
    moment = float(log.time[-1])
    while (due := due + draw.expovariate(rate)) < seconds:
        moment += 1 / rate
        planned.put_nowait((due, *request(draw, users, items, moment)))
    found: Found = []
    began = time.perf_counter()
    await asyncio.gather(*(connection(service.port, planned, began, found) for _ in range(connections)))
    return found


def request(draw: random.Random, users: list[int | str], items: list[int | str], moment: float) -> tuple[str, bytes]:
    kind, user = draw.randrange(10), quote(str(draw.choice(users)), safe="")
    if kind < 5:
        return "recommend", get(f"/users/{user}/recommendations?k=10")
    if kind < 8:
        events = [
            {"user_id": str(draw.choice(users)), "item_id": str(draw.choice(items)), "timestamp": moment}
            for _ in range(draw.choice([1, 1, 1, 1, 20]))
        ]
        return "events", post("/events", {"events": events})
    if kind < 9:
        return "similar", get(f"/items/{quote(str(draw.choice(items)), safe='')}/similar?k=10")
    return "ten users", post("/recommendations", {"user_ids": [str(one) for one in draw.choices(users, k=10)]})


def get(path: str) -> bytes:
    return f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".encode()


def post(path: str, body: object) -> bytes:
    text = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nContent-Length: {len(text)}"
    return f"{head}\r\n\r\n".encode() + text


async def connection(port: int, planned: asyncio.Queue[tuple[float, str, bytes]], began: float, found: Found) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    while not planned.empty():
        due, kind, raw = planned.get_nowait()
        await asyncio.sleep(max(0.0, began + due - time.perf_counter()))
        status = 0
        try:
            writer.write(raw)
            head = await reader.readuntil(b"\r\n\r\n")
            length = re.search(rb"content-length: (\d+)", head, re.IGNORECASE)
            await reader.readexactly(int(length[1]) if length else 0)
            status = int(head.split(b" ", 2)[1])
        except (OSError, asyncio.IncompleteReadError):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
        found.append((kind, status, time.perf_counter() - began - due))
    writer.close()


def tell(title: str, found: Found, before: float, after: float) -> None:
    statuses = Counter(status for _, status, _ in found)
    print(f"\n{title}: {len(found):,} requests, answers {dict(sorted(statuses.items()))}")
    for kind in (*sorted({kind for kind, *_ in found}), "all answered"):
        taken = [took for what, status, took in found if status == 200 and kind in (what, "all answered")]
        if taken:
            p50, p99 = np.percentile(taken, [50, 99]) * 1000
            most = max(taken) * 1000
            print(f"  {kind:14} {len(taken):7,}   p50 {p50:7.2f} ms   p99 {p99:7.2f} ms   most {most:8.1f} ms")
    refused = [took for _, status, took in found if status in (429, 503)]
    if refused:
        print(f"  {'refused':14} {len(refused):7,}   p50 {np.percentile(refused, 50) * 1000:7.2f} ms")
    print(f"  memory of the service {before:,.0f} -> {after:,.0f} MiB ({after / before - 1:+.1%})")


def observing(events: int) -> None:
    """Session.observe alone, without a journal: batches, and one at a time."""
    with tempfile.TemporaryDirectory(prefix="serve-") as folder:
        log, run = trained(Path(folder), "demo", events)
        session, at = Session.open(run), len(log) * 8 // 10
        sent = [
            Event(str(log.user_ids[u]), str(log.item_ids[i]), t)
            for u, i, t in zip(log.user[at:].tolist(), log.item[at:].tolist(), log.time[at:].tolist(), strict=True)
        ]
        for size, count in ((1000, 5000), (1, 2000)):
            session.observe(sent[:size])
            piece, sent = sent[:count], sent[count:] + sent[:count]
            began, busy = time.perf_counter(), time.process_time()
            for k in range(0, count, size):
                session.observe(piece[k : k + size])
            rates = count / (time.perf_counter() - began), count / (time.process_time() - busy)
            print(f"observe, {size:5} at a time: {rates[0]:10,.0f} events/s; {rates[1]:10,.0f} a second of CPU time")


def searching(asked: int = 50) -> None:
    """The exact best 10 by `edge`: every item has a state, an id's vector and a bias; it remembers 20,000 events."""
    for items in (60_000, 1_000_000):
        draw = np.random.default_rng(0)
        user, item = draw.integers(0, 1000, 20_000), (items * draw.random(20_000) ** 3).astype(np.int64)
        log = EventLog.from_arrays(user, item, 60.0 * np.arange(20_000), num_users=1000, num_items=items)
        torch.manual_seed(0)
        entry = MODELS["edge"]
        model = entry.create(entry.config(), log, len(log), 0).eval()
        with torch.no_grad():
            model.weight.fill_(0.2)
            model.recurrence.candidate.normal_(std=0.3)
            state = model.start()
            model.observe(Window(log, range(len(log))), state)
            state["recurrence.item"].normal_(std=0.4)
            state["recurrence.item_moved"].fill_(True)
            search, now, times = QuantizedSearch(model, state, items), float(log.time[-1]), []
            for who in range(asked):
                began, busy = time.perf_counter(), time.process_time()
                base, query = model.asked(who, now, state)
                scores, _ = search.top_k(base, query, 10, model, state)
                times.append((time.perf_counter() - began, time.process_time() - busy))
                if who < 3:
                    every = model.peek(torch.tensor([who]), torch.tensor([now], dtype=torch.float64), None, state)[0]
                    torch.testing.assert_close(scores, every.topk(10).values, atol=1e-4, rtol=1e-4)
        took = 1000 * np.array(times)
        middle, most, cpu = np.median(took[:, 0]), np.percentile(took[:, 0], 99), np.median(took[:, 1])
        print(f"best 10 of {items:9,}: p50 {middle:6.2f} ms, p99 {most:6.2f} ms; {cpu:6.2f} ms of CPU time")


if __name__ == "__main__":
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    main()
