"""`dynedge prepare` with another tokenizer of delimited text, for benchmarks/ingest.py --tokenizers.

    python benchmarks/csv_tokenizers.py pyarrow prepare events.csv --out LOG

`pyarrow` is pyarrow.csv; `python` is the csv module, which would have to read blocks with quotes or bad rows again.
Both read only what the benchmark writes, without quotes and bad rows: their times are the least that they could take.
Prints the peak memory last.
"""

from __future__ import annotations

import csv
import sys
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
from machine_info import peak_memory_mib

from dynedge.cli import run
from dynedge.data.ingest import text_reader
from dynedge.data.ingest.arrow_columns import text_column
from dynedge.data.ingest.row_checks import RowChecks
from dynedge.data.ingest.schema import Block


def pyarrow_columns(text: bytes, names: list[str], delimiter: str) -> list[Any]:
    table = pa.csv.read_csv(
        pa.BufferReader(text),
        pa.csv.ReadOptions(use_threads=False, block_size=len(text) + 1, column_names=names),
        pa.csv.ParseOptions(delimiter=delimiter),
        pa.csv.ConvertOptions(check_utf8=False, column_types=dict.fromkeys(names, pa.large_binary())),
    )
    return [column.combine_chunks() for column in table.columns]


def python_columns(text: bytes, names: list[str], delimiter: str) -> list[Any]:
    rows = csv.reader(text.decode("latin-1").splitlines(), delimiter=delimiter, strict=True)
    return [
        pa.array([field.encode("latin-1") for field in column], pa.large_binary())
        for column in zip(*rows, strict=True)
    ]


TOKENIZERS = {"pyarrow": pyarrow_columns, "python": python_columns}


def blocks(self: Any, text: bytes, final: bool, line: int) -> tuple[list[Block], int, int]:
    """In the place of text_reader.DelimitedText.blocks."""
    used = len(text) if final else text.rfind(b"\n") + 1
    if not used:
        return [], 0, line
    fields = tokenize(text[:used], [str(k) for k in range(len(self.names))], chr(self.delimiter[0]))
    columns = [text_column(fields[int(np.flatnonzero(self.slot == slot)[0])]) for slot in range(self.slots)]
    rows = len(fields[0])
    checks, lines = RowChecks.from_status(np.zeros(rows, np.uint8)), np.arange(line, line + rows)
    return [Block(str(self.path), columns, lines, checks, lambda row: "", None, 0, 0)], used, line + rows


if __name__ == "__main__":
    tokenize = TOKENIZERS[sys.argv[1]]
    text_reader.DelimitedText.blocks = blocks  # type: ignore[method-assign]
    code = run(sys.argv[2:])
    print(peak_memory_mib())
    sys.exit(code)
