"""A redis-server for tests and benchmarks, with an append-only file that is synced at every write."""

import shutil
import socket
import subprocess
import time

import pytest

MISSING = "redis-server is not installed; Debian has it in the package redis-server"


class RedisServer:
    """with RedisServer(folder) as server: RedisJournal(server.url("events"))"""

    def __init__(self, folder, **settings):
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port = free.getsockname()[1]
        settings = {"save": "", "appendonly": "yes", "appendfsync": "always"} | settings
        options = {"port": self.port, "bind": "127.0.0.1", "dir": folder, "loglevel": "warning"} | settings
        flags = [str(part) for key, value in options.items() for part in (f"--{key}", value)]
        self.command = ["redis-server", *flags]
        self.starts = 0

    def __enter__(self):
        self.start()
        return self

    def __exit__(self, *error):
        self.kill()

    def url(self, stream):
        return f"redis://127.0.0.1:{self.port}/{stream}"

    @property
    def client(self):
        import redis

        return redis.Redis(port=self.port, decode_responses=True)

    def start(self):
        import redis

        self.process = subprocess.Popen(self.command, stdout=subprocess.DEVNULL)
        self.starts += 1
        deadline = time.monotonic() + 60
        with self.client as client:
            while time.monotonic() < deadline:
                try:
                    return client.ping()
                except redis.RedisError:  # not yet there, or loading
                    time.sleep(0.01)
        raise AssertionError("redis-server does not answer")

    def kill(self):
        """Ends it as a crash does: what it acknowledged is in its file."""
        self.process.kill()
        self.process.wait()


def require_redis():
    pytest.importorskip("redis", reason="the extra `redis` is not installed")
    if shutil.which("redis-server") is None:
        pytest.skip(MISSING)
