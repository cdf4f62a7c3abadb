"""Test MRR of runs with online learning, at fixed factors of the learning rates, against frozen parameters.

    python benchmarks/online.py RUN… [--rates 0,0.1,0.3,1,3] [--window 300] [--average 0,100]

`dynedge evaluate RUN --protocol online` chooses the factor on validation events; this prints all of them, with the
paired difference to the frozen parameters on the test events and its 95 % interval over users.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import numpy as np
from machine_info import describe_machine

from dynedge.evaluation.metrics import mean
from dynedge.evaluation.summary import difference
from dynedge.runs.evaluate_run import evaluate_run
from dynedge.runs.online_evaluation import open_learner
from dynedge.training.online import AVERAGED_WINDOWS, RATES, WINDOW, rank_online
from dynedge.utils.array_type import Array


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", type=Path, nargs="+")
    parser.add_argument("--rates", default=",".join(f"{rate:g}" for rate in RATES))
    parser.add_argument("--window", type=int, default=WINDOW)
    parser.add_argument("--average", default=str(AVERAGED_WINDOWS), help="Windows of the moving average; 0: none.")
    parser.add_argument(
        "--validation", type=int, default=None, help="Number of validation events ranked, without test events."
    )
    arguments = parser.parse_args()
    print(describe_machine())
    for run in arguments.runs:
        frozen = evaluate_run(run, quiet=True)
        valid, test = frozen.ranges["valid"], frozen.ranges["test"]
        events = range(valid.start, test.stop)
        if arguments.validation:
            events = valid = valid[: arguments.validation]
            test = valid[:0]
        before, users = np.concatenate([frozen.part("valid")[0], frozen.part("test")[0]]), frozen.log.user
        print(f"{run.name:30} frozen                     {figures(before, before, users, valid, test)}")
        for average in map(int, arguments.average.split(",")):
            for rate in map(float, arguments.rates.split(",")):
                start = time.perf_counter()
                learner = open_learner(run, rate, average)
                ranks = rank_online(learner, frozen.log, events, window=arguments.window)
                row = figures(ranks, before, users, valid, test)
                seconds = time.perf_counter() - start
                print(f"{run.name:30} online × {rate:<4g} average {average:4} {row}, {seconds:.0f} s", flush=True)


def figures(ranks: Array, frozen: Array, users: Array, valid: range, test: range) -> str:
    """MRR, and its difference to that of frozen parameters, of validation and of test events."""
    parts = []
    for name, part in (("validation", valid), ("test", test)):
        mine, theirs = (one[part.start - valid.start : part.stop - valid.start] for one in (ranks, frozen))
        if len(part):
            low, high = difference(mine, theirs, np.asarray(users[part.start : part.stop]))["ci95"]
            gain = mean("mrr", mine) - mean("mrr", theirs)
            parts.append(f"{name} MRR {mean('mrr', mine):.4f} {gain:+.4f} [{low:+.4f}, {high:+.4f}]")
    return ", ".join(parts)


if __name__ == "__main__":
    main()
