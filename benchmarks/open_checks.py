"""How long the checks of a log and of a run take when they are opened: the first time, and again.

    python benchmarks/open_checks.py                                 # 30 million events
    python benchmarks/open_checks.py --events 300000 --run RUN

The first opening reads the columns from the page cache, as after `dynedge prepare`; facts about large files are
remembered for the next ones. For a run the checks of its state are compared with reading the file.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from machine_info import describe_machine

from dynedge.data.log import read_log
from dynedge.data.synthetic import synthesize
from dynedge.models.base import State
from dynedge.runs.folder import STATE, load_run
from dynedge.utils.numba_compile import cache_folder
from dynedge.utils.tensor_io import load_tensors


def seconds(work: Callable[[], object]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--events", type=int, default=30_000_000, help="Number of events of the synthetic log.")
    parser.add_argument("--run", type=Path, help="Run folder whose state is checked.")
    args = parser.parse_args()
    print(describe_machine())
    with tempfile.TemporaryDirectory(prefix="dynedge-open-") as folder:
        os.environ["DYNEDGE_CACHE_DIR"] = f"{folder}/cache"
        cache_folder.cache_clear()
        path = Path(folder) / "log"
        synthesize("lastfm-like", path, events=args.events, quiet=True)
        size = sum(file.stat().st_size for file in path.glob("*.npy"))
        for entry in (Path(folder) / "cache" / "checked").glob("*"):
            entry.unlink()
        first, again = seconds(lambda: read_log(path)), min(seconds(lambda: read_log(path)) for _ in range(5))
        print(f"log of {args.events:,} events, {size / 1e9:.2f} GB: {first:.3f} s, {size / first / 1e9:.1f} GB/s")
        print(f"opened again in {again * 1e3:.1f} ms")
    if args.run:
        run = load_run(args.run)
        load = min(seconds(lambda: State(load_tensors(args.run / STATE)).clone()) for _ in range(5))
        check = min(seconds(lambda: run.model.check_state(run.state)) for _ in range(5))
        size = (args.run / STATE).stat().st_size
        print(f"state of {size / 1e6:.1f} MB: read in {load * 1e3:.1f} ms, checked in {check * 1e3:.1f} ms")


if __name__ == "__main__":
    main()
