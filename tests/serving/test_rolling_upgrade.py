"""Replicas in processes of their own are moved to another run, one after another, while clients send requests."""

import json
import os
import random
import signal
import threading
import time
from http.client import HTTPConnection
from urllib.parse import quote

import pytest
from serving.kill_service import ForkServer
from serving.redis_server import RedisServer, require_redis
from serving.small_run import make_events, make_run

pytestmark = pytest.mark.slow


def request(port, method, path, body=None):
    connection = HTTPConnection("127.0.0.1", port, timeout=60)
    try:
        connection.request(method, path, body and json.dumps(body), {"Content-Type": "application/json"})
        response = connection.getresponse()
        return response.status, json.loads(response.read())
    finally:
        connection.close()


class Client(threading.Thread):
    """Sends events and queries to one of the replicas in rotation, until all events are sent and `done` is set."""

    def __init__(self, events, ports, done, seed):
        super().__init__()
        self.events, self.ports, self.done, self.rng = events, ports, done, random.Random(seed)
        self.answers, self.accepted = [], 0

    def run(self):
        batches = [self.events[at : at + 3] for at in range(0, len(self.events), 3)]
        while batches or not self.done.is_set():
            if batches:
                keys = "user_id", "item_id", "timestamp", "event_id"
                body = [dict(zip(keys, (*event[:3], event.event_id), strict=True)) for event in batches.pop(0)]
                _, content = self.ask("POST", "/events", {"events": body})
                self.accepted += content.get("accepted", 0)
            user = quote(self.rng.choice(self.events).user, safe="")
            self.ask("GET", f"/users/{user}/recommendations?k=3")

    def ask(self, *what):
        try:
            status, content = request(self.rng.choice(self.ports), *what)
        except OSError as error:
            status, content = repr(error), {}
        self.answers.append((status, what))
        return status, content


def wait_for(condition):
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_rolling_upgrade_drops_no_request(runs_folder, tmp_path):
    """By POST /reload to each replica, and by new replicas in place of old ones that are taken out of rotation."""
    require_redis()
    from dynedge.serving.redis_journal import RedisJournal

    link, data, done = tmp_path / "served", tmp_path / "data", threading.Event()
    link.symlink_to(make_run(runs_folder, "edge"))
    events = make_events(runs_folder, 360)
    (tmp_path / "redis").mkdir()
    with RedisServer(tmp_path / "redis") as redis, ForkServer(link) as server:
        url = redis.url("events")
        replicas = [server.start(data, 10**6, url) for _ in range(2)]
        ports = [port for _, port in replicas]
        clients = [Client(events[k::3], ports, done, k) for k in range(3)]
        for client in clients:
            client.start()
        wait_for(lambda: sum(client.accepted for client in clients) > 30)
        link.unlink()
        link.symlink_to(make_run(runs_folder, "memory"))
        for _, port in replicas:
            status, _ = request(port, "POST", "/reload")
            assert status == 200
        assert [request(port, "GET", "/run")[1]["model"] for port in ports] == ["memory"] * 2
        new, answered = server.start(data, 10**6, url), [len(client.answers) for client in clients]
        ports[0] = new[1]  # as a load balancer does before it stops the old one
        wait_for(lambda: all(len(c.answers) > n + 1 for c, n in zip(clients, answered, strict=True)))
        os.kill(replicas[0][0], signal.SIGTERM)
        done.set()
        for client in clients:
            client.join()
        journal = RedisJournal(url)
        end, count = journal.text(journal.end), journal.count
        journal.close()
        wait_for(lambda: all(request(port, "GET", "/ready")[1]["position"] == end for port in ports))
        for process in (replicas[1][0], new[0]):
            os.kill(process, signal.SIGTERM)
    answers = [answer for client in clients for answer in client.answers]
    assert [answer for answer in answers if answer[0] != 200] == []
    assert sum(client.accepted for client in clients) == len(events) == count
    reloaded, started = ((data / f"{process}.state").read_text() for process in (replicas[1][0], new[0]))
    assert reloaded == started
