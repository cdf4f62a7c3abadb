"""Mutation score: puts the faults listed in mutants.toml into a copy of the code, one at a time, and runs the tests
that ought to notice each.

    python benchmarks/mutants.py                     # all layers; results so far are kept in .mutants.jsonl
    python benchmarks/mutants.py --only serving --jobs 1
    python benchmarks/mutants.py --fresh             # measure every fault again

A fault is noticed if its tests fail, crash or exceed the time limit. First the same tests run on the code as it is:
all must pass. A stored result is used again while the fault, the file it changes and its test files are the same.

Every fault gets its own folder of compiled kernels, hard links to the ones that exist: what a faulty kernel, or a
faulty cache key, compiles is never loaded by another test.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib
import json
import math
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict, dataclass
from pathlib import Path
from queue import SimpleQueue

ROOT = Path(__file__).resolve().parents[1]
LIST = Path(__file__).with_suffix(".toml")
RESULTS = ROOT / ".mutants.jsonl"
TIME_LIMIT = 300  # seconds
PASSED, FAILED, INTERRUPTED = 0, 1, 2  # exit codes of pytest
OUTPUT = ".output"  # of the tests, in a copy of the tree
PRELOADED = "torch", "numba", "pyarrow.parquet", "pytest", "hypothesis"  # and nothing of dynedge
ENVIRONMENT = {
    **{"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "passive"},
    **{"PYTHONDONTWRITEBYTECODE": "1", "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
}


@dataclass(frozen=True)
class Mutant:
    """A fault: `old`, which occurs once in `file`, is replaced by `new`."""

    layer: str
    fault: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]
    equivalent: str | None = None  # why no test can notice it

    def apply(self, root: Path) -> str:
        """Returns the text of the file with the fault."""
        text = (root / self.file).read_text(encoding="utf-8")
        if text.count(self.old) != 1:
            raise ValueError(
                f"{self.file}: {self.old!r} occurs {text.count(self.old)} times, not once ({self.fault})"
            )
        return text.replace(self.old, self.new)

    def key(self, root: Path) -> str:
        """Hash of the fault, of the file it changes and of its test files."""
        digest = hashlib.sha256(json.dumps(asdict(self)).encode())
        for file in (self.file, *sorted({test.partition("::")[0] for test in self.tests})):
            for path in sorted((root / file).rglob("*.py")) or [root / file]:
                digest.update(path.read_bytes())
        return digest.hexdigest()


@dataclass(frozen=True)
class Result:
    key: str
    outcome: str  # noticed, survived, time limit
    seconds: float


def read_list(path: Path = LIST) -> list[Mutant]:
    layers = tomllib.loads(path.read_text(encoding="utf-8"))
    return [
        Mutant(layer, **{**entry, "tests": tuple(entry["tests"])})
        for layer, entries in layers.items()
        for entry in entries
    ]


class Worker:
    """A copy of the working tree in which tests run."""

    def __init__(self, folder: Path, files: Sequence[str], limit: float) -> None:
        self.root, self.limit, self._kernels = folder / "tree", limit, folder / "kernels"
        for name in files:
            (self.root / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, self.root / name)
        # Checked by content: a changed file may have the time and the size of the one before.
        arguments = "-m compileall -q --invalidation-mode checked-hash src tests"
        subprocess.run([sys.executable, *arguments.split()], cwd=self.root, check=True)
        environment = {**os.environ, **ENVIRONMENT}
        environment.pop("PYTHONPATH", None)  # the fork adds the copy's folders
        command, pipe = [sys.executable, __file__, "--serve"], subprocess.PIPE
        self._server = subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, env=environment)

    def measure(self, mutant: Mutant, key: str) -> Result:
        path, started = self.root / mutant.file, time.monotonic()
        original = path.read_text(encoding="utf-8")
        path.write_text(mutant.apply(self.root), encoding="utf-8")
        try:
            shutil.rmtree(self._kernels, ignore_errors=True)
            shutil.copytree(kernels_folder(), self._kernels, copy_function=_link)
            code, output = self.run(mutant.tests, self._kernels, self.limit)
        finally:
            path.write_text(original, encoding="utf-8")
        if code is not None and code not in (PASSED, FAILED, INTERRUPTED) and code > 0:
            raise SystemExit(f"the tests of {mutant.file} ({mutant.fault}) could not run:\n{output}")
        outcome = "time limit" if code is None else "survived" if code == PASSED else "noticed"
        return Result(key, outcome, round(time.monotonic() - started, 1))

    def run(self, tests: Sequence[str], kernels: Path, limit: float | None) -> tuple[int | None, str]:
        """Exit code of pytest, None after the time limit, and its output."""
        request = {"root": str(self.root), "kernels": str(kernels), "tests": tests, "limit": limit}
        assert self._server.stdin is not None and self._server.stdout is not None
        self._server.stdin.write(json.dumps(request) + "\n")
        self._server.stdin.flush()
        code = json.loads(self._server.stdout.readline())
        return code, (self.root / OUTPUT).read_text(encoding="utf-8", errors="replace")[-4000:]

    def close(self) -> None:
        assert self._server.stdin is not None
        self._server.stdin.close()
        self._server.wait()


def serve() -> None:
    """Runs the tests of each line of stdin in a fork of this process, which has imported what all tests need."""
    for name in PRELOADED:
        importlib.import_module(name)
    for line in sys.stdin:
        request = json.loads(line)
        child = os.fork()
        if not child:
            _run_tests(**request)
        print(json.dumps(_wait(child, request["limit"])), flush=True)


def _run_tests(root: str, kernels: str, tests: list[str], limit: float | None) -> None:
    """Ends this process with the exit code of pytest."""
    os.setsid()
    os.chdir(root)
    for stream in (sys.stdout, sys.stderr):
        os.dup2(os.open(OUTPUT, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), stream.fileno())
    sys.path[:1] = [f"{root}/src", f"{root}/tests"]  # in place of this script's folder
    os.environ["PYTHONPATH"] = os.pathsep.join(sys.path[:2])
    os.environ["DYNEDGE_CACHE_DIR"] = kernels
    sys.dont_write_bytecode = True
    sys.argv = ["pytest"]
    import pytest

    code = pytest.main(["-x", "-q", "--no-header", "--tb", "short", "-p", "_hypothesis_pytestplugin", *tests])
    sys.stdout.flush()
    os._exit(int(code))


def _wait(child: int, limit: float | None) -> int | None:
    """Exit code of a process, or None if the time limit ended it. The processes that it started are ended too."""
    end, code = time.monotonic() + (limit or math.inf), None
    while time.monotonic() < end:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            code = os.waitstatus_to_exitcode(status)
            break
        time.sleep(0.02)
    try:
        os.killpg(child, signal.SIGKILL)
    except ProcessLookupError:
        pass
    if code is None:
        os.waitpid(child, 0)
    return code


def kernels_folder() -> Path:
    """The usual folder of compiled kernels."""
    from dynedge.utils.numba_compile import cache_folder  # not at the top: forks import the copy's dynedge

    return cache_folder()


def _link(source: str, target: str) -> None:
    """Hard link where possible. Kernels are replaced by renaming, never written in place."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)


