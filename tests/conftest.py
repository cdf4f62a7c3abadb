"""Shared by all tests: hypothesis without deadlines (a first call compiles), the same examples every time."""

import os
import subprocess
import sys

import pytest
from hypothesis import settings

# Threads that wait for work should not keep a core from the other processes that tests start.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

settings.register_profile("dynedge", deadline=None, derandomize=True, database=None)
settings.load_profile("dynedge")


@pytest.fixture(autouse=True, scope="module")
def _all_models():
    """A file of tests may put models of its own into the registry: they are gone after it."""
    from dynedge.models import registry

    before = registry.entries()
    yield
    registry.use_only(before)


@pytest.fixture(scope="session")
def runs_folder(tmp_path_factory):
    """Folder of the runs that several tests share; each is trained once (serving/small_run.py)."""
    return tmp_path_factory.mktemp("runs")


@pytest.fixture
def verb(capsys):
    """Run `dynedge …` in this process, with the toy models: verb("train", …) -> exit code, stdout, stderr."""
    from training import toy_model as toy

    from dynedge import cli
    from dynedge.cli import compare, evaluate, train  # noqa: F401

    toy.register()

    def run(*arguments):
        capsys.readouterr()
        code = cli.run([str(argument) for argument in arguments])
        told = capsys.readouterr()
        return code, told.out, told.err

    return run


@pytest.fixture
def dynedge():
    """Run a verb as a user would: dynedge("info", folder) -> the finished process."""

    def run(*arguments, **more):
        command = [sys.executable, "-m", "dynedge", *map(str, arguments)]
        environment = {**os.environ, "PYTHONWARNINGS": "error"}
        done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False, **more)
        assert "Traceback" not in done.stderr, done.stderr
        return done

    return run


@pytest.fixture(scope="session")
def place(tmp_path_factory):
    """Where runs are made, once each."""
    return tmp_path_factory.mktemp("runs")
