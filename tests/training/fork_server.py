"""Runs commands in forks of a process that has imported torch, so that each starts quickly and can be killed.

Run as a program it is that process: python tests/training/fork_server.py [toys]
"""

import json
import math
import os
import subprocess
import sys
import time
from pathlib import Path


class ForkServer:
    """Starts commands one at a time. With `toys` the toy models are the only ones (toy_model.py)."""

    def __init__(self, *, toys=False):
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        command = [sys.executable, __file__, *(["toys"] if toys else [])]
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
        )

    def run(self, *arguments, **kill):
        """Runs a command; returns its exit code, or -9 if it was killed.

        signal=9, after=seconds: sends the signal that many seconds after the start, or after `when`, a file, exists,
        or after `new_in`, a folder, holds a name that it did not hold at the start.
        """
        self.process.stdin.write(json.dumps({"arguments": [*map(str, arguments), "--json"], **kill}) + "\n")
        self.process.stdin.flush()
        while not (line := self.process.stdout.readline().strip()).lstrip("-").isdigit():
            assert line.startswith("{"), self.process.stderr.read()
        return int(line)

    def close(self):
        """Ends the server; returns what the commands have written to stderr."""
        self.process.stdin.close()
        stderr = self.process.stderr.read()
        assert self.process.wait() == 0, stderr
        for pipe in (self.process.stdout, self.process.stderr):
            pipe.close()
        return stderr


def serve(toys):
    """Forks a process for each line of stdin and prints its exit code.

    Imports happen once, in this process. Nothing is computed before a fork, because autograd does not survive one.
    """
    import torch

    from dynedge.cli import compare, data, demo, embed, evaluate, main, plan, prepare, recommend, train  # noqa: F401
    from dynedge.data.ingest import pipeline  # noqa: F401
    from dynedge.models import registry
    from dynedge.runs import train_run as _  # noqa: F401

    if toys:
        from training import toy_model

        toy_model.register()
    else:
        registry.entries()
    for line in sys.stdin:
        command = json.loads(line)
        child = os.fork()
        if not child:
            sys.argv[1:] = command["arguments"]
            torch.set_num_threads(1)
            main()
        when, after = Path(command.get("when", "/")), command.get("after", math.inf)
        folder = Path(command.get("new_in", ""))
        known = _names(folder) if "new_in" in command else None
        deadline = None
        while True:
            if deadline is None and when.exists() and (known is None or _names(folder) - known):
                deadline = time.monotonic() + after
            done, status = os.waitpid(child, os.WNOHANG)
            if done:
                break
            if deadline is not None and time.monotonic() >= deadline:
                os.kill(child, command["signal"])
                deadline = math.inf
            time.sleep(0.002)
        print(os.waitstatus_to_exitcode(status), flush=True)


def _names(folder):
    return set(os.listdir(folder)) if folder.exists() else set()


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[1]))
    serve("toys" in sys.argv[1:])
