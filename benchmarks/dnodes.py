"""Compares the d-node methods: longest path, number of d-nodes and time, on the shared data sets and on other logs.

    python benchmarks/dnodes.py                                   # every log in ../shared/data, all 300 windows
    python benchmarks/dnodes.py --logs wikipedia,globo --windows 20
    python benchmarks/dnodes.py --logs none --log ml-25m-like     # a log folder, with the paper's ML-25M results
    python benchmarks/dnodes.py --gap --csv dnodes.csv            # also the distance to the exact optimum

Three tables: the longest path of each method with K d-nodes; the number of d-nodes the other methods need for the
longest path of Algorithm 2 with K; and, with --gap, the distance to the exact optimum on windows of 60 events.
"""

from __future__ import annotations

import argparse
import csv
import sys
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from dynedge.data.log import read_log
from dynedge.data.splits import Split
from dynedge.data.statistics import degrees
from dynedge.data.windows import cut_windows
from dynedge.plan.dnodes import select_dnodes
from dynedge.plan.dnodes.longest_path import cut_longest_paths
from dynedge.plan.levels import longest_path
from dynedge.plan.links import Linker, active_mask
from dynedge.report.plan_figure import METHOD_STYLES
from dynedge.report.style import figure, log_scales, save, style_axes
from dynedge.utils.array_type import Array

Threshold = tuple[int | None, int | None]

ROOT = Path(__file__).resolve().parents[1]
DATA = ROOT.parent / "shared" / "data"
DNODES = (0, 10, 20, 40, 80, 160, 320, 640)
PARTS = (1, 2, 4, 8, 16, 32, 64, 128)
COMPARED = (20, 160, 640)
# ML-25M at (200, 100), the paper's Table 4: longest path by K, and (d-nodes, longest path) by number of parts
PAPER_K = dict(zip(DNODES, (209.75, 164.05, 142.81, 115.01, 89.63, 66.12, 45.47, 29.43), strict=True))
PAPER_PARTS = dict(
    zip(
        PARTS,
        zip(
            (0, 134, 250, 346, 429, 506, 588, 701),
            (209.75, 202.6, 198.95, 196.29, 193.02, 190.84, 187.39, 179.51),
            strict=True,
        ),
        strict=True,
    )
)


class Events(NamedTuple):
    """The training events of a log."""

    name: str
    user: Array
    item: Array
    users: int
    items: int

    def linker(self, threshold: Threshold) -> Linker:
        user = active_mask(degrees(self.user, self.users), threshold[0])
        return Linker(user, active_mask(degrees(self.item, self.items), threshold[1]))

    def windows(self, threshold: Threshold, count: int, sample: int) -> list[Array]:
        """The links of `sample` windows, evenly spread over the log."""
        linker, ranges = self.linker(threshold), cut_windows(len(self.user), count)
        spread = np.unique(np.linspace(0, count - 1, min(sample, count)).astype(int))
        return [linker(self.user[r.start : r.stop], self.item[r.start : r.stop]) for r in (ranges[w] for w in spread)]


def main() -> None:
    args = _arguments()
    results: list[dict[str, Any]] = []
    needed: list[dict[str, Any]] = []
    gaps: dict[str, list[tuple[int, int, int, int]]] = defaultdict(list)
    for events in _logs(args):
        for threshold in args.thresholds:
            windows = events.windows(threshold, args.count, args.windows)
            label = f"{events.name} {_threshold_label(threshold)}"
            print(f"\n{label}: {len(windows)} windows of {np.mean([len(p) for p in windows]):,.0f} events")
            results += _table(windows, label, paper=events.name.startswith("ml-25m") and threshold == (200, 100))
            needed += _dnodes_needed(windows, label)
            if args.gap:
                _add_gaps(events, threshold, gaps)
    if needed:
        _print_needed(needed)
    if gaps:
        _print_gaps(gaps)
    if args.csv and results:
        _write_csv(args.csv, results)
    if args.plot and results:
        _draw(results, args.plot)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--logs", default="all", help="Names in ../shared/data, separated by commas; or all, or none."
    )
    parser.add_argument("--log", action="append", default=[], help="Log folder; may be repeated.")
    parser.add_argument("--thresholds", default="inf;200,100", help="Activity thresholds (default: %(default)s).")
    parser.add_argument("--windows", type=int, default=300, help="Number of windows measured per log.")
    parser.add_argument("--count", type=int, default=300, help="Number of windows per log.")
    parser.add_argument(
        "--split",
        default="0.8,0.1,0.1",
        help="Split of the log, of which the training events are used (default: %(default)s).",
    )
    parser.add_argument("--gap", action="store_true", help="Distance to the exact optimum on small windows.")
    parser.add_argument("--csv", type=Path, help="CSV file for the first table.")
    parser.add_argument("--plot", type=Path, help="Image file of the first table, one panel per log.")
    args = parser.parse_args()
    args.thresholds = [_threshold(text) for text in args.thresholds.split(";")]
    return args


