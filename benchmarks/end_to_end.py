"""Time and accuracy of every step on a large file: prepare, plan, train, compare.

    python benchmarks/end_to_end.py poker_hands.parquet --work DIR --models counts,memory,edge-paper --epochs 1

Each step is the command that a user would type, in a process of its own. Prints its seconds, peak memory and the last
lines of its output. Steps whose result exists in DIR are not repeated.
"""

import argparse
import resource
import shlex
import subprocess
import sys
import time
from pathlib import Path

from machine_info import describe_machine


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--models", default="counts,memory,edge-paper")
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--protocol", default="sampled-499")
    parser.add_argument("--plan", default="--windows 300 --dnodes 160", help="Options of `dynedge plan`.")
    parser.add_argument("--train", default="", help="Further options of `dynedge train`.")
    args = parser.parse_args()
    args.work.mkdir(parents=True, exist_ok=True)
    print(describe_machine(), flush=True)
    log = args.work / "log"
    runs = {name: args.work / name for name in args.models.split(",")}
    columns = ["--user-col", "user", "--item-col", "item"]
    if not log.exists():
        dynedge("prepare", str(args.file), *columns, "--out", str(log))
    dynedge("plan", str(log), *args.plan.split())
    for name, run in runs.items():
        if not (run / "manifest.json").exists():
            options = ["--epochs", str(args.epochs), *args.train.split(), "--out", str(run), "--force"]
            dynedge("train", str(log), "--model", name, *options)
    dynedge("compare", *map(str, runs.values()), "--protocol", args.protocol, lines=12)


def dynedge(*arguments: str, lines: int = 4) -> None:
    """Runs a command and prints how long it took and the end of its output."""
    start = time.monotonic()
    done = subprocess.run([sys.executable, "-m", "dynedge", *arguments], capture_output=True, text=True, check=False)
    peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 2**20
    print(
        f"\n{time.monotonic() - start:.1f} s, largest process so far {peak:.1f} GiB: dynedge {shlex.join(arguments)}"
    )
    shown = done.stdout if done.returncode == 0 else done.stderr
    print("\n".join(shown.strip().splitlines()[-lines:]), flush=True)
    if done.returncode:
        sys.exit(done.returncode)


if __name__ == "__main__":
    main()
