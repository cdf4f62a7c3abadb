"""Test MRR of runs with online learning, at fixed factors of the learning rates, against frozen parameters.

    python benchmarks/online.py RUN… [--rates 0,0.1,0.3,1,3] [--window 300]

`dynedge evaluate RUN --protocol online` chooses the factor on validation events; this prints all of them, with the
paired difference to the frozen parameters on the test events and its 95 % interval over users.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

from machine_info import describe_machine

from dynedge.evaluation.metrics import mean
from dynedge.evaluation.summary import difference
from dynedge.runs.evaluate_run import evaluate_run
from dynedge.runs.online_evaluation import open_learner
from dynedge.training.online import RATES, WINDOW, rank_online


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", type=Path, nargs="+")
    parser.add_argument("--rates", default=",".join(f"{rate:g}" for rate in RATES))
    parser.add_argument("--window", type=int, default=WINDOW)
    arguments = parser.parse_args()
    print(describe_machine())
    for run in arguments.runs:
        frozen = evaluate_run(run, quiet=True)
        valid, (test, users) = frozen.part("valid")[0], frozen.part("test")
        print(f"{run.name:30} frozen       validation MRR {mean('mrr', valid):.4f}, test {mean('mrr', test):.4f}")
        events = range(frozen.ranges["valid"].start, frozen.ranges["test"].stop)
        for rate in map(float, arguments.rates.split(",")):
            start = time.perf_counter()
            ranks = rank_online(open_learner(run, rate), frozen.log, events, window=arguments.window)
            seconds, online = time.perf_counter() - start, ranks[len(valid) :]
            low, high = difference(online, test, users)["ci95"]
            gain = f"{mean('mrr', online) - mean('mrr', test):+.4f} [{low:+.4f}, {high:+.4f}]"
            print(
                f"{run.name:30} online × {rate:<4g} validation MRR {mean('mrr', ranks[: len(valid)]):.4f}, test "
                f"{mean('mrr', online):.4f}, {gain}, "
                f"Recall@10 {mean('recall@10', online):.4f}, {seconds:.0f} s",
                flush=True,
            )


if __name__ == "__main__":
    main()
