"""The public API: adding or removing a name is a decision, made here."""

import os
import subprocess
import sys

import dynedge

NAMES = [
    "DataError",
    "DynedgeError",
    "Edge",
    "EventLog",
    "Model",
    "Split",
    "UsageError",
    "__version__",
    "append",
    "compare",
    "cut_windows",
    "prepare",
    "read_log",
    "synthesize",
]


def test_the_public_names_are_these_and_all_resolve():
    assert sorted(dynedge.__all__) == NAMES
    assert dir(dynedge) == NAMES
    assert all(getattr(dynedge, name) is not None for name in NAMES)


def test_importing_dynedge_loads_nothing_heavy():
    heavy = "torch", "numba", "pyarrow", "numpy", "matplotlib", "typer"
    code = f"import sys, dynedge, dynedge.errors; print([m for m in {heavy} if m in sys.modules])"
    assert subprocess.check_output([sys.executable, "-c", code], text=True).strip() == "[]"


def test_threads_of_torch_sleep_unless_the_user_decides_otherwise():
    code = "import dynedge, os; print(os.environ['OMP_WAIT_POLICY'])"
    for given, expected in ((None, "PASSIVE"), ("ACTIVE", "ACTIVE")):
        others = {name: value for name, value in os.environ.items() if name != "OMP_WAIT_POLICY"}
        chosen = {} if given is None else {"OMP_WAIT_POLICY": given}
        output = subprocess.check_output([sys.executable, "-c", code], text=True, env=others | chosen)
        assert output.strip() == expected
