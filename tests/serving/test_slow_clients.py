"""Clients that send or read slowly, too much or only half hold up nobody, and are told or disconnected."""

import asyncio
import json
import socket
import threading
import time
from contextlib import suppress

import pytest
import uvicorn
from serving.small_run import make_run
from starlette.responses import PlainTextResponse

from dynedge.serving import middleware, server_process
from dynedge.serving.app import make_app
from dynedge.serving.engine import Engine

BODY = json.dumps({"events": [{"user_id": "u", "item_id": "i", "timestamp": 1709300000}]}).encode()


@pytest.fixture(scope="module")
def port(runs_folder, tmp_path_factory):
    engine = Engine(make_run(runs_folder, "edge"), tmp_path_factory.mktemp("slow") / "data")
    with socket.create_server(("127.0.0.1", 0)) as opened:
        server = uvicorn.Server(server_process.server_config(make_app(engine)))
        serving = threading.Thread(target=server.run, args=([opened],))
        serving.start()
        yield opened.getsockname()[1]
        server.should_exit = True
        serving.join()


@pytest.fixture
def connect(port):
    opened = []

    def connection(first=b""):
        opened.append(socket.create_connection(("127.0.0.1", port), timeout=20))
        opened[-1].sendall(first)
        return opened[-1]

    yield connection
    for one in opened:
        one.close()


def post(length, content=b""):
    head = f"POST /events HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n\r\n"
    return head.encode() + content


def answer(connection):
    """Returns the status of the next answer, 0 if the connection was closed without one."""
    received = connection.recv(65536)
    return int(received.split()[1]) if received else 0


def test_unfinished_bodies_hold_no_places(connect):
    slow = [connect(post(len(BODY), BODY[:5])) for _ in range(2 * middleware.MAX_CONCURRENT_REQUESTS)]
    assert answer(connect(post(len(BODY), BODY))) == 200
    slow[0].sendall(BODY[5:])
    assert answer(slow[0]) == 200


def test_a_body_must_be_complete_in_time(connect, monkeypatch):
    monkeypatch.setattr(middleware, "BODY_SECONDS", 0.3)
    started = connect(post(len(BODY), BODY[:5]))
    never_started = connect(post(len(BODY)))
    chunked = connect(b"POST /events HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n2\r\n{}")
    assert [answer(one) for one in (started, never_started, chunked)] == [408] * 3
    assert started.recv(100) == b""  # closed: the rest of the body would be taken for the next request


def test_unfinished_bodies_may_use_limited_memory(connect, monkeypatch):
    monkeypatch.setattr(middleware, "MAX_BUFFERED_BYTES", 5000)
    slow = [connect(post(10**5, b" " * 2000)) for _ in range(2)]
    time.sleep(0.2)
    assert answer(connect(post(10**5, b" " * 2000))) == 503
    for one in slow:
        one.close()
    time.sleep(0.2)
    assert answer(connect(post(len(BODY), BODY))) == 200


def test_a_body_in_chunks_is_limited_as_a_whole(connect, monkeypatch):
    monkeypatch.setattr(middleware, "MAX_BODY_BYTES", 1000)
    head = b"POST /events HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n"
    client = connect(head + b"258\r\n" + 600 * b" " + b"\r\n")
    time.sleep(0.1)  # so that the service reads the chunks one by one
    client.sendall(b"258\r\n" + 600 * b" " + b"\r\n")
    assert answer(client) == 413


def test_headers_must_be_complete_in_time(connect, monkeypatch):
    monkeypatch.setattr(server_process, "HEADER_SECONDS", 0.3)
    silent, started = connect(), connect(b"GET /health HTTP/1.1\r\nhost")
    used = connect(b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n")
    assert answer(used) == 200
    used.sendall(b"GET /hea")
    assert [answer(one) for one in (silent, started, used)] == [0, 0, 0]


def test_a_client_that_leaves_in_the_middle_of_a_body_is_forgotten(connect):
    for _ in range(3):
        connect(post(len(BODY), BODY[:5])).close()
    assert answer(connect(post(len(BODY), BODY))) == 200


LARGE = b"GET /openapi.json HTTP/1.1\r\nhost: x\r\n\r\n"
UNREAD = 300  # answers of it that fit in no buffer


def test_clients_that_read_nothing_hold_up_nobody():
    """Of the middleware alone: how much the buffers of a connection hold depends on the system."""
    scope = {"type": "http", "method": "GET", "path": "/", "headers": []}
    limited = middleware.AccessMiddleware(PlainTextResponse("answer"), None, (), lambda *_: None)

    async def receive():
        return {"type": "http.request"}

    async def never_read(message):
        await asyncio.Event().wait()

    async def status_beside_deaf_clients():
        deaf = [asyncio.ensure_future(limited(scope, receive, never_read)) for _ in range(100)]
        await asyncio.sleep(0)
        sent = []

        async def read(message):
            sent.append(message)

        await limited(scope, receive, read)
        for client in deaf:
            client.cancel()
        return sent[0]["status"]

    assert asyncio.run(status_beside_deaf_clients()) == 200


def test_a_client_that_reads_nothing_is_disconnected(connect, monkeypatch):
    monkeypatch.setattr(server_process, "READ_SECONDS", 0.2)
    client = connect()
    client.setblocking(False)
    with suppress(BlockingIOError):
        client.sendall(LARGE * UNREAD)
    time.sleep(2.0)
    client.settimeout(20)
    answers = 0
    with suppress(ConnectionResetError):
        while part := client.recv(1 << 20):
            answers += part.count(b"HTTP/1.1 200")
    assert 0 < answers < UNREAD


def test_a_client_that_reads_slowly_gets_everything(connect, monkeypatch):
    monkeypatch.setattr(server_process, "READ_SECONDS", 1.5)
    client, received = connect(LARGE * UNREAD), bytearray()
    while received.count(b"HTTP/1.1 200") < UNREAD:
        part = client.recv(1 << 17)
        assert part
        received += part
        time.sleep(0.04)


@pytest.mark.parametrize(
    "head", [b"GET /health HTTP/1.1\r\nx: ", b"GET /", b"GET /health HTTP/1.1\r\n" + b"a: b\r\n" * 20000]
)
def test_large_headers_are_refused(connect, head):
    client = connect(head)
    with suppress(OSError):  # closed while it sends
        for _ in range(40):
            client.sendall(b"y" * 10_000)
            time.sleep(0.002)
    with suppress(ConnectionResetError):
        assert answer(client) in (400, 431, 0)
    assert answer(connect(post(len(BODY), BODY))) == 200


def test_headers_after_a_body_are_limited_too(connect):
    client = connect(b"POST /events HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n")
    with pytest.raises(OSError):
        for _ in range(100):
            client.sendall(b"x: " + b"y" * 10_000 + b"\r\n")
            time.sleep(0.002)


def test_a_client_that_closes_its_sending_side_is_answered(connect):
    client = connect(post(len(BODY), BODY))
    client.shutdown(socket.SHUT_WR)
    assert answer(client) == 200
    assert client.recv(100) == b""
    unfinished = connect(post(len(BODY), BODY[:5]))
    unfinished.shutdown(socket.SHUT_WR)
    assert answer(unfinished) == 0
