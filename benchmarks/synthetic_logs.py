"""Speed and peak memory of `dynedge synth`, and checks that synthetic logs resemble the real ones.

    python benchmarks/synthetic_logs.py                 # events/s and peak memory at 1 M, 10 M and 100 M events
    python benchmarks/synthetic_logs.py --path          # the longest path of ml-25m-like, compared with the paper's
    python benchmarks/synthetic_logs.py --heuristics    # accuracy of three heuristics on the last tenth of the demo

Each log is generated in a subprocess, so that peak memory is measured per log.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from machine_info import describe_machine, peak_memory_mib

from dynedge.data.log import EventLog
from dynedge.data.synthetic import RECIPES, HeavyTail, initial_world, simulate, synthesize
from dynedge.data.windows import cut_windows
from dynedge.utils.array_type import Array
from dynedge.utils.numba_compile import compiled

PAPER_PATH = 209.75
NEVER = 2**62  # a threshold that no entity passes


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", default="1e6,1e7,1e8", help="Numbers of events, separated by commas.")
    parser.add_argument("--recipe", default="billion", choices=RECIPES, help="Recipe of the logs.")
    parser.add_argument("--folder", default=None, help="Folder for temporary logs.")
    parser.add_argument("--path", action="store_true", help="Longest path of ml-25m-like at full size.")
    parser.add_argument("--heuristics", action="store_true", help="Accuracy of three heuristics on the demo log.")
    parser.add_argument("--one", type=int, help=argparse.SUPPRESS)  # generate one log in this process
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="synth-", dir=args.folder) as folder:
        if args.one:
            print(json.dumps(measure_one(args.recipe, args.one, Path(folder))))
        elif args.path:
            report_longest_path(Path(folder))
        elif args.heuristics:
            report_heuristics()
        else:
            report_speed(args.recipe, [int(float(size)) for size in args.sizes.split(",")], folder)


def report_speed(recipe: str, sizes: list[int], folder: str) -> None:
    print(f"{describe_machine()}; recipe {recipe}; written, hashed and synced in {Path(folder).parent}")
    print(f"{'events':>15} {'seconds':>9} {'M events/s':>11} {'peak MiB':>9}")
    for size in sizes:
        command = [sys.executable, __file__, "--recipe", recipe, "--one", str(size), "--folder", folder]
        one = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)
        rate = size / one["seconds"] / 1e6
        print(f"{size:>15,} {one['seconds']:>9.2f} {rate:>11.2f} {one['peak_mib']:>9.0f}", flush=True)


def measure_one(recipe: str, events: int, folder: Path) -> dict[str, float]:
    synthesize(recipe, folder / "warm", events=100, quiet=True)  # compiles the kernels, or reads them from the cache
    start = time.perf_counter()
    synthesize(recipe, folder / "log", events=events)
    return {"seconds": time.perf_counter() - start, "peak_mib": peak_memory_mib()}


def report_longest_path(folder: Path) -> None:
    log = synthesize("ml-25m-like", folder / "log")
    for label, thresholds in (("(200, 100)", (200, 100)), ("infinity", (NEVER, NEVER))):
        lengths = longest_paths(log, thresholds, 300)
        comparison = (
            f", the paper's {PAPER_PATH}: {lengths.mean() / PAPER_PATH - 1:+.1%}" if NEVER not in thresholds else ""
        )
        print(f"ml-25m-like, thresholds {label}: mean longest path of 300 windows {lengths.mean():.2f}{comparison}")


def longest_paths(log: EventLog, thresholds: tuple[int, int], count: int) -> Array:
    """Returns the longest path, without d-nodes, of each of `count` windows of the training events."""
    end = log.split.bounds(len(log))[0]
    active = [
        np.bincount(column[:end], minlength=n) > threshold
        for column, n, threshold in zip((log.user, log.item), (log.num_users, log.num_items), thresholds, strict=True)
    ]
    levels = [np.zeros(len(side), np.int64) for side in active]
    lengths = np.zeros(count, np.int64)
    for w, span in enumerate(cut_windows(end, count)):
        part = slice(span.start, span.stop)
        # Levels start above the highest level of the previous window, so that they need no reset between windows.
        floor = max(int(side.max()) for side in levels)
        lengths[w] = highest_level(log.user[part], log.item[part], *active, *levels, floor) - floor
    return lengths


@compiled
def highest_level(
    user: Array, item: Array, user_active: Array, item_active: Array, user_level: Array, item_level: Array, floor: int
) -> int:
    """Returns the highest level of a window.

    An event is one level above the previous events of its inactive entities; between two active ones it has none.
    """
    highest = floor
    for k in range(len(user)):
        u, i = user[k], item[k]
        level = floor
        if not user_active[u]:
            level = max(level, user_level[u])
        if not item_active[i]:
            level = max(level, item_level[i])
        if not user_active[u]:
            user_level[u] = level + 1
        if not item_active[i]:
            item_level[i] = level + 1
        if not (user_active[u] and item_active[i]):
            highest = max(highest, level + 1)
    return highest


def report_heuristics() -> None:
    recipe = RECIPES["demo"]
    chunks = list(simulate(recipe, initial_world("demo", recipe, 0), sources=True))
    user, item, source = (
        np.concatenate([getattr(chunk, name) for chunk in chunks]) for name in ("user", "item", "source")
    )
    first = recipe.events * 9 // 10
    ranks: dict[str, Any] = {name: [] for name in ("most popular", "own recent items", "last-item transitions")}
    popularity = np.zeros(recipe.items)
    when = np.full((recipe.users, recipe.items), -1)
    after = np.zeros((recipe.items + 1, recipe.items))
    last = np.full(recipe.users, recipe.items)  # the extra row is for users without events
    for k, (u, i) in enumerate(zip(user, item, strict=True)):
        if k >= first:
            for name, scores in zip(ranks, (popularity, when[u], after[last[u]]), strict=True):
                ranks[name].append(mean_rank(scores, i))
        popularity[i] += 1
        when[u, i] = k
        after[last[u], i] += 1
        last[u] = i
    reference = {"knows the simulator": reference_ranks(source[first:])}
    print(f"demo, last {recipe.events - first:,} events, all {recipe.items} items ranked, ties get their mean rank")
    for name, values in (ranks | reference).items():
        print(f"{name:>26}: MRR {np.mean(1 / np.array(values)):.3f}, Recall@10 {np.mean(np.array(values) <= 10):.3f}")


def mean_rank(scores: Array, true: int) -> float:
    return float(1 + (scores > scores[true]).sum() + ((scores == scores[true]).sum() - 1) / 2)


def reference_ranks(source: Array) -> Array:
    """Returns the rank of each next item for a model that knows the simulator's state and its probabilities.

    It ranks the sources of an item, the likeliest first. This is close to the optimum, not equal to it: that an item
    may come from two sources is ignored.
    """
    recipe = RECIPES["demo"]
    back, rank = (
        probabilities(recipe.recency, recipe.recent_items),
        probabilities(recipe.rank_popularity, recipe.chart_size),
    )
    chart = 1 - recipe.repeat_share - recipe.successor_share
    likelihood = np.concatenate([[recipe.successor_share], recipe.repeat_share * back, chart * rank])
    rank_of_source = np.empty(len(likelihood))
    rank_of_source[np.argsort(-likelihood, kind="stable")] = 1 + np.arange(len(likelihood))
    return np.where(source < 0, recipe.items / 2, rank_of_source[source])  # a new item can only be guessed


def probabilities(law: HeavyTail, count: int) -> Array:
    octave = np.repeat(np.arange(law.octaves), law.base * 2 ** np.arange(law.octaves))
    p = law.ratio**octave / 2.0**octave
    return np.pad(p / p.sum(), (0, count))[:count]


if __name__ == "__main__":
    main()
