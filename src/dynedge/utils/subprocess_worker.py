"""Work in a process of its own: its memory is its own, and if it fails, be it for want of memory, nobody else does.

Processes are forked off a server that has torch loaded and has computed nothing, so that each starts in a moment.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
import threading
import traceback
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path
from signal import SIGKILL, Signals
from typing import Any

from dynedge.errors import DynedgeError
from dynedge.utils.signals import Stopped

LOADED = ["dynedge.runs.train_run", "dynedge.runs.evaluate_run", "dynedge.models.registry"]
OOM = "-oom-"


class Failed(Exception):  # noqa: N818  (as Stopped: it happened)
    """The work did not end well; one sentence says why. Want of memory begins with -oom-."""


def apart(work: Callable[..., None], *arguments: Any) -> None:
    """Do work(*arguments) elsewhere and wait for it. A signal that reaches us is handed on, and its end awaited."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(LOADED)
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=_do, args=(theirs, work, arguments))
    process.start()
    theirs.close()
    try:
        process.join()
    except BaseException:
        process.terminate()
        process.join()
        raise
    with ours:
        told = _received(ours)
    if told is not None:
        raise Failed(told)
    if process.exitcode == -SIGKILL:
        raise Failed(f"{OOM} its process was killed, most likely by the system for want of memory.")
    if process.exitcode:
        code = process.exitcode
        raise Failed(f"its process ended with {Signals(-code).name if code < 0 else f'exit code {code}'}.")


def _received(ours: Connection) -> str | None:
    try:
        return str(ours.recv())
    except EOFError:
        return None


def _do(theirs: Connection, work: Callable[..., None], arguments: tuple[Any, ...]) -> None:
    os.setpgrp()  # Ctrl-C reaches the one who waits, and from there us: once
    _end_with_parent()
    with suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000")  # where memory ends, the system takes us and nobody else
    try:
        work(*arguments)
    except Stopped as stopped:
        sys.exit(stopped.exit_code)
    except Exception as error:
        if os.environ.get("DYNEDGE_DEBUG"):
            traceback.print_exc()
        theirs.send(_sentence(error))


def _end_with_parent() -> None:
    """Who is killed outright can hand nothing on: whoever works for it notices, and holds no lock any longer."""
    parent = multiprocessing.parent_process()
    assert parent is not None

    def watch() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def _sentence(error: Exception) -> str:
    text = " ".join(str(error).split())
    if isinstance(error, DynedgeError):
        return text
    if isinstance(error, MemoryError) or "out of memory" in text or "can't allocate memory" in text:
        return f"{OOM} not enough memory ({text.removesuffix('.') or 'MemoryError'})."
    return f"this is a bug in dynedge ({type(error).__name__}: {text}); DYNEDGE_DEBUG=1 shows where."
