"""Kills a service repeatedly while clients send events, and reports what they acknowledge.

Run as a program, this file is a fork server: a process with everything imported and compiled, which forks services.
It reads lines "RUN DATA EVERY" (events between snapshots) and answers with the new service's process id and port.
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
from http.client import HTTPConnection, HTTPException
from pathlib import Path

TESTS = Path(__file__).parents[1]


class ForkServer:
    """with ForkServer() as server: process, port = server.start(run, data, every)"""

    def __enter__(self):
        paths = os.pathsep.join([str(TESTS), os.environ.get("PYTHONPATH", "")])
        environment = {**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"}
        command = [sys.executable, str(Path(__file__))]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        self.process = subprocess.Popen(command, env=environment, **pipes)
        return self

    def __exit__(self, *error):
        self.process.stdin.close()
        self.process.wait()
        self.process.stdout.close()

    def start(self, run, data, every):
        self.process.stdin.write(f"{run}\t{data}\t{every}\n")
        self.process.stdin.flush()
        answer = self.process.stdout.readline()
        assert answer, "the fork server is gone"
        return tuple(int(part) for part in answer.split())


@dataclass
class Client(threading.Thread):
    """Sends its events in order; repeats a request until it succeeds, and sometimes one that has succeeded."""

    batches: list
    port: list  # of the running service; 0 before the first
    duplicates: float
    seed: int
    acknowledged: set = field(default_factory=set)
    refused: list = field(default_factory=list)
    sent_twice: int = 0

    def __post_init__(self):
        super().__init__(daemon=True)

    def __hash__(self):
        return id(self)

    def run(self):
        rng = random.Random(self.seed)
        for k, batch in enumerate(self.batches):
            self.send(batch)
            self.acknowledged.update(event["event_id"] for event in batch)
            if k and rng.random() < self.duplicates:
                self.sent_twice += len(again := self.batches[rng.randrange(k)])
                self.send(again)

    def send(self, batch):
        body = json.dumps({"events": batch})
        while True:
            connection = HTTPConnection("127.0.0.1", self.port[0], timeout=20)
            try:
                connection.request("POST", "/events", body, {"Content-Type": "application/json"})
                response = connection.getresponse()
                content = json.loads(response.read())
                if response.status == 200:
                    assert content["accepted"] + content["duplicates"] == len(batch)
                    return
                self.refused.append((response.status, content))
                assert response.status == 503, content
            except (OSError, HTTPException, ValueError):
                time.sleep(0.01)
            finally:
                connection.close()


def storm(
    run, data, events, kills, *, clients=3, batch_size=20, every=500, duplicates=0.05, seed=0, report=lambda text: 0
):
    """Sends events from several clients while the service is killed; returns acknowledged ids and counts."""
    rng = random.Random(seed)
    batches, at = [], 0
    while at < len(events):
        size = rng.randint(1, 2 * batch_size)
        batches.append([_event_body(event) for event in events[at : at + size]])
        at += size
    port = [0]
    senders = [Client(batches[k::clients], port, duplicates, seed + k) for k in range(clients)]
    total, start_seconds, killed = len(events), [], 0

    def acknowledged():
        return sum(len(sender.acknowledged) for sender in senders)

    with ForkServer() as server:
        server.start(run, data.with_name(data.name + "-warm"), every)  # answers once everything is compiled
        for sender in senders:
            sender.start()
        while killed < kills or any(sender.is_alive() for sender in senders):
            started = time.monotonic()
            process, port[0] = server.start(run, data, every)
            start_seconds.append(time.monotonic() - started)
            # At random times, spread over the remaining events, sometimes before the first is acknowledged.
            left, done = kills - killed, acknowledged()
            until = done + rng.random() * min(2 / (left + 1), 0.9) * (total - done) if left else total + 1
            while acknowledged() < until and any(sender.is_alive() for sender in senders):
                time.sleep(0.001 + 0.004 * rng.random())
            if left:
                os.kill(process, signal.SIGKILL)
                killed += 1
                report(f"kill {killed}: {acknowledged():,} events acknowledged")
            else:
                os.kill(process, signal.SIGTERM)
    acknowledged_ids = set().union(*(sender.acknowledged for sender in senders))
    return {
        "acknowledged": acknowledged_ids,
        "sent_twice": sum(sender.sent_twice for sender in senders),
        "kills": killed,
        "start_seconds": start_seconds,
    }


def _event_body(event):
    return {"user_id": event.user, "item_id": event.item, "timestamp": event.time, "event_id": event.event_id}


def fork_services():
    from dynedge.inference.event_input import Event
    from dynedge.inference.session import Session
    from dynedge.serving import engine as engines
    from dynedge.serving.server_process import run_server

    warm, children = False, []
    for line in sys.stdin:
        run, data, every = line.rstrip("\n").split("\t")
        if not warm:
            session = Session.open(Path(run))
            session.observe([Event(str(session.users[0]), str(session.items[0]), session.coverage.last_time)])
            del session
            gc.freeze()
            warm = True
            print(0, 0, flush=True)
            continue
        while children:
            os.waitpid(children.pop(), 0)  # it was killed, and may take some time to exit
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            engines.SNAPSHOT_EVENTS = int(every)
            os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
            os.dup2(writing, 1)
            run_server(engines.Engine(Path(run), Path(data)), "127.0.0.1", 0, None)
            os._exit(0)
        os.close(writing)
        children.append(child)
        with os.fdopen(reading) as output:
            address = output.readline().split()[0]
        print(child, address.rsplit(":", 1)[1], flush=True)
    for child in children:
        os.waitpid(child, 0)


if __name__ == "__main__":
    fork_services()
