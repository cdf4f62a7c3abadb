"""MRR of several seeds by the rules of the Temporal Graph Benchmark, beside its leaderboard.

    dynedge prepare wikipedia.parquet --user-col user --item-col item --out wikipedia
    python benchmarks/tgb.py wikipedia --runs runs --models edge,memory --seeds 5 --epochs 10 --jobs 5

Trains every model and seed with one thread each, `--jobs` at a time, on the split by time. Prints MRR on validation
and test events, mean and standard deviation over the seeds. Each run's two values are kept in RUNS/MODEL-SEED.json; a
run that has this file is not repeated, so seeds can run on several machines (`--first-seed`); an interrupted one
resumes.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from machine_info import describe_machine

from dynedge.evaluation.board import TGB_SPLIT

# Test MRR on tgbl-wiki-v2, tgb.complexdatalab.com, read in 2026.
BOARD = {
    "TPNet": 0.827,
    "local and global heuristic": 0.821,
    "HyperEvent": 0.810,
    "DyGFormer": 0.798,
    "NAT": 0.749,
    "TNCN": 0.718,
    "TGN": 0.396,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("log", type=Path)
    parser.add_argument("--runs", type=Path, required=True)
    parser.add_argument("--models", default="edge,memory")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--device", default="cpu")
    args = parser.parse_args()
    args.runs.mkdir(parents=True, exist_ok=True)
    print(describe_machine(), flush=True)
    names, start = args.models.split(","), time.monotonic()
    seeds = range(args.first_seed, args.first_seed + args.seeds)
    with ThreadPoolExecutor(args.jobs) as pool:
        work = {(name, seed): pool.submit(scores, args, name, seed) for seed in seeds for name in names}
    print(f"{args.log.name}, split {TGB_SPLIT}, protocol tgb, {args.seeds} seeds, {time.monotonic() - start:.0f} s")
    print(f"{'model':26}  {'validation MRR':>18}  {'test MRR':>18}")
    for name in names:
        parts = [[work[name, seed].result()[part] for seed in seeds] for part in ("valid", "test")]
        print(f"{name:26}  {spread(parts[0]):>18}  {spread(parts[1]):>18}")
    for name, mrr in BOARD.items():
        print(f"{name + ' (board)':26}  {'':18}  {mrr:18.3f}")


def scores(args: argparse.Namespace, name: str, seed: int) -> dict[str, float]:
    """Trains and evaluates a run unless its file exists; returns its MRR on validation and test events."""
    run = args.runs / f"{name}-{seed}"
    file = run.with_suffix(".json")
    if not file.exists():
        options = ["--model", name, "--seed", str(seed), "--split", TGB_SPLIT, "--epochs", str(args.epochs)]
        options += ["--device", args.device, "--precision", "float32", "--resume"]
        dynedge("train", str(args.log), *options, "--out", str(run))
        evaluated = json.loads(dynedge("evaluate", str(run), "--protocol", "tgb", "--json"))
        file.write_text(json.dumps({part: evaluated[part]["mrr"] for part in ("valid", "test")}))
    found: dict[str, float] = json.loads(file.read_text())
    print(f"  {name}, seed {seed}: validation {found['valid']:.4f}, test {found['test']:.4f}", flush=True)
    return found


def dynedge(*arguments: str) -> str:
    threads = {"OMP_NUM_THREADS": "1", "NUMBA_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "dynedge", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, **threads}, check=False)
    if done.returncode:
        sys.exit(f"dynedge {' '.join(arguments)}: {done.stderr[-500:]}")
    return done.stdout


def spread(values: list[float]) -> str:
    deviation = statistics.stdev(values) if len(values) > 1 else 0.0
    return f"{statistics.mean(values):.4f} ± {deviation:.4f}"


if __name__ == "__main__":
    main()
