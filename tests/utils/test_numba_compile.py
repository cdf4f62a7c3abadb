"""The cache key of compiled functions: everything the machine code depends on changes it, and nothing else does."""

import importlib.util
import os
import subprocess
import sys
import tempfile
import textwrap

import pytest

from dynedge.errors import DataError
from dynedge.utils import numba_compile
from dynedge.utils.numba_compile import cache_folder, compiled, source_key

CONSTANTS = """
SCALE = 3
TABLE = (1, 2, 3)
MODE = "sum"
"""
HELPER = """
from constants import SCALE, TABLE
from dynedge.utils.numba_compile import compiled


@compiled
def helper(x):
    return SCALE * x + TABLE[0]
"""
KERNEL = '''
from helper import helper
from constants import MODE
from dynedge.utils.numba_compile import compiled


@compiled
def kernel(x, start=0):
    """Adds up the results of a function of another module."""
    total = start
    for k in range(x):
        total += helper(k)
    if MODE == "none":
        return 0
    return total
'''


@pytest.fixture
def write(tmp_path, monkeypatch):
    """Writes the three modules with changes, imports them anew and returns the kernel."""
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)

    def written(constants=CONSTANTS, helper=HELPER, kernel=KERNEL):
        modules = {}
        for name, text in {"constants": constants, "helper": helper, "kernel": kernel}.items():
            path = tmp_path / f"{name}.py"
            path.write_text(text)
            spec = importlib.util.spec_from_file_location(name, path)
            modules[name] = importlib.util.module_from_spec(spec)
            monkeypatch.setitem(sys.modules, name, modules[name])
            spec.loader.exec_module(modules[name])
        return modules["kernel"].kernel

    return written


def replaced(text, old, new):
    assert old in text
    return text.replace(old, new)


@pytest.mark.parametrize(
    "changes",
    [
        {"constants": replaced(CONSTANTS, "SCALE = 3", "SCALE = 4")},
        {"constants": replaced(CONSTANTS, "(1, 2, 3)", "(2, 2, 3)")},
        {"constants": replaced(CONSTANTS, '"sum"', '"none"')},
        {"helper": replaced(HELPER, "SCALE * x +", "SCALE * x -")},
        {"helper": replaced(HELPER, "TABLE[0]", "TABLE[1]")},
        {"helper": replaced(HELPER, "@compiled", "@compiled(fastmath=True)")},
        {"kernel": replaced(KERNEL, "start=0", "start=1")},
        {"kernel": replaced(KERNEL, 'MODE == "none"', 'MODE == "sum"')},
        {"kernel": replaced(KERNEL, "return 0", "return 1")},
    ],
    ids=lambda changes: next(iter(changes)),
)
def test_a_change_of_a_constant_or_of_a_callee_changes_the_key(write, changes):
    assert source_key(write()) != source_key(write(**changes))


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"kernel": replaced(KERNEL, "Adds up the results of a function of another module.", "Another docstring.")},
        {"kernel": replaced(KERNEL, "    total = start\n", "    # why\n\n    total = start  # a comment\n")},
        {"kernel": "\n\n\nUNRELATED = 7\n" + KERNEL},
        {"helper": "# moved down\n\n\n" + HELPER + "\n\nOTHER = 5\n"},
        {"constants": CONSTANTS + "UNUSED = 9\n"},
    ],
    ids=["nothing", "docstring", "comment", "lines", "callee's lines", "unused constant"],
)
def test_docstrings_comments_and_line_numbers_do_not_change_the_key(write, changes):
    assert source_key(write()) == source_key(write(**changes))


def test_the_order_of_sets_does_not_change_the_key():
    flags = [f"flag{k}" for k in range(50)]
    keys = set()
    for order in (flags, flags[::-1], sorted(flags, key=hash)):
        dispatcher = compiled(lambda x: x)
        dispatcher.targetoptions = {"nogil": True, "fastmath": set(order), "mixed": frozenset([None, 3, "a"])}
        keys.add(source_key(dispatcher))
    assert len(keys) == 1