def working_tree() -> list[str]:
    """The files of the working tree that git does not ignore."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    names = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout.split("\0")
    return [name for name in dict.fromkeys(names) if name and (ROOT / name).is_file()]


def measure_all(
    mutants: Sequence[Mutant], jobs: int, limit: float, results: Path, *, check: bool = True
) -> dict[Mutant, Result]:
    """Measures the mutants that have no stored result; returns the results of all that are not equivalent.

    `check`: whether the tests are first run without a fault.
    """
    lines = results.read_text(encoding="utf-8").splitlines() if results.exists() else []
    stored = {result.key: result for result in (Result(**json.loads(line)) for line in lines)}
    keys = {mutant: mutant.key(ROOT) for mutant in mutants if mutant.equivalent is None}
    done = {mutant: stored[key] for mutant, key in keys.items() if key in stored}
    missing = [mutant for mutant in keys if mutant not in done]
    if not missing:
        return done
    with tempfile.TemporaryDirectory(prefix="dynedge-mutants-") as folder, ThreadPoolExecutor(jobs) as pool:
        files, workers = working_tree(), SimpleQueue[Worker]()
        for number in range(min(jobs, len(missing))):
            workers.put(Worker(Path(folder) / str(number), files, limit))
        if check:
            _check_tests(workers, missing)

        def measure(mutant: Mutant) -> tuple[Mutant, Result]:
            worker = workers.get()
            try:
                return mutant, worker.measure(mutant, keys[mutant])
            finally:
                workers.put(worker)

        futures = [pool.submit(measure, mutant) for mutant in missing]
        try:
            for number, future in enumerate(as_completed(futures), 1):
                mutant, result = future.result()
                done[mutant] = result
                with open(results, "a", encoding="utf-8") as file:
                    file.write(json.dumps(asdict(result)) + "\n")
                progress = f"{number:4} of {len(missing)}  {result.outcome:10} {result.seconds:6.1f} s"
                print(f"{progress}  {mutant.layer}: {mutant.fault}", flush=True)
        finally:
            pool.shutdown(cancel_futures=True)
            while not workers.empty():
                workers.get().close()
    return done


def _check_tests(workers: SimpleQueue[Worker], mutants: Sequence[Mutant]) -> None:
    """All tests have to pass without a fault. This also compiles every kernel, into the usual cache."""
    worker = workers.get()
    tests = list(dict.fromkeys(test for mutant in mutants for test in mutant.tests))
    print(f"without a fault: {len(tests)} test files and tests", flush=True)
    code, output = worker.run(tests, kernels_folder(), None)
    workers.put(worker)
    if code != PASSED:
        raise SystemExit(f"the tests fail without any fault:\n{output}")


def table(mutants: Sequence[Mutant], results: Mapping[Mutant, Result]) -> str:
    rows = [("layer", "faults", "noticed", "time limit", "survived", "equivalent", "score")]
    for layer in [*dict.fromkeys(mutant.layer for mutant in mutants), "all"]:
        of_layer = [mutant for mutant in mutants if layer in (mutant.layer, "all")]
        outcomes = [results[mutant].outcome for mutant in of_layer if mutant in results]
        counts = [outcomes.count(outcome) for outcome in ("noticed", "time limit", "survived")]
        score = f"{1 - counts[2] / len(outcomes):.0%}" if outcomes else "–"
        rows.append((layer, *map(str, (len(of_layer), *counts, len(of_layer) - len(outcomes))), score))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["  ".join([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])]) for row in rows]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", metavar="LAYER", help="Faults of this layer only.")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="Number of faults tested at a time.")
    parser.add_argument("--time-limit", type=float, default=TIME_LIMIT, help="Seconds per fault.")
    parser.add_argument("--results", type=Path, default=RESULTS, help="File of the results so far.")
    parser.add_argument("--no-check", action="store_true", help="Trust that the tests pass without a fault.")
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--fresh", action="store_true", help="Measure again what has a result.")
    arguments = parser.parse_args()
    if arguments.serve:
        return serve()
    mutants = read_list()
    layers = list(dict.fromkeys(mutant.layer for mutant in mutants))
    if arguments.only and arguments.only not in layers:
        parser.error(f"--only {arguments.only} is not one of: {', '.join(layers)}.")
    mutants = [mutant for mutant in mutants if arguments.only in (None, mutant.layer)]
    for mutant in mutants:
        mutant.apply(ROOT)
    if arguments.fresh:
        arguments.results.unlink(missing_ok=True)
    check = not arguments.no_check
    results = measure_all(mutants, arguments.jobs, arguments.time_limit, arguments.results, check=check)
    survivors = [mutant for mutant in mutants if mutant in results and results[mutant].outcome == "survived"]
    for mutant in survivors:
        print(f"\nsurvived: {mutant.layer}: {mutant.fault}\n{mutant.file}\n- {mutant.old}\n+ {mutant.new}")
    print(f"\n{table(mutants, results)}")
    sys.exit(bool(survivors))


if __name__ == "__main__":
    main()
