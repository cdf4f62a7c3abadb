"""Damages the files of logs, runs and services at random and checks that every command answers with a sentence.

    python benchmarks/fuzz_files.py                                  # 3,000 cases, about half an hour
    python benchmarks/fuzz_files.py --cases 300 --models edge --seed 1

No case may crash, hang or be called a bug (tests/fuzz_files.py); the exit code is 1 if one does.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

import torch
from machine_info import describe_machine

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from fuzz_files import MODELS, fuzz, make_targets


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=int, default=3000, help="Number of damaged copies.")
    parser.add_argument("--models", nargs="*", default=list(MODELS), choices=list(MODELS), help="Models of the runs.")
    parser.add_argument("--seed", type=int, default=0, help="Seed of the damages.")
    args = parser.parse_args()
    torch.set_num_threads(1)  # the processes are forked: the parent must not have threads
    print(describe_machine())
    with tempfile.TemporaryDirectory(prefix="dynedge-fuzz-") as folder:
        place, scratch, started = Path(folder), Path(folder) / "scratch", time.perf_counter()
        scratch.mkdir()
        targets = make_targets(place, args.models)
        failures, outcomes = fuzz(targets, args.cases, scratch, args.seed)
        seconds = time.perf_counter() - started
    for failure in failures:
        print(" | ".join(failure))
    print(f"{args.cases} cases on {len(targets)} folders in {seconds:.0f} s: {outcomes}, {len(failures)} failures")
    sys.exit(bool(failures))


if __name__ == "__main__":
    main()
