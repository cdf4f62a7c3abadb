"""The logs that benchmarks run on: real ones from ../shared/data if available, else synthetic ones."""

from __future__ import annotations

from pathlib import Path

from dynedge.data.ingest.pipeline import prepare
from dynedge.data.ingest.schema import Schema
from dynedge.data.log import EventLog
from dynedge.data.synthetic import synthesize

DATA = Path(__file__).resolve().parents[2] / "shared" / "data"
DATA_HELP = "Folder of NAME.parquet files with columns user, item, timestamp."


def load_log(name: str, folder: Path, data: Path = DATA, synthetic_events: int = 200_000) -> EventLog:
    """Prepares data/NAME.parquet into folder/NAME; without that file, generates a lastfm-like log there."""
    if (data / f"{name}.parquet").exists():
        return prepare(data / f"{name}.parquet", folder / name, Schema(user="user", item="item"))
    return synthesize("lastfm-like", folder / name, events=synthetic_events)
