"""Background learning of a service: refreshes the run in a process of its own, and reloads it if it has improved."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from typing import Any

from dynedge.serving.engine import Engine

POLL_SECONDS = 0.2


class BackgroundLearner(threading.Thread):
    """After every `every` applied events runs `dynedge refresh`; requests are answered meanwhile."""

    def __init__(self, engine: Engine, every: int) -> None:
        super().__init__(name="dynedge-learner", daemon=True)
        self.engine, self.every = engine, every
        self._stopping = threading.Event()

    def stop(self) -> None:
        """An interrupted refresh is continued by the next one."""
        self._stopping.set()
        self.join()

    def run(self) -> None:
        learned = self.engine.applied
        while not self._stopping.wait(POLL_SECONDS):
            if self.engine.applied - learned >= self.every:
                learned = self.engine.applied
                self._learn()

    def _learn(self) -> None:
        refreshed = self._refresh()
        if refreshed is None:
            return
        if not refreshed["accepted"]:
            self.engine.candidates_dropped += 1
            return
        try:
            self.engine.reload()
            self.engine.candidates_accepted += 1
        except Exception as error:
            print(f"dynedge: {self.engine.run} was not reloaded: {error}", file=sys.stderr)

    def _refresh(self) -> dict[str, Any] | None:
        """The outcome of `dynedge refresh`; None if it failed, or was interrupted by `stop`."""
        folders = [str(self.engine.run), "--data", str(self.engine.data)]
        command = [sys.executable, "-m", "dynedge", "refresh", *folders, "--json"]
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}  # the service needs the other cores
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL, env=environment
        )
        while True:
            try:
                out, errors = process.communicate(timeout=POLL_SECONDS)
                break
            except subprocess.TimeoutExpired:
                if self._stopping.is_set():
                    process.terminate()
        if process.returncode == 0:
            return dict(json.loads(out))
        if not self._stopping.is_set():
            message = errors.decode(errors="replace").strip().splitlines()[-1:]
            print(f"dynedge: no refresh of {self.engine.run}: {' '.join(message)}", file=sys.stderr)
        return None
