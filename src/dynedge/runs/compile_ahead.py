"""Compiles kernels in a second process while the first one starts to train: in the first run only.

Training compiles the kernels of a step first. Meanwhile this process ranks a few validation events and answers a
query with the untrained model: the first process finds those kernels in the cache at the end of its first epoch.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from subprocess import DEVNULL, PIPE

import torch

from dynedge.config import to_toml
from dynedge.data.log import EventLog, read_log
from dynedge.evaluation.protocol import calibrate, rank_events
from dynedge.runs.run_config import RunConfig, build_model, parse_config
from dynedge.utils import progress
from dynedge.utils.numba_compile import count_missing_kernels

EVENTS = 20
WORTHWHILE = 50  # kernels that are missing; a process takes a few seconds to start
MOST_EVENTS = 1_000_000  # of a log: the untrained model takes memory too

_running = False


@contextmanager
def compiling_ahead(config: RunConfig, log: EventLog) -> Iterator[None]:
    """Compiles in a second process during the block, if it is worthwhile; `config` is resolved."""
    global _running  # noqa: PLW0603
    if _running or log.path is None or not _is_worthwhile(config, log):
        yield
        return
    command = [sys.executable, "-m", "dynedge.runs.compile_ahead", os.fspath(log.path)]
    # What fails here fails in the first process too, which then reports it.
    process = subprocess.Popen(command, stdin=PIPE, stdout=DEVNULL, stderr=DEVNULL, text=True)
    try:
        _running = True
        assert process.stdin
        process.stdin.write(to_toml(config))
        process.stdin.close()
        yield
    finally:
        _running = False
        process.terminate()
        process.wait()


def _is_worthwhile(config: RunConfig, log: EventLog) -> bool:
    fits = config.training.device == "cpu" and len(log) <= MOST_EVENTS and len(os.sched_getaffinity(0)) > 1
    return progress.show_compiling and fits and count_missing_kernels() >= WORTHWHILE


def rank_and_query(config: RunConfig, log: EventLog) -> None:
    """Ranks a few validation events, as training and evaluation do, and answers a query."""
    torch.set_num_threads(1)
    model = build_model(config, log).eval()
    _, valid = config.training.train_valid_ranges(log)
    protocol = config.training.validation_protocol(log)
    state = model.start()
    calibrate(model, log, valid[:EVENTS], state, protocol=protocol)
    rank_events(model, log, valid[EVENTS : 2 * EVENTS], state, protocol=protocol)
    with torch.no_grad():
        model.score_query(torch.zeros(1, dtype=torch.long), torch.tensor([log.time[-1]]), None, state)


if __name__ == "__main__":
    rank_and_query(parse_config(sys.stdin.read(), "the config"), read_log(sys.argv[1]))
