"""Kills services repeatedly while clients send events, and reports what they acknowledge.

Run as a program, this file is a fork server: a process with everything imported and compiled, which forks services.
It reads JSON lines (run, data, events between snapshots, URL of a journal, process id of a killed service to wait
for) and answers with the new service's process id and port. A service that ends by SIGTERM leaves a hash of its state
in DATA/PROCESS.state.
"""

import gc
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from dataclasses import dataclass, field
from functools import partial
from http.client import HTTPConnection, HTTPException
from pathlib import Path

TESTS = Path(__file__).parents[1]


class ForkServer:
    """with ForkServer(run) as server: process, port = server.start(data, every)"""

    def __init__(self, run):
        self.run = run

    def __enter__(self):
        paths = os.pathsep.join([str(TESTS), os.environ.get("PYTHONPATH", "")])
        environment = {**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"}
        command = [sys.executable, str(Path(__file__))]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        self.process = subprocess.Popen(command, env=environment, **pipes)
        self.start(None, 0)  # answers once everything is compiled
        return self

    def __exit__(self, *error):
        self.process.stdin.close()
        self.process.wait()
        self.process.stdout.close()

    def start(self, data, every, journal=None, killed=None):
        self.process.stdin.write(json.dumps([str(self.run), str(data), every, journal, killed]) + "\n")
        self.process.stdin.flush()
        answer = self.process.stdout.readline()
        assert answer, "the fork server is gone"
        return tuple(int(part) for part in answer.split())


@dataclass
class Client(threading.Thread):
    """Sends its events in order; repeats a request until it succeeds, and sometimes one that has succeeded."""

    batches: list
    ports: list  # of the running services; 0 for one that is not running
    duplicates: float
    seed: int
    acknowledged: set = field(default_factory=set)
    refused: list = field(default_factory=list)
    sent_twice: int = 0

    def __post_init__(self):
        super().__init__(daemon=True)
        self.rng = random.Random(self.seed)

    def __hash__(self):
        return id(self)

    def run(self):
        for k, batch in enumerate(self.batches):
            self.send(batch)
            self.acknowledged.update(event["event_id"] for event in batch)
            if k and self.rng.random() < self.duplicates:
                self.sent_twice += len(again := self.batches[self.rng.randrange(k)])
                self.send(again)

    def send(self, batch):
        body = json.dumps({"events": batch})
        while True:
            connection = HTTPConnection("127.0.0.1", self.rng.choice(self.ports), timeout=20)
            try:
                connection.request("POST", "/events", body, {"Content-Type": "application/json"})
                response = connection.getresponse()
                content = json.loads(response.read())
                if response.status == 200:
                    assert content["accepted"] + content["duplicates"] == len(batch)
                    return
                self.refused.append((response.status, content))
                assert response.status == 503, content
                time.sleep(0.01)
            except (OSError, HTTPException, ValueError):
                time.sleep(0.01)
            finally:
                connection.close()


def storm(
    run, data, events, kills, *, clients=3, batch_size=20, every=500, duplicates=0.05, seed=0, report=lambda text: 0
):
    """Sends events from several clients while the service is killed; returns acknowledged ids and counts."""
    ports, start_seconds = [0], []
    sending = Sending(events, ports, clients, batch_size, duplicates, seed)
    with ForkServer(run) as server:
        sending.start()
        killed, process = 0, None
        while killed < kills or sending.active:
            started = time.monotonic()
            process, ports[0] = server.start(data, every, killed=process)
            start_seconds.append(time.monotonic() - started)
            left = kills - killed
            sending.wait(left)
            os.kill(process, signal.SIGKILL if left else signal.SIGTERM)
            killed += bool(left)
            report(f"kill {killed}: {sending.acknowledged:,} events acknowledged")
    return sending.outcome() | {"kills": killed, "start_seconds": start_seconds}


def replica_storm(
    run,
    data,
    redis,
    events,
    *,
    replicas=3,
    kills=6,
    restarts=2,
    clients=3,
    batch_size=20,
    every=500,
    duplicates=0.05,
    seed=0,
    report=lambda text: 0,
):
    """Sends events to replicas while they and Redis are killed and restarted; returns what `storm` does.

    In the end all replicas are at the same position; `states` has the hash of the state of each.
    """
    ports, processes, start_seconds, url = [0] * replicas, [None] * replicas, [], redis.url("events")
    sending = Sending(events, ports, clients, batch_size, duplicates, seed)
    failures = ["replica"] * kills + ["redis"] * restarts
    sending.rng.shuffle(failures)
    with ForkServer(run) as server:

        def start(k):
            started = time.monotonic()
            processes[k], ports[k] = server.start(data, every, url, processes[k])
            start_seconds.append(time.monotonic() - started)

        for k in range(replicas):
            start(k)
        sending.start()
        for number, failure in enumerate(failures):
            sending.wait(len(failures) - number)
            if failure == "redis":
                redis.kill()
                time.sleep(sending.rng.random() * 0.2)
                redis.start()
            else:
                k = sending.rng.randrange(replicas)
                os.kill(processes[k], signal.SIGKILL)
                ports[k] = 0
                start(k)
            report(f"{failure} killed: {sending.acknowledged:,} events acknowledged")
        sending.wait(0)
        with redis.client as client:
            end = client.xinfo_stream("events")["last-generated-id"]
        deadline = time.monotonic() + 60
        while any(_position(port) != end for port in ports):
            assert time.monotonic() < deadline, "a replica does not reach the end of the stream"
            time.sleep(0.02)
        for process in processes:
            os.kill(process, signal.SIGTERM)
    states = [(data / f"{process}.state").read_text() for process in processes]
    return sending.outcome() | {"start_seconds": start_seconds, "states": states}


def _position(port):
    connection = HTTPConnection("127.0.0.1", port, timeout=20)
    try:
        connection.request("GET", "/ready")
        return json.loads(connection.getresponse().read()).get("position")
    finally:
        connection.close()


class Sending:
    """Clients that send events in requests of random sizes to one of the services at `ports`."""

    def __init__(self, events, ports, clients, batch_size, duplicates, seed):
        self.rng, self.total = random.Random(seed), len(events)
        batches, at = [], 0
        while at < len(events):
            size = self.rng.randint(1, 2 * batch_size)
            batches.append([_event_body(event) for event in events[at : at + size]])
            at += size
        self.clients = [Client(batches[k::clients], ports, duplicates, seed + k) for k in range(clients)]

    def start(self):
        for client in self.clients:
            client.start()

    @property
    def acknowledged(self):
        return sum(len(client.acknowledged) for client in self.clients)

    @property
    def active(self):
        return any(client.is_alive() for client in self.clients)

    def wait(self, left):
        """Waits for a random time; `left` such waits are spread over the remaining events, and 0 is until the end."""
        done = self.acknowledged
        until = done + self.rng.random() * min(2 / (left + 1), 0.9) * (self.total - done) if left else self.total + 1
        while self.acknowledged < until and self.active:
            time.sleep(0.001 + 0.004 * self.rng.random())

    def outcome(self):
        acknowledged = set().union(*(client.acknowledged for client in self.clients))
        return {"acknowledged": acknowledged, "sent_twice": sum(client.sent_twice for client in self.clients)}


def _event_body(event):
    return {"user_id": event.user, "item_id": event.item, "timestamp": event.time, "event_id": event.event_id}


def _close(engine, close):
    from serving.small_run import state_hash

    close()
    (engine.data / f"{os.getpid()}.state").write_text(state_hash(engine.session))


def fork_services():
    from dynedge.inference.event_input import Event
    from dynedge.inference.session import Session
    from dynedge.serving import engine as engines
    from dynedge.serving.redis_journal import RedisJournal
    from dynedge.serving.server_process import run_server

    children = set()
    for line in sys.stdin:
        run, data, every, journal, killed = json.loads(line)
        if not every:
            session = Session.open(Path(run))
            session.observe([Event(str(session.users[0]), str(session.items[0]), session.coverage.last_time)])
            del session
            gc.freeze()
            print(0, 0, flush=True)
            continue
        if killed:
            os.waitpid(killed, 0)  # it may take some time to exit
            children.remove(killed)
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            engines.SNAPSHOT_EVENTS = every
            os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
            os.dup2(writing, 1)
            engine = engines.Engine(Path(run), Path(data), RedisJournal(journal) if journal else None)
            engine.close = partial(_close, engine, engine.close)
            run_server(engine, "127.0.0.1", 0, None)
            os._exit(0)
        os.close(writing)
        children.add(child)
        with os.fdopen(reading) as output:
            address = output.readline().split()[0]
        print(child, address.rsplit(":", 1)[1], flush=True)
    for child in children:
        os.waitpid(child, 0)


if __name__ == "__main__":
    fork_services()