def test_code_in_a_folder_of_another_user_is_not_loaded(tmp_path, monkeypatch):
    monkeypatch.setenv("DYNEDGE_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(numba_compile.tempfile, "gettempdir", lambda: str(tmp_path))
    assert numba_compile.cache_folder.__wrapped__() == tmp_path / "cache"
    monkeypatch.setattr(os, "getuid", lambda: os.stat(tmp_path).st_uid + 1)
    with pytest.raises(DataError, match="set DYNEDGE_CACHE_DIR"):
        numba_compile.cache_folder.__wrapped__()


def test_recursion_and_cycles_end(write):
    text = replaced(
        KERNEL, "    total = start\n", "    if x > 99:\n        return kernel(x - 1)\n    total = start\n"
    )
    assert source_key(write(kernel=text)) != source_key(write())


@pytest.mark.slow
def test_keys_agree_between_processes(tmp_path):
    (tmp_path / "fast.py").write_text(
        "from dynedge.utils.numba_compile import compiled\n"
        "@compiled(fastmath={'nnan', 'ninf', 'nsz', 'arcp', 'contract', 'afn', 'reassoc'})\n"
        "def add(x, y): return x + y if x in (1, 2) else y\n"
    )
    script = "import fast; from dynedge.utils.numba_compile import source_key; print(source_key(fast.add))"
    keys = {run(tmp_path, script, PYTHONHASHSEED=str(seed)) for seed in (1, 2, 3)}
    assert len(keys) == 1


@pytest.mark.slow
def test_an_entry_is_used_again_only_while_nothing_it_depends_on_has_changed(tmp_path):
    modules = {"constants": CONSTANTS, "helper": HELPER, "kernel": KERNEL}
    script = textwrap.dedent(
        """
        from kernel import kernel
        print(kernel(3), sum(kernel.stats.cache_hits.values()))
        """
    )

    def result(**changes):
        for name, text in {**modules, **changes}.items():
            (tmp_path / f"{name}.py").write_text(text)
        return run(tmp_path, script, DYNEDGE_CACHE_DIR=str(tmp_path / "cache")).split()

    assert result() == ["12", "0"]
    assert result(kernel=replaced(KERNEL, "Adds up", "# Sums")) == ["12", "1"], "read from the cache"
    assert result(constants=replaced(CONSTANTS, "SCALE = 3", "SCALE = 4")) == ["15", "0"], "compiled again"


FIELDS = """
from typing import NamedTuple
from dynedge.utils.numba_compile import compiled


class Pair(NamedTuple):
    first: float
    second: float


@compiled
def kernel(pairs):
    return 10 * pairs[0].first + pairs[0].second
"""


@pytest.mark.slow
def test_an_entry_is_not_used_after_fields_of_an_argument_have_changed_places(tmp_path):
    script = "from fields import Pair, kernel; print(kernel((Pair(first=1.0, second=2.0),)))"
    swapped = replaced(FIELDS, "    first: float\n    second: float", "    second: float\n    first: float")
    for text in (FIELDS, swapped):
        (tmp_path / "fields.py").write_text(text)
        assert run(tmp_path, script, DYNEDGE_CACHE_DIR=str(tmp_path / "cache")) == "12.0"


def run(folder, script, **environment):
    path = os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1", **environment}
    return subprocess.run(
        [sys.executable, "-c", script], env=environment, check=True, capture_output=True, text=True
    ).stdout.strip()


@pytest.mark.parametrize("home", ["no home", "a file"])
def test_without_a_usable_home_the_cache_is_in_the_temporary_folder(monkeypatch, tmp_path, home):
    (tmp_path / "file").touch()
    monkeypatch.delenv("DYNEDGE_CACHE_DIR", raising=False)
    monkeypatch.setattr(
        os.path, "expanduser", lambda path: path if home == "no home" else str(tmp_path / "file" / "x")
    )
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    cache_folder.cache_clear()
    try:
        assert cache_folder() == tmp_path / f"dynedge-kernels-{os.getuid()}"
    finally:
        cache_folder.cache_clear()


def test_without_any_writable_folder_the_message_says_what_to_set(monkeypatch, tmp_path):
    (tmp_path / "file").touch()
    monkeypatch.setenv("DYNEDGE_CACHE_DIR", str(tmp_path / "file" / "x"))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "file"))
    cache_folder.cache_clear()
    try:
        with pytest.raises(DataError, match="set DYNEDGE_CACHE_DIR to a folder"):
            cache_folder()
    finally:
        cache_folder.cache_clear()
