"""Runs a function in a subprocess and reports its failure as one sentence.

A failure, running out of memory included, does not affect the parent process, and the subprocess's memory is its own.
Subprocesses are forked from a server process that has imported torch and computed nothing, so each starts quickly.
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
from dynedge.utils.signals import StoppedBySignal

PRELOADED = ["dynedge.runs.train_run", "dynedge.runs.evaluate_run", "dynedge.models.registry"]
OOM = "-oom-"


class SubprocessError(Exception):
    """The function failed in its subprocess. The message is one sentence; it starts with -oom- if memory ran out."""


def run_in_subprocess(function: Callable[..., None], *arguments: Any) -> None:
    """Calls function(*arguments) in a subprocess and waits for it.

    If a signal stops this process, the subprocess is terminated, and waited for, first.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOADED)
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_call, args=(sender, function, arguments))
    process.start()
    sender.close()
    try:
        process.join()
    except BaseException:
        process.terminate()
        process.join()
        raise
    with receiver:
        failure = _received(receiver)
    if failure is not None:
        raise SubprocessError(failure)
    if process.exitcode == -SIGKILL:
        raise SubprocessError(f"{OOM} its process was killed, most likely by the system for lack of memory.")
    if process.exitcode:
        code = process.exitcode
        raise SubprocessError(f"its process ended with {Signals(-code).name if code < 0 else f'exit code {code}'}.")


def _received(receiver: Connection) -> str | None:
    try:
        return str(receiver.recv())
    except EOFError:
        return None


def _call(sender: Connection, function: Callable[..., None], arguments: tuple[Any, ...]) -> None:
    os.setpgrp()  # Ctrl-C reaches the parent only, which then terminates this process: one signal, not two
    _exit_with_parent()
    with suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000")  # out of memory, the system kills this process first
    try:
        function(*arguments)
    except StoppedBySignal as stopped:
        sys.exit(stopped.exit_code)
    except Exception as error:
        if os.environ.get("DYNEDGE_DEBUG"):
            traceback.print_exc()
        sender.send(_sentence(error))


def _exit_with_parent() -> None:
    """Ends this process, and releases its locks, when the parent was killed and could not terminate it."""
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
    return f"this is a bug in dynedge ({type(error).__name__}: {text}); DYNEDGE_DEBUG=1 shows the traceback."
