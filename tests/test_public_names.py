"""The public API: adding or removing a name is a decision, made here."""

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
