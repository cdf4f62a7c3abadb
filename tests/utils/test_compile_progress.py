"""Lines about compiling kernels in a first run."""

from types import SimpleNamespace

import pytest

from dynedge.utils import compile_progress, progress
from dynedge.utils.compile_progress import CompileProgress


@pytest.fixture
def compile_kernel(monkeypatch):
    """Compiles a kernel that takes some seconds, with another inside; `missing` kernels are not cached after it."""
    now = SimpleNamespace(seconds=0.0, missing=100)
    monkeypatch.setattr(compile_progress.time, "monotonic", lambda: now.seconds)
    monkeypatch.setattr(progress, "kernels_compiled", 0)
    listener = CompileProgress(lambda: now.missing)

    def compile_kernel(seconds, missing):
        listener.on_start(None)
        listener.on_start(None)
        now.seconds, now.missing = now.seconds + seconds, missing
        listener.on_end(None)
        listener.on_end(None)

    return compile_kernel


def test_a_first_run_says_how_long_compiling_takes_and_how_far_it_is(compile_kernel, monkeypatch, capsys):
    monkeypatch.setattr(progress, "show_compiling", True)
    for seconds, missing in ((0.5, 100), (1.5, 100), (4, 90), (9, 75), (20, 30)):
        compile_kernel(seconds, missing)
    assert capsys.readouterr().err.splitlines() == [
        "compiling kernels (once, about 32 s)",
        "compiling kernels: 25 done, at most 75 more",
        "compiling kernels: 70 done, at most 30 more",
    ]
    assert progress.kernels_compiled == 5


def test_modules_that_are_imported_later_have_kernels_too(compile_kernel, monkeypatch, capsys):
    monkeypatch.setattr(progress, "show_compiling", True)
    for seconds, missing in ((2, 100), (10, 80), (10, 150), (10, 130)):
        compile_kernel(seconds, missing)
    assert capsys.readouterr().err.splitlines()[1:] == [
        "compiling kernels: 20 done, at most 80 more",
        "compiling kernels: 20 done, at most 150 more",
        "compiling kernels: 40 done, at most 130 more",
    ]


def test_programs_other_than_the_command_line_compile_silently(compile_kernel, capsys):
    compile_kernel(60, 90)
    assert capsys.readouterr().err == ""
