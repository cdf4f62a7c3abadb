"""How fast a CSV file becomes a log, and in how much memory.

    python benchmarks/ingest.py                       # 1 M, 10 M and 100 M rows
    python benchmarks/ingest.py --sizes 1e7 --peers   # beside DuckDB, doing as much of the same as it can

The file has three columns: the events of a taobao-like log, in the order named. `time` is sorted already; `user`
is how MovieLens and Taobao are published, one user after the other, so that everything must be sorted. The file is
in the page cache. Each size is a process of its own, so that time and memory are those of the whole command.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv
from machine_info import machine

from dynedge.data.log import EventLog
from dynedge.data.synthetic import synthesize

PIECE = 1 << 22


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", default="1e6,1e7,1e8", help="numbers of rows, separated by commas")
    parser.add_argument("--orders", default="time,user")
    parser.add_argument("--folder", default=None, help="where files are written, and removed again")
    parser.add_argument("--peers", action="store_true", help="DuckDB beside it (extra `peers`)")
    args = parser.parse_args()
    print(f"{machine()}; three-column CSV to a log: read, checked, sorted, numbered, hashed, synced")
    print(f"{'rows':>12} {'order':>6} {'MB':>6} {'who':>8} {'seconds':>8} {'M rows/s':>9} {'peak MiB':>9}")
    with tempfile.TemporaryDirectory(prefix="ingest-", dir=args.folder) as name:
        folder = Path(name)
        write_csv(synthesize("taobao-like", folder / "warm", events=1000), "user", folder / "warm.csv")
        run(dynedge(folder / "warm.csv", folder / "warm-log"))  # compiles what is not compiled yet
        for size in args.sizes.split(","):
            source = synthesize("taobao-like", folder / "source", events=int(float(size)), force=True)
            for order in args.orders.split(","):
                file = folder / "events.csv"
                write_csv(source, order, file)
                commands = {"dynedge": dynedge(file, folder / "log")}
                if args.peers:
                    commands["duckdb"] = [sys.executable, "-c", DUCKDB, str(file), str(folder)]
                for who, command in commands.items():
                    seconds, peak = run(command)
                    rate = len(source) / seconds / 1e6
                    size_mb = file.stat().st_size / 1e6
                    print(
                        f"{len(source):12,} {order:>6} {size_mb:6.0f} {who:>8} {seconds:8.1f} {rate:9.2f} {peak:9,}",
                        flush=True,
                    )


def dynedge(file: Path, out: Path) -> list[str]:
    return [sys.executable, "-c", DYNEDGE, "prepare", str(file), "--out", str(out), "--force"]


def write_csv(log: EventLog, order: str, path: Path) -> None:
    """The events with their own ids, in order of time or user."""
    rows = np.arange(len(log)) if order == "time" else np.argsort(log.user, kind="stable")
    with pa.csv.CSVWriter(
        path, pa.schema([("user_id", pa.int64()), ("item_id", pa.int64()), ("timestamp", pa.int64())])
    ) as file:
        for start in range(0, len(rows), PIECE):
            piece = rows[start : start + PIECE]
            columns = [
                log.user_ids.values[log.user[piece]],
                log.item_ids.values[log.item[piece]],
                log.time[piece].astype(np.int64),
            ]
            file.write(pa.table(columns, names=["user_id", "item_id", "timestamp"]))


def run(command: list[str]) -> tuple[float, int]:
    """(seconds, peak MiB) of a command that prints its own peak last."""
    start = time.monotonic()
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=Path(__file__).parent)
    if done.returncode:
        sys.exit(f"{command[3:]} failed: {done.stderr}")
    return time.monotonic() - start, int(done.stdout.split()[-1])


# As the verb is run, with its own peak printed at the end: what wait4 reports would include this process's.
DYNEDGE = """
import sys
from machine_info import peak_mib
from dynedge.cli import data, run
code = run(sys.argv[1:])
print(peak_mib())
sys.exit(code)
"""

# The same job as far as SQL takes it: no line numbers of bad values, no sha256, and columns left as a table on disk.
DUCKDB = """
import duckdb, sys
db = duckdb.connect(sys.argv[2] + "/peer.duckdb")
db.execute("set memory_limit = '3GB'")
db.execute("set temp_directory = '" + sys.argv[2] + "/peer.tmp'")
db.execute("create or replace table raw as select * from read_csv($file, header = true, store_rejects = true,"
           " columns = {'user_id': 'VARCHAR', 'item_id': 'VARCHAR', 'timestamp': 'DOUBLE'})", {"file": sys.argv[1]})
for side in ("user_id", "item_id"):
    db.execute(f"create or replace table {side}s as select {side}, row_number() over (order by first) - 1 as id"
               f" from (select {side}, min(rowid) as first from raw group by 1)")
db.execute("create or replace table log as select u.id::int as user, i.id::int as item, timestamp as time from raw"
           " join user_ids u using (user_id) join item_ids i using (item_id) order by timestamp, raw.rowid")
from machine_info import peak_mib
print(peak_mib())
"""

if __name__ == "__main__":
    main()
