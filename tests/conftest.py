"""Shared fixtures, and a hypothesis profile without deadlines (a first call compiles) and with fixed examples."""

import os
import subprocess
import sys

import pytest
from hypothesis import settings

# Waiting OpenMP threads sleep instead of spinning, so that they do not slow down processes that tests start.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

settings.register_profile("dynedge", deadline=None, derandomize=True, database=None)
settings.load_profile("dynedge")


@pytest.fixture(autouse=True, scope="module")
def _restored_registry():
    """Restores the model registry after each test module, which may register models of its own."""
    from dynedge.models import registry

    entries = registry.entries()
    yield
    registry.use_only(entries)


@pytest.fixture(scope="session")
def runs_folder(tmp_path_factory):
    """Folder of the runs that several tests share; each is trained once (serving/small_run.py)."""
    return tmp_path_factory.mktemp("runs")


@pytest.fixture(scope="session")
def redis_server(tmp_path_factory):
    """A redis-server that several tests share; each uses a stream of its own."""
    from serving.redis_server import RedisServer, require_redis

    require_redis()
    with RedisServer(tmp_path_factory.mktemp("redis")) as server:
        yield server


@pytest.fixture
def toy_models():
    """Makes the toy models the only registered ones; `toy` is the default."""
    from training import toy_model

    toy_model.register()


@pytest.fixture
def cli_run(capsys):
    """Runs a command in this process: cli_run("train", …) returns exit code, stdout and stderr."""
    from dynedge import cli

    def run(*arguments):
        capsys.readouterr()
        code = cli.run([str(argument) for argument in arguments])
        printed = capsys.readouterr()
        return code, printed.out, printed.err

    return run


@pytest.fixture
def cli_process():
    """Runs a command in a new process, warnings as errors: cli_process("info", folder) returns the process."""

    def run(*arguments, **options):
        command = [sys.executable, "-m", "dynedge", *map(str, arguments)]
        environment = {**os.environ, "PYTHONWARNINGS": "error"}
        done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False, **options)
        assert "Traceback" not in done.stderr, done.stderr
        return done

    return run


@pytest.fixture(scope="session")
def place(tmp_path_factory):
    """Where runs are made, once each."""
    return tmp_path_factory.mktemp("runs")


@pytest.fixture
def poisoned():
    """Fills the memory of torch.empty with NaN, so that unwritten numbers show; restores the number of threads."""
    yield from _poisoned(warn_only=False)


@pytest.fixture
def poisoned_anywhere():
    """The same where the reference may run on a GPU, by torch operators that are not deterministic there."""
    yield from _poisoned(warn_only=True)


def _poisoned(warn_only):
    import torch

    threads = torch.get_num_threads()
    torch.use_deterministic_algorithms(True, warn_only=warn_only)
    yield
    torch.use_deterministic_algorithms(False)
    torch.set_num_threads(threads)
