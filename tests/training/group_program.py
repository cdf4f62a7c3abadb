"""Runs commands one after another in each process of a group, so that one launch pays for many checks.

torchrun … tests/training/group_program.py FOLDER: FOLDER/commands.json lists objects with `arguments`, in which
{rank} is replaced, and optionally `kill`: [process, step], a process to kill before that step, unless restarted.
Process r writes FOLDER/results-r.json: for each command its exit code, stdout and stderr.
With a number after FOLDER it forks so many processes itself, which import nothing.
"""

import contextlib
import io
import json
import os
import signal
import socket
import sys
from pathlib import Path

import torch

from dynedge import cli
from dynedge.models import registry
from dynedge.runs import evaluate_run, train_run  # noqa: F401
from dynedge.training import loop
from dynedge.training.segmented_step import SegmentedStep
from dynedge.utils.process_group import is_restarted


class DiesBeforeStep(SegmentedStep):
    rank, step, runs = -1, -1, 0

    def run(self, *arguments):
        if self.group.rank == self.rank and self.runs == self.step:
            os.kill(os.getpid(), signal.SIGKILL)
        self.runs += 1
        return super().run(*arguments)


def main(folder):
    torch.set_num_threads(1)
    rank, results = os.environ["RANK"], []
    for command in json.loads((folder / "commands.json").read_bytes()):
        DiesBeforeStep.rank, DiesBeforeStep.step = (-1, -1) if is_restarted() else command.get("kill", (-1, -1))
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = cli.run([argument.replace("{rank}", rank) for argument in command["arguments"]])
        if DiesBeforeStep.step >= 0:
            sys.exit(code)  # a process that has lost the other
        results.append([code, out.getvalue(), err.getvalue()])
    (folder / f"results-{rank}.json").write_text(json.dumps(results))


def fork(processes):
    """Returns in each of so many new processes; this one waits for them and exits."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    os.environ.update(WORLD_SIZE=str(processes), MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    os.environ.update(TORCHELASTIC_USE_AGENT_STORE="True", TORCHELASTIC_RESTART_COUNT="0")
    children = []
    for rank in range(processes):
        os.environ["RANK"] = str(rank)
        child = os.fork()
        if not child:
            return
        children.append(child)
    # As torchrun's agent does: a store of process 0 would end with its command, and might take along a key that a
    # faster process has set for the next one.
    store = torch.distributed.TCPStore("127.0.0.1", port, is_master=True, wait_for_workers=False)  # noqa: F841
    sys.exit(any(os.waitpid(child, 0)[1] for child in children))


if __name__ == "__main__":
    loop.SegmentedStep = DiesBeforeStep
    cli._register_commands()
    registry.entries()
    if sys.argv[2:]:
        fork(int(sys.argv[2]))
    main(Path(sys.argv[1]))