def _threshold(text: str) -> Threshold:
    if text == "inf":
        return None, None
    users, items = text.split(",")
    return int(users), int(items)


def _threshold_label(threshold: Threshold) -> str:
    return "n*=∞" if threshold == (None, None) else f"n*={threshold}"


def _logs(args: argparse.Namespace) -> Iterator[Events]:
    split = Split.parse(args.split)
    if args.logs != "none" and not DATA.is_dir():
        print(f"the shared data sets are skipped: {DATA} does not exist.", file=sys.stderr)
    elif args.logs != "none":
        import pyarrow.parquet as pq

        for path in sorted(DATA.glob("*.parquet")):
            if args.logs == "all" or path.stem in args.logs.split(","):
                table = pq.read_table(path, columns=["user", "item"])
                user, item = (table[name].to_numpy().astype(np.int32) for name in ("user", "item"))
                yield _training(path.stem, user, item, int(user.max()) + 1, int(item.max()) + 1, split)
    for folder in args.log:
        log = read_log(folder)
        yield _training(Path(folder).name, log.user, log.item, log.num_users, log.num_items, split)


def _training(name: str, user: Array, item: Array, users: int, items: int, split: Split) -> Events:
    end, _ = split.bounds(len(user))
    return Events(name, np.asarray(user[:end]), np.asarray(item[:end]), users, items)


def _table(windows: list[Array], label: str, *, paper: bool) -> list[dict[str, Any]]:
    """Mean longest path, d-nodes and milliseconds per window of each method; `depth` gets Algorithm 2's depth."""
    print(f"{'method':14}{'limit':>20}{'longest path':>14}{'d-nodes':>10}{'ms/window':>11}" + "   paper" * paper)
    rows = []
    for method, limit, values in _requests(windows):
        start = time.perf_counter()
        selected = [
            select_dnodes(prev, method, **{limit: value}) for prev, value in zip(windows, values, strict=True)
        ]
        seconds = (time.perf_counter() - start) / len(windows)
        row = {
            "log": label,
            "method": method,
            "limit": limit,
            "value": round(float(np.mean(values)), 2),
            "longest_path": round(
                float(np.mean([longest_path(p, c) for p, c in zip(windows, selected, strict=True)])), 3
            ),
            "dnodes": round(float(np.mean([len(dnodes) for dnodes in selected])), 2),
            "ms": round(1e3 * seconds, 3),
        }
        rows.append(row)
        numbers = f"{row['value']:>8g} {limit:11}{row['longest_path']:14.2f}{row['dnodes']:10.1f}{row['ms']:11.2f}"
        print(f"{method:14}{numbers}   {_paper(method, limit, values[0]) if paper else ''}")
    return rows


def _requests(windows: list[Array]) -> Iterator[tuple[str, str, list[int]]]:
    (
        select_dnodes(windows[0], "best", max_dnodes=1),
        select_dnodes(windows[0], "best", max_depth=1),
    )  # compile before timing
    for k in DNODES:
        yield "longest-path", "max_dnodes", [k] * len(windows)
        yield "best", "max_dnodes", [k] * len(windows)
        yield "depth", "max_depth", [max(1, cut_longest_paths(prev, k, 1)[1]) for prev in windows]
    for parts in PARTS:
        yield "cut-by-time", "parts", [parts] * len(windows)


def _paper(method: str, limit: str, value: int) -> str:
    if method == "longest-path":
        return f"{PAPER_K[value]:.2f}"
    if limit == "parts":
        dnodes, longest = PAPER_PARTS[value]
        return f"{longest:.2f} with {dnodes}"
    return ""


def _dnodes_needed(windows: list[Array], label: str) -> list[dict[str, Any]]:
    """Number of d-nodes for the longest path of Algorithm 2 with K: all K, the first that reach it, other methods."""
    rows = []
    for k in COMPARED:
        row: dict[str, Any] = {
            "log": label,
            "k": k,
            "own": 0,
            "fewest": 0,
            "depth": 0,
            "best": 0,
            "equal": 0,
            "windows": 0,
        }
        for prev in windows:
            selected, longest = cut_longest_paths(prev, k, 1)
            if longest <= 1:  # every link is cut: all methods are equal
                row["equal"] += len(selected)
                continue
            row["windows"] += 1
            row["own"] += len(selected)
            row["fewest"] += len(cut_longest_paths(prev, k, longest)[0])
            row["depth"] += len(select_dnodes(prev, "depth", max_depth=longest))
            row["best"] += len(select_dnodes(prev, "best", max_depth=longest))
        rows.append(row)
    return rows


