"""Runs the tests of GPU kernels and of training on a GPU in several processes, without other packages.

    python tests/gpu/in_parallel.py            # tests/gpu, and the Triton tests of tests/ops
    python tests/gpu/in_parallel.py -j 4 tests/gpu/test_edge_gpu.py

Compiling takes most of the time on a machine that has not run them, so that the files that compile most are several
processes, which start first. Prints what failed, and ends with 1 if anything did.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).parents[2]
# Number of tests per process, for the slowest files: each test compiles other kernels.
SPLIT = {
    "test_train_gpu.py": 3,
    "test_sampled_softmax_triton.py": 8,
    "test_level_gru_triton.py": 16,
    "test_models_gpu.py": 1,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("paths", nargs="*", help="Test files or folders.")
    parser.add_argument("-j", type=int, default=len(os.sched_getaffinity(0)), help="Processes at a time.")
    args = parser.parse_args()
    began = time.perf_counter()
    with ThreadPoolExecutor(args.j) as pool:
        results = list(pool.map(run, jobs(args.paths or ["tests/gpu", *triton_tests()])))
    failed = sum(code != 0 for code in results)
    print(f"{len(results)} processes, {failed} failed, {time.perf_counter() - began:.0f} s")
    sys.exit(1 if failed else 0)


def triton_tests() -> list[str]:
    return [str(path.relative_to(ROOT)) for path in sorted((ROOT / "tests/ops").glob("test_*_triton.py"))]


def jobs(paths: list[str]) -> list[list[str]]:
    """The tests of each process: those of a file, or a part of them."""
    collected = pytest(["-o", "addopts=", "--collect-only", "-q", *paths])
    if collected.returncode:  # or a misspelt test would leave nothing to fail
        sys.exit(collected.stdout[-3000:] + collected.stderr[-1000:])
    tests = [line for line in collected.stdout.splitlines() if "::" in line]
    by_file: dict[str, list[str]] = {}
    for test in tests:
        by_file.setdefault(test.partition("::")[0], []).append(test)
    split = [(own, size) for name, size in SPLIT.items() for file, own in by_file.items() if Path(file).name == name]
    parts = [own[at : at + size] for own, size in split for at in range(0, len(own), size)]
    return parts + [[file] for file in by_file if Path(file).name not in SPLIT]


def run(tests: list[str]) -> int:
    began, done = time.perf_counter(), pytest(["-q", "-p", "no:cacheprovider", *tests])
    seconds = time.perf_counter() - began
    others = f" and {len(tests) - 1} more" if len(tests) > 1 else ""
    print(f"{'passed' if not done.returncode else 'FAILED'} {seconds:5.0f} s  {tests[0]}{others}", flush=True)
    if done.returncode:
        print(done.stdout[-3000:], done.stderr[-1000:], flush=True)
    return done.returncode


def pytest(arguments: list[str]) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pytest", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


if __name__ == "__main__":
    main()
