"""Time and peak memory of `dynedge append`: new rows in a CSV file to a log that has many.

    python benchmarks/append.py                               # 1 M rows to 10 M and to 100 M
    python benchmarks/append.py --events 2e7 --rows 1e5,1e6   # other sizes
    python benchmarks/append.py --late                        # also with one late row and --late merge: all is copied

The log is a synthetic taobao-like one. The new rows are events of its users and items and of some new ones (one in a
hundred), with a category, later than its last event. The file is in the page cache. Each measurement is a whole
command in a subprocess, start of Python, syncing and all, on a log that has been appended to before.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv
from ingest import DYNEDGE, run
from machine_info import describe_machine

from dynedge.data.log import EventLog, read_log
from dynedge.data.synthetic import synthesize


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--events", default="1e7,1e8", help="Events of the logs, separated by commas.")
    parser.add_argument("--rows", default="1e6", help="Numbers of new rows, separated by commas.")
    parser.add_argument("--repeats", type=int, default=3, help="Additions of each size; the fastest counts.")
    parser.add_argument("--late", action="store_true", help="Also with --late merge.")
    parser.add_argument("--folder", default=None, help="Folder for temporary files.")
    args = parser.parse_args()
    print(f"{describe_machine()}; CSV of four columns, the fastest of {args.repeats}")
    sizes = f"{'log events':>12} {'users':>10} {'items':>10} {'new rows':>10}"
    print(f"{sizes} {'rule':>7} {'seconds':>8} {'CPU s':>6} {'peak MiB':>9}")
    with tempfile.TemporaryDirectory(prefix="append-", dir=args.folder) as name:
        log, file = Path(name) / "log", Path(name) / "new.csv"
        for events in args.events.split(","):
            synthesize("taobao-like", log, events=int(float(events)), force=True, quiet=True)
            write_new_rows(read_log(log), 1000, file)
            run(append_command(log, file))
            for rows in args.rows.split(","):
                for rule in ("reject", "merge") if args.late else ("reject",):
                    measure(log, file, int(float(rows)), rule, args.repeats)


def measure(log: Path, file: Path, rows: int, rule: str, repeats: int) -> None:
    results = []
    for _ in range(repeats):
        before = read_log(log)
        write_new_rows(before, rows, file, late=rule == "merge")
        results.append(run([*append_command(log, file), "--late", rule]))
        assert len(read_log(log)) == len(before) + rows
    seconds, cpu, peak = min(results)
    sizes = f"{len(before):12,} {before.num_users:10,} {before.num_items:10,} {rows:10,}"
    print(f"{sizes} {rule:>7} {seconds:8.2f} {cpu:6.2f} {peak:9,}", flush=True)


def append_command(log: Path, file: Path) -> list[str]:
    return [sys.executable, "-c", DYNEDGE, "append", str(log), str(file), "--item-features", "category"]


def write_new_rows(log: EventLog, rows: int, path: Path, *, late: bool = False) -> None:
    """Writes rows after the log's last event, the first of them before its last tenth if `late`."""
    rng = np.random.default_rng(len(log))
    columns = []
    for ids, count in ((log.user_ids.values, log.num_users), (log.item_ids.values, log.num_items)):
        known = ids[rng.integers(0, count, rows)]
        columns.append(np.where(rng.random(rows) < 0.01, rng.integers(2**40, 2**41, rows), known))
    time = int(log.time[-1]) + 1 + np.arange(rows) // 10
    if late:
        time[0] = int(log.time[len(log) * 9 // 10])
    columns += [time, log.category_ids[0].values[rng.integers(0, len(log.category_ids[0]), rows)]]
    pa.csv.write_csv(pa.table(columns, names=["user_id", "item_id", "timestamp", "category"]), path)


if __name__ == "__main__":
    main()
