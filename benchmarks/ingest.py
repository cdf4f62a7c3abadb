"""Speed and peak memory of `dynedge prepare`: a CSV file to a log folder.

    python benchmarks/ingest.py                       # 1 M, 10 M and 100 M rows
    python benchmarks/ingest.py --sizes 1e7 --peers   # compared with DuckDB, doing as much of the same work as it can
    python benchmarks/ingest.py --sizes 1e7 --formats csv,jsonl       # JSON lines too
    python benchmarks/ingest.py --sizes 1e7 --tokenizers --rounds 3   # with other tokenizers of CSV in our place
    python benchmarks/ingest.py --sizes 1e6 --readers                 # the readers alone, beside pyarrow and Polars

--tokenizers runs the whole command with its own tokenizer, with pyarrow.csv and with Python's csv module in turns
(benchmarks/csv_tokenizers.py). Of several rounds the smallest times are printed, and the largest memory.

--readers reads a CSV and a JSON-lines file of the same rows into columns: user and item as text, time as a number, in
one process, every reader once per round; ours checks every value too, and keeps the line of each row.

The file has three columns: the events of a synthetic taobao-like log, ordered by `time` (already sorted) or by `user`
(one user after another, as MovieLens and Taobao are published, so that all rows must be sorted). The file is in the
page cache. Each measurement runs in a subprocess, so that time and memory are those of the whole command; CPU seconds
are those of all its threads.
"""

from __future__ import annotations

import argparse
import resource
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
    parser.add_argument("--formats", default="csv", help="csv, jsonl or both, separated by commas.")
    parser.add_argument("--folder", default=None, help="Folder for temporary files.")
    parser.add_argument("--peers", action="store_true", help="Comparison with DuckDB (extra `peers`).")
    parser.add_argument("--readers", action="store_true", help="Our readers beside pyarrow and Polars, reading only.")
    parser.add_argument("--tokenizers", action="store_true", help="Other tokenizers in the place of our own.")
    parser.add_argument("--rounds", type=int, default=None, help="Runs of each, in turns; 1, or 7 with --readers.")
    args = parser.parse_args()
    if args.readers:
        compare_readers(int(float(args.sizes.split(",")[0])), args.rounds or 7, args.folder)
        return
    print(f"{describe_machine()}; three columns to a log: read, validated, sorted, ids encoded, hashed, synced")
    start = f"{'rows':>12} {'order':>6} {'format':>6} {'MB':>6} {'system':>8}"
    print(f"{start} {'seconds':>8} {'CPU s':>6} {'M rows/s':>9} {'MiB':>6}")
    with tempfile.TemporaryDirectory(prefix="ingest-", dir=args.folder) as name:
        folder = Path(name)
        write_csv(synthesize("taobao-like", folder / "warm", events=1000), "user", folder / "warm.csv")
        write_jsonl(folder / "warm.csv", folder / "warm.jsonl")
        for kind in args.formats.split(","):
            for command in commands(folder / f"warm.{kind}", folder, args).values():
                run(command)  # compiles the kernels
        for size in args.sizes.split(","):
            source = synthesize("taobao-like", folder / "source", events=int(float(size)), force=True)
            for order in args.orders.split(","):
                write_csv(source, order, folder / "events.csv")
                for kind in args.formats.split(","):
                    file = folder / f"events.{kind}"
                    if kind == "jsonl":
                        write_jsonl(folder / "events.csv", file)
                    measure(file, len(source), order, commands(file, folder, args), args.rounds or 1)


def commands(file: Path, folder: Path, args: argparse.Namespace) -> dict[str, list[str]]:
    """The commands to compare on a file, by system."""
    ours = ["prepare", str(file), "--out", str(folder / "log"), "--force"]
    compared = {"dynedge": [sys.executable, "-c", DYNEDGE, *ours]}
    if args.tokenizers and file.suffix == ".csv":
        compared |= {name: [sys.executable, "csv_tokenizers.py", name, *ours] for name in ("pyarrow", "python")}
    if args.peers and file.suffix == ".csv":
        compared["duckdb"] = [sys.executable, "-c", DUCKDB, str(file), str(folder)]
    return compared


def measure(file: Path, rows: int, order: str, compared: dict[str, list[str]], rounds: int) -> None:
    """Runs the commands in turns and prints the smallest times and the largest memory of each."""
    results: dict[str, list[tuple[float, float, int]]] = {system: [] for system in compared}
    for _ in range(rounds):
        for system, command in compared.items():
            results[system].append(run(command))
    for system, values in results.items():
        seconds, cpu, peak = min(v[0] for v in values), min(v[1] for v in values), max(v[2] for v in values)
        start = f"{rows:12,} {order:>6} {file.suffix[1:]:>6} {file.stat().st_size / 1e6:6.0f} {system:>8}"
        print(f"{start} {seconds:8.1f} {cpu:6.1f} {rows / seconds / 1e6:9.2f} {peak:6,}", flush=True)


def compare_readers(rows: int, rounds: int, folder: str | None) -> None:
    """Prints the median time of every reader on a CSV file and on a JSON-lines file, and its ratio to ours."""
    with tempfile.TemporaryDirectory(prefix="ingest-", dir=folder) as name:
        csv, jsonl = Path(name) / "events.csv", Path(name) / "events.jsonl"
        write_csv(synthesize("taobao-like", Path(name) / "source", events=rows), "time", csv)
        write_jsonl(csv, jsonl)
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


def write_jsonl(csv: Path, path: Path) -> None:
    """Writes the rows of a CSV file as JSON lines, ids as strings."""
    with open(csv) as lines, open(path, "w") as file:
        next(lines)
        for line in lines:
            user, item, moment = line.rstrip("\n").split(",")
            file.write(f'{{"user_id": "{user}", "item_id": "{item}", "timestamp": {moment}}}\n')


def run(command: list[str]) -> tuple[float, float, int]:
    """Returns (seconds, CPU seconds, peak MiB) of a command that prints its peak memory last."""
    start, cpu = time.monotonic(), children_cpu_seconds()
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=Path(__file__).parent)
    if done.returncode:
        sys.exit(f"{command[3:]} failed: {done.stderr}")
    return time.monotonic() - start, children_cpu_seconds() - cpu, int(done.stdout.split()[-1])


def children_cpu_seconds() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


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
