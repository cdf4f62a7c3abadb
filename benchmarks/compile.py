"""What the first run compiles: kernels, specialisations by argument types, and CPU seconds, with an empty cache.

    python benchmarks/compile.py                          # dynedge demo
    python benchmarks/compile.py train LOG --out RUN      # any command
    python benchmarks/compile.py --one-process            # no second process that compiles ahead

The numbers are of the first process; the cache also has what a second one compiled.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections import defaultdict
from pathlib import Path

from machine_info import describe_machine
from numba.core.event import Event, Listener, register

SHOWN = 15


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--one-process", action="store_true", help="No second process.")
    parser.add_argument("command", nargs=argparse.REMAINDER, help="Arguments of dynedge; by default those of a demo.")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        os.environ["DYNEDGE_CACHE_DIR"] = f"{folder}/kernels"
        measure(args.command or ["demo", "--out", f"{folder}/demo"], args.one_process)


def measure(command: list[str], one_process: bool) -> None:
    """Runs a command in this process and prints what was compiled."""
    from dynedge import cli
    from dynedge.utils import progress

    progress.show_compiling = not one_process  # which also turns the second process on
    recorder = Recorder()
    register("numba:compile", recorder)
    started, cpu = time.perf_counter(), time.process_time()
    code = cli.run(command)
    seconds, cpu = time.perf_counter() - started, time.process_time() - cpu
    cached = len(list(Path(os.environ["DYNEDGE_CACHE_DIR"]).glob("*.nbc")))
    own = {name: times for name, times in recorder.times.items() if name.startswith("dynedge.")}
    ours, all_of_it = sum(map(len, own.values())), sum(map(sum, recorder.times.values()))
    print(f"\n{describe_machine()}; dynedge {' '.join(command)}: exit code {code}, {seconds:.0f} s, {cpu:.0f} of CPU")
    print(f"{len(own)} kernels, {ours} specialisations, {all_of_it:.0f} s of CPU (with numba's own functions)")
    print(f"entries in the cache: {cached}")
    print(f"{'CPU s':>8} {'types':>6}  kernel, without those that it calls")
    for name, times in sorted(own.items(), key=lambda pair: -sum(pair[1]))[:SHOWN]:
        print(f"{sum(times):8.1f} {len(times):6}  {name.removeprefix('dynedge.')}")


class Recorder(Listener):  # type: ignore[misc]
    """CPU seconds of each compilation by kernel, without the kernels compiled inside it."""

    def __init__(self) -> None:
        self.times: dict[str, list[float]] = defaultdict(list)
        self._open: list[list[float]] = []  # start and seconds of those inside; numba compiles one at a time

    def on_start(self, event: Event) -> None:
        self._open.append([time.process_time(), 0.0])

    def on_end(self, event: Event) -> None:
        start, inside = self._open.pop()
        seconds = time.process_time() - start
        function = event.data["dispatcher"].py_func
        self.times[f"{function.__module__}.{function.__qualname__}"].append(seconds - inside)
        if self._open:
            self._open[-1][1] += seconds


if __name__ == "__main__":
    main()
