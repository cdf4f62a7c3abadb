"""A service that is killed again and again while clients send events, and whether anything was lost by it.

Run as a program it is a nursery: a process with everything imported and compiled, which forks services. It reads a
line "RUN DATA EVERY" (a snapshot every so many events) and answers with the new service's process id and port.
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


class Nursery:
    """with Nursery() as nursery: service = nursery.start(run, data)"""

    def __enter__(self):
        paths = os.pathsep.join([str(TESTS), os.environ.get("PYTHONPATH", "")])
        environment = {**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"}
        command = [sys.executable, str(Path(__file__)), "nursery"]
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
        told = self.process.stdout.readline()
        assert told, "the nursery is gone"
        return tuple(int(part) for part in told.split())


@dataclass
class Client(threading.Thread):
    """Sends its events in order, each request again until it is answered; now and then an answered one once more."""

    batches: list
    port: list  # of the service that is there now; may be 0
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
        draw = random.Random(self.seed)
        for k, batch in enumerate(self.batches):
            self.send(batch)
            self.acknowledged.update(event["event_id"] for event in batch)
            if k and draw.random() < self.duplicates:
                self.sent_twice += len(again := self.batches[draw.randrange(k)])
                self.send(again)

    def send(self, batch):
        body = json.dumps({"events": batch})
        while True:
            connection = HTTPConnection("127.0.0.1", self.port[0], timeout=20)
            try:
                connection.request("POST", "/events", body, {"Content-Type": "application/json"})
                answer = connection.getresponse()
                told = json.loads(answer.read())
                if answer.status == 200:
                    assert told["accepted"] + told["duplicates"] == len(batch)
                    return
                self.refused.append((answer.status, told))
                assert answer.status == 503, told
            except (OSError, HTTPException, ValueError):
                time.sleep(0.01)
            finally:
                connection.close()


def storm(
    run, data, events, kills, *, clients=3, together=20, every=500, duplicates=0.05, seed=0, say=lambda text: 0
):
    """Send the events by several clients while the service is killed; what the clients were told, and how it went."""
    draw = random.Random(seed)
    batches, at = [], 0
    while at < len(events):
        size = draw.randint(1, 2 * together)
        batches.append([_told(event) for event in events[at : at + size]])
        at += size
    port = [0]
    senders = [Client(batches[k::clients], port, duplicates, seed + k) for k in range(clients)]
    total, lives, killed = len(events), [], 0

    def acknowledged():
        return sum(len(sender.acknowledged) for sender in senders)

    with Nursery() as nursery:
        nursery.start(run, data.with_name(data.name + "-warm"), every)  # compiled once the answer is there
        for sender in senders:
            sender.start()
        while killed < kills or any(sender.is_alive() for sender in senders):
            began = time.monotonic()
            process, port[0] = nursery.start(run, data, every)
            lives.append(time.monotonic() - began)
            # At any moment: spread over the events still to come, some of them before the first is answered.
            left, done = kills - killed, acknowledged()
            until = done + draw.random() * min(2 / (left + 1), 0.9) * (total - done) if left else total + 1
            while acknowledged() < until and any(sender.is_alive() for sender in senders):
                time.sleep(0.001 + 0.004 * draw.random())
            if left:
                os.kill(process, signal.SIGKILL)
                killed += 1
                say(f"kill {killed}: {acknowledged():,} events acknowledged")
            else:
                os.kill(process, signal.SIGTERM)
    told = set().union(*(sender.acknowledged for sender in senders))
    return {
        "acknowledged": told,
        "sent_twice": sum(sender.sent_twice for sender in senders),
        "kills": killed,
        "starts": lives,
    }


def _told(event):
    return {"user_id": event.user, "item_id": event.item, "timestamp": event.time, "event_id": event.event_id}


def nursery():
    from serving.small_run import open_live

    from dynedge.inference.event_input import Event
    from dynedge.serving import engine as engines
    from dynedge.serving.process import listen

    warm, children = False, []
    for line in sys.stdin:
        run, data, every = line.rstrip("\n").split("\t")
        if not warm:
            live = open_live(Path(run))
            live.observe([Event(str(live.users[0]), str(live.items[0]), live.coverage.last_time)])
            del live
            gc.freeze()
            warm = True
            print(0, 0, flush=True)
            continue
        while children:
            os.waitpid(children.pop(), 0)  # it was killed, and may take a moment to be gone
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            engines.EVERY_EVENTS = int(every)
            os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
            os.dup2(writing, 1)
            listen(engines.Engine(Path(run), Path(data)), "127.0.0.1", 0, None)
            os._exit(0)
        os.close(writing)
        children.append(child)
        with os.fdopen(reading) as said:
            address = said.readline().split()[0]
        print(child, address.rsplit(":", 1)[1], flush=True)
    for child in children:
        os.waitpid(child, 0)


if __name__ == "__main__":
    nursery()
