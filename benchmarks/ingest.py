"""Speed and peak memory of `dynedge prepare`: a CSV file to a log folder.

    python benchmarks/ingest.py                       # 1 M, 10 M and 100 M rows
    python benchmarks/ingest.py --sizes 1e7 --peers   # compared with DuckDB, doing as much of the same work as it can
    python benchmarks/ingest.py --sizes 1e6 --readers # the readers alone, beside pyarrow and Polars, in turns

--readers reads a CSV and a JSON-lines file of the same rows into columns: user and item as text, time as a number, in
one process, every reader once per round; ours checks every value too, and keeps the line of each row.

The file has three columns: the events of a synthetic taobao-like log, ordered by `time` (already sorted) or by `user`
(one user after another, as MovieLens and Taobao are published, so that all rows must be sorted). The file is in the
page cache. Each measurement runs in a subprocess, so that time and memory are those of the whole command.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.json
from machine_info import describe_machine

from dynedge.data.ingest.readers import read_blocks
from dynedge.data.ingest.schema import Schema
from dynedge.data.ingest.time_parser import TIME_UNITS
from dynedge.data.log import EventLog
from dynedge.data.synthetic import synthesize

CHUNK_ROWS = 1 << 22


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", default="1e6,1e7,1e8", help="Numbers of rows, separated by commas.")
    parser.add_argument("--orders", default="time,user", help="Orders of the rows, separated by commas.")
    parser.add_argument("--folder", default=None, help="Folder for temporary files.")
    parser.add_argument("--peers", action="store_true", help="Comparison with DuckDB (extra `peers`).")
    parser.add_argument("--readers", action="store_true", help="Our readers beside pyarrow and Polars, reading only.")
    parser.add_argument("--rounds", type=int, default=7, help="Rounds of --readers.")
    args = parser.parse_args()
    if args.readers:
        compare_readers(int(float(args.sizes.split(",")[0])), args.rounds, args.folder)
        return
    print(f"{describe_machine()}; three-column CSV to a log: read, validated, sorted, ids encoded, hashed, synced")
    print(f"{'rows':>12} {'order':>6} {'MB':>6} {'system':>8} {'seconds':>8} {'M rows/s':>9} {'peak MiB':>9}")
    with tempfile.TemporaryDirectory(prefix="ingest-", dir=args.folder) as name:
        folder = Path(name)
        write_csv(synthesize("taobao-like", folder / "warm", events=1000), "user", folder / "warm.csv")
        run(prepare_command(folder / "warm.csv", folder / "warm-log"))  # compiles the kernels
        for size in args.sizes.split(","):
            source = synthesize("taobao-like", folder / "source", events=int(float(size)), force=True)
            for order in args.orders.split(","):
                file = folder / "events.csv"
                write_csv(source, order, file)
                commands = {"dynedge": prepare_command(file, folder / "log")}
                if args.peers:
                    commands["duckdb"] = [sys.executable, "-c", DUCKDB, str(file), str(folder)]
                for system, command in commands.items():
                    seconds, peak = run(command)
                    rate = len(source) / seconds / 1e6
                    mb = file.stat().st_size / 1e6
                    print(
                        f"{len(source):12,} {order:>6} {mb:6.0f} {system:>8} {seconds:8.1f} {rate:9.2f} {peak:9,}",
                        flush=True,
                    )


def compare_readers(rows: int, rounds: int, folder: str | None) -> None:
    """Prints the median time of every reader on a CSV file and on a JSON-lines file, and its ratio to ours."""
    with tempfile.TemporaryDirectory(prefix="ingest-", dir=folder) as name:
        csv, jsonl = Path(name) / "events.csv", Path(name) / "events.jsonl"
        write_csv(synthesize("taobao-like", Path(name) / "source", events=rows), "time", csv)
        with open(jsonl, "w") as file:
            for line in csv.read_text().splitlines()[1:]:
                user, item, moment = line.split(",")
                file.write(f'{{"user_id": "{user}", "item_id": "{item}", "timestamp": {moment}}}\n')
        readers = {
            "CSV": {"dynedge": read_ours, "pyarrow": read_pyarrow_csv, "polars": read_polars_csv},
            "JSON lines": {"dynedge": read_ours, "pyarrow": read_pyarrow_json, "polars": read_polars_json},
        }
        if find_spec("polars") is None:
            readers = {
                kind: {name: read for name, read in by.items() if name != "polars"} for kind, by in readers.items()
            }
        print(f"{describe_machine()}; {rows:,} rows, three columns, median of {rounds} rounds in turns")
        print(f"{'format':>10} {'reader':>8} {'seconds':>8} {'M rows/s':>9} {'times ours':>10}")
        for kind, path in (("CSV", csv), ("JSON lines", jsonl)):
            seconds: dict[str, list[float]] = {reader: [] for reader in readers[kind]}
            for number in range(rounds + 1):
                for reader, read in readers[kind].items():
                    start = time.perf_counter()
                    assert read(path) == rows
                    if number:  # the first round compiles and fills caches
                        seconds[reader].append(time.perf_counter() - start)
            ours = np.array(seconds["dynedge"])
            for reader, values in seconds.items():
                ratio, median = float(np.median(np.array(values) / ours)), float(np.median(values))
                print(f"{kind:>10} {reader:>8} {median:8.2f} {rows / median / 1e6:9.2f} {ratio:10.2f}", flush=True)


def read_ours(path: Path) -> int:
    rows = 0
    for block in read_blocks(path, Schema()):
        user, item, moment = block.columns
        user.check_ids(block.checks, 0, True)
        item.check_ids(block.checks, 1, True)
        moment.parse_times(block.checks, 2, TIME_UNITS["s"], np.empty(len(block)))
        rows += int(block.checks.valid.sum())
    return rows


TYPES = {"user_id": pa.string(), "item_id": pa.string(), "timestamp": pa.float64()}


def read_pyarrow_csv(path: Path) -> int:
    return pa.csv.read_csv(path, convert_options=pa.csv.ConvertOptions(column_types=TYPES)).num_rows


def read_pyarrow_json(path: Path) -> int:
    options = pa.json.ParseOptions(explicit_schema=pa.schema(list(TYPES.items())))
    return pa.json.read_json(path, parse_options=options).num_rows


def read_polars_csv(path: Path) -> int:
    import polars

    schema = {"user_id": polars.String, "item_id": polars.String, "timestamp": polars.Float64}
    return polars.read_csv(path, schema_overrides=schema).height


def read_polars_json(path: Path) -> int:
    import polars

    return polars.read_ndjson(
        path, schema=dict.fromkeys(("user_id", "item_id"), polars.String) | {"timestamp": polars.Float64}
    ).height


def prepare_command(file: Path, out: Path) -> list[str]:
    return [sys.executable, "-c", DYNEDGE, "prepare", str(file), "--out", str(out), "--force"]


def write_csv(log: EventLog, order: str, path: Path) -> None:
    """Writes the events with their external ids, ordered by time or by user."""
    rows = np.arange(len(log)) if order == "time" else np.argsort(log.user, kind="stable")
    with pa.csv.CSVWriter(
        path, pa.schema([("user_id", pa.int64()), ("item_id", pa.int64()), ("timestamp", pa.int64())])
    ) as file:
        for start in range(0, len(rows), CHUNK_ROWS):
            chunk = rows[start : start + CHUNK_ROWS]
            columns = [
                log.user_ids.values[log.user[chunk]],
                log.item_ids.values[log.item[chunk]],
                log.time[chunk].astype(np.int64),
            ]
            file.write(pa.table(columns, names=["user_id", "item_id", "timestamp"]))


def run(command: list[str]) -> tuple[float, int]:
    """Returns (seconds, peak MiB) of a command that prints its peak memory last."""
    start = time.monotonic()
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=Path(__file__).parent)
    if done.returncode:
        sys.exit(f"{command[3:]} failed: {done.stderr}")
    return time.monotonic() - start, int(done.stdout.split()[-1])


# The command with its peak memory printed at the end: what wait4 reports would include that of this process.
DYNEDGE = """
import sys
from machine_info import peak_memory_mib
from dynedge.cli import run
code = run(sys.argv[1:])
print(peak_memory_mib())
sys.exit(code)
"""

# The same work as far as SQL can do it: no line numbers of bad values, no sha256, and a table instead of columns.
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
from machine_info import peak_memory_mib
print(peak_memory_mib())
"""

if __name__ == "__main__":
    main()
