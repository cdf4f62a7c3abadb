"""Progress of long operations: a bar on a terminal, plain lines elsewhere, nothing when quiet."""

import io
import re

import pytest
from rich.console import Console

from dynedge.utils import progress as module
from dynedge.utils.progress import Progress, clock, quantity


@pytest.fixture
def terminal():
    return Console(file=io.StringIO(), force_terminal=True, width=120)


@pytest.fixture
def time(monkeypatch):
    """A clock that moves one second each time it is read."""
    now = iter(range(10_000))
    monkeypatch.setattr(module.time, "monotonic", lambda: float(next(now)))


def drawn(console):
    """The frames that a terminal was sent, as text."""
    return [re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", frame) for frame in re.split(r"\r|\n", console.file.getvalue())]


def test_a_terminal_gets_a_bar_with_rate_elapsed_time_and_time_left(terminal, time):
    with Progress("reading", total=100, unit="rows", console=terminal) as progress:
        progress.advance(25, 2000)
        progress.description = "reading more"
        progress.advance(25, 2000)
    frames = [frame for frame in drawn(terminal) if frame]
    assert re.match(r"reading ━+.* +25% 2\.00 k rows, 1\.00 k/s, 2\.0 s *$", frames[0]), "no time left yet"
    assert any(re.match(r"reading more ━+.* +50% 4\.00 k rows, .*, \d\.0 s left", frame) for frame in frames)
    assert re.match(r"reading more ━+.* +100% 4\.00 k rows, .*/s, \d\.0 s *$", frames[-1]), frames


def test_a_failed_operation_leaves_the_bar_where_it_stopped(terminal, time):
    with pytest.raises(ValueError), Progress("reading", total=100, console=terminal) as progress:
        progress.advance(25)
        raise ValueError
    assert " 25%" in drawn(terminal)[-2]


def test_an_erased_bar_makes_place_for_a_line_and_is_drawn_again(terminal, time):
    progress = Progress("training", total=10, console=terminal)
    progress.advance(1)
    progress.erase()
    before = terminal.file.getvalue()
    assert before.endswith("\x1b[2K"), "the last thing sent clears the line"
    progress.advance(1)
    assert " 20%" in terminal.file.getvalue()[len(before) :]


def test_elsewhere_it_prints_a_line_now_and_then(capsys, monkeypatch, time):
    monkeypatch.setattr(module, "PLAIN_INTERVAL_S", 3.0)
    with Progress("reading", total=10, unit="rows") as progress:
        for _ in range(10):
            progress.advance(1)
    lines = capsys.readouterr().err.splitlines()
    assert re.fullmatch(r"reading:  \d0%, \d rows, 0\.\d+/s, \d\.0 s, [\d.]+ s left", lines[0]), lines
    assert re.fullmatch(r"reading: 100%, 10 rows, .*/s, \d+ s", lines[-1])
    assert len(lines) < 10


def test_the_time_left_is_estimated_from_the_steps_after_kernels_were_compiled(capsys, monkeypatch):
    now = 0.0
    monkeypatch.setattr(module.time, "monotonic", lambda: now)
    progress, lines = Progress("training", total=100), []
    # A first step of 100 s, an ordinary one, one in which another kernel is compiled, and two ordinary ones.
    for seconds, kernels in ((100, 1), (10, 0), (50, 1), (10, 0), (10, 0)):
        now += seconds
        monkeypatch.setattr(module, "kernels_compiled", module.kernels_compiled + kernels)
        progress.advance(10)
        lines.append(capsys.readouterr().err.partition("/s, ")[2].rstrip())
    assert lines == [
        "1:40 min",
        "1:50 min, 1:20 min left",
        "2:40 min",
        "2:50 min, 1:00 min left",
        "3:00 min, 50 s left",
    ]


def test_quiet_and_short_operations_print_nothing(capsys, terminal, time):
    with Progress("reading", total=10, quiet=True, console=terminal) as progress:
        progress.advance(5)
    assert terminal.file.getvalue() == ""
    with Progress("reading", total=10) as progress:
        progress.advance(10)
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(("seconds", "text"), [(0.31, "0.3 s"), (59, "59 s"), (187, "3:07 min"), (7500, "2:05 h")])
def test_durations(seconds, text):
    assert clock(seconds) == text


@pytest.mark.parametrize(
    ("count", "text"), [(987, "987"), (0.25, "0.25"), (12_300, "12.3 k"), (4_560_000, "4.56 M"), (1.2e9, "1.20 G")]
)
def test_quantities(count, text):
    assert quantity(count) == text