def _print_needed(rows: list[dict[str, Any]]) -> None:
    print("\nd-nodes needed for the longest path of Algorithm 2 with K, relative to K")
    print(
        "(in brackets: relative to its first d-nodes that reach it; windows with every link cut need the same number"
    )
    print("with all methods and count in the last column only)")
    print(f"{'log':34}{'K':>5}{'windows':>9}{'depth':>16}{'best':>16}{'best, all windows':>20}")
    for k in COMPARED:
        shares = []
        for row in (row for row in rows if row["k"] == k):
            share = [
                row[m] / row[base] if row["own"] else np.nan for m in ("depth", "best") for base in ("own", "fewest")
            ]
            share.append((row["best"] + row["equal"]) / max(1, row["own"] + row["equal"]))
            shares.append(share)
            print(f"{row['log']:34}{k:5}{row['windows']:9}" + _shares(share))
        print(f"{'mean':34}{k:5}{'':9}" + _shares([_mean(column) for column in zip(*shares, strict=True)]))


def _mean(values: tuple[float, ...]) -> float:
    present = [value for value in values if not np.isnan(value)]
    return float(np.mean(present)) if present else float("nan")


def _shares(share: list[float]) -> str:
    return "".join(f"{share[at]:9.3f} ({share[at + 1]:.2f})" for at in (0, 2)) + f"{share[4]:20.3f}"


def _add_gaps(events: Events, threshold: Threshold, gaps: dict[str, list[tuple[int, int, int, int]]]) -> None:
    """Adds (d-nodes, fewest for that longest path, longest path, least for that many d-nodes) of small windows."""
    sys.path.append(str(ROOT / "tests" / "plan"))
    from brute_force import fewest_dnodes, shortest_longest_path

    for prev in events.windows(threshold, max(1, len(events.user) // 60), 12):
        for k in (2, 5, 10):
            depth = longest_path(prev, select_dnodes(prev, "best", max_dnodes=k))
            if depth <= 1:
                continue
            selected = {
                "longest-path": select_dnodes(prev, "longest-path", max_dnodes=k),
                "depth": select_dnodes(prev, "depth", max_depth=depth),
                "best, by k": select_dnodes(prev, "best", max_dnodes=k),
                "best, by depth": select_dnodes(prev, "best", max_depth=depth),
                "cut-by-time": select_dnodes(prev, "cut-by-time", parts=3),
            }
            for method, dnodes in selected.items():
                longest = longest_path(prev, dnodes)
                reached = longest_path(prev, select_dnodes(prev, "best", max_dnodes=len(dnodes)))
                least = shortest_longest_path(prev, len(dnodes), min(longest, reached))
                gaps[method].append((len(dnodes), fewest_dnodes(prev, longest), longest, least))


def _print_gaps(gaps: dict[str, list[tuple[int, int, int, int]]]) -> None:
    print("\nmean gap to the exact optimum, windows of 60 events")
    print(f"{'method':16}{'excess d-nodes':>18}{'of':>8}{'excess levels':>17}{'of':>8}{'cases':>8}")
    for method, cases in gaps.items():
        dnodes, fewest, longest, least = np.mean(cases, axis=0)
        print(f"{method:16}{dnodes - fewest:18.3f}{fewest:8.2f}{longest - least:17.3f}{least:8.2f}{len(cases):8}")


def _write_csv(path: Path, rows: list[dict[str, Any]]) -> None:
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, fieldnames=list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    print(f"\n{path}: {len(rows)} rows", file=sys.stderr)


def _draw(rows: list[dict[str, Any]], path: Path) -> None:
    """Plots the longest path against d-nodes, one panel per log and threshold."""
    labels = list(dict.fromkeys(row["log"] for row in rows))
    fig = figure(16, 3.2 * -(-len(labels) // 4))
    panels = fig.subplots(-(-len(labels) // 4), 4, squeeze=False).ravel()
    for axes, label in zip(panels, labels, strict=False):
        for method, (color, marker, dashes) in METHOD_STYLES.items():
            points = [
                (row["dnodes"], row["longest_path"])
                for row in rows
                if row["log"] == label and row["method"] == method and row["dnodes"] > 0
            ]
            if points:
                x, y = zip(*sorted(points), strict=True)
                axes.plot(x, y, color=color, marker=marker, linestyle=dashes, markersize=5, label=method)
        style_axes(axes, label)
        log_scales(axes)
    for axes in panels[len(labels) :]:
        axes.set_visible(False)
    panels[0].set(xlabel="d-nodes per window", ylabel="longest path (levels)")
    panels[0].legend(frameon=False, fontsize=8)
    save(fig, path)


if __name__ == "__main__":
    main()
