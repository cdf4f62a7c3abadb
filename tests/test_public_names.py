"""The public API: adding or removing a name is a decision, made here."""

import subprocess
import sys

import dynedge

NAMES = [
    "DataError",
    "DynedgeError",
    "Edge",
    "EventLog",
    "Split",
    "UsageError",
    "__version__",
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


def test_the_command_line_loads_no_torch_numba_or_arrow_for_help():
    code = (
        "import sys; sys.argv = ['dynedge', '--help']\n"
        "from dynedge.cli import main\n"
        "try: main()\n"
        "except SystemExit: pass\n"
        "print([m for m in ('torch', 'numba', 'pyarrow', 'matplotlib') if m in sys.modules], file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr.strip() == "[]"
    assert "prepare" in done.stdout
