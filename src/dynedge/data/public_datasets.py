"""Public data sets, read in the format in which their publishers distribute them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from dynedge.data.ingest.schema import Schema
from dynedge.data.log import EventLog
from dynedge.errors import DataError, UsageError


@dataclass(frozen=True)
class PublishedCounts:
    """Users, items and events of a data set, according to a source."""

    source: str
    users: int
    items: int
    events: int

    def difference(self, log: EventLog) -> str:
        """Returns the counts in which a log differs, as text; empty if it matches."""
        pairs = {
            "users": (log.num_users, self.users),
            "items": (log.num_items, self.items),
            "events": (len(log), self.events),
        }
        return ", ".join(
            f"{actual:,} {name} instead of {published:,}"
            for name, (actual, published) in pairs.items()
            if actual != published
        )


@dataclass(frozen=True)
class Dataset:
    """A public data set: its file, format, default split and published counts."""

    title: str
    file: str  # the publisher's file name
    where: str  # download address
    schema: Schema
    split: str
    counts: tuple[PublishedCounts, ...]  # the publisher's first

    def find(self, path: Path) -> Path:
        """Returns the data set's file: `path` itself, or the file of the publisher's name in the folder `path`."""
        if path.is_dir():
            for file in (path / self.file, *sorted(path.glob(f"*/{self.file}"))):
                if file.is_file():
                    return file
            raise DataError(f"{path} contains no {self.file}; download it from {self.where}.")
        return path

    def mismatch(self, log: EventLog) -> str:
        """Returns a sentence if the log has none of the published counts, else an empty string."""
        differences = [counts.difference(log) for counts in self.counts]
        if not all(differences):
            return ""
        return f"this file is not {self.title} as published: it has {differences[0]} ({self.counts[0].source})."


_JODIE = "snap.stanford.edu/jodie"
_GROUPLENS = "grouplens.org/datasets/movielens"

# The header names four columns and a list of features; the rows have any number of features.
_JODIE_SCHEMA = Schema(
    time="timestamp",
    label="state_label",
    names=("user_id", "item_id", "timestamp", "state_label", "feature"),
    delimiter=",",
    time_unit="s",
    rest_are_features=True,
)


def _jodie(
    title: str, file: str, users: int, items: int, events: int, paper: PublishedCounts | None = None
) -> Dataset:
    counts = (PublishedCounts("the publisher", users, items, events), *([paper] if paper else []))
    return Dataset(title, file, f"{_JODIE}/{file}", _JODIE_SCHEMA, "0.8,0.1,0.1", counts)


def _ratings(delimiter: str, names: tuple[str, ...] | None = None) -> Schema:
    user, item, rating, time = names or ("userId", "movieId", "rating", "timestamp")
    return Schema(user=user, item=item, time=time, label=rating, names=names, delimiter=delimiter, time_unit="s")


_RATING_NAMES = ("user_id", "item_id", "rating", "timestamp")


def _movielens(
    name: str, file: str, schema: Schema, users: int, items: int, events: int, *more: PublishedCounts
) -> Dataset:
    split = "0.7,0.1,0.2" if name == "25M" else "0.8,0.1,0.1"
    counts = (PublishedCounts("the publisher", users, items, events), *more)
    return Dataset(f"MovieLens {name}", file, f"{_GROUPLENS}/{name.lower()}", schema, split, counts)


DATASETS: dict[str, Dataset] = {
    "wikipedia": _jodie("Wikipedia edits (JODIE)", "wikipedia.csv", 8_227, 1_000, 157_474),
    "reddit": _jodie("Reddit posts (JODIE)", "reddit.csv", 10_000, 984, 672_447),
    # The paper's Table 1 prints users and items of LastFM the other way round.
    "lastfm": _jodie("LastFM listens (JODIE)", "lastfm.csv", 980, 1_000, 1_293_103),
    "mooc": _jodie("MOOC actions (JODIE)", "mooc.csv", 7_047, 97, 411_749),
    "ml-100k": _movielens("100K", "u.data", _ratings("\t", _RATING_NAMES), 943, 1_682, 100_000),
    "ml-1m": _movielens("1M", "ratings.dat", _ratings("::", _RATING_NAMES), 6_040, 3_706, 1_000_209),
    "ml-10m": _movielens("10M", "ratings.dat", _ratings("::", _RATING_NAMES), 69_878, 10_677, 10_000_054),
    "ml-20m": _movielens("20M", "ratings.csv", _ratings(","), 138_493, 26_744, 20_000_263),
    "ml-25m": _movielens(
        "25M",
        "ratings.csv",
        _ratings(","),
        162_541,
        59_047,
        25_000_095,
        PublishedCounts("the EDGE paper", 162_538, 59_048, 24_999_849),
    ),
    "taobao": Dataset(
        "Taobao user behaviour",
        "UserBehavior.csv",
        "tianchi.aliyun.com/dataset/649",
        Schema(
            label="behaviour",
            item_features=("category",),
            names=("user_id", "item_id", "category", "behaviour", "timestamp"),
            delimiter=",",
            time_unit="s",
            label_codes=("pv", "cart", "fav", "buy"),
        ),
        "0.7,0.1,0.2",
        (
            PublishedCounts("the publisher", 987_994, 4_162_024, 100_150_807),
            PublishedCounts("the EDGE paper", 987_975, 4_111_798, 96_678_667),
        ),
    ),
}


def find_dataset(name: str) -> Dataset:
    """Returns a data set by name; UsageError for an unknown name."""
    if name not in DATASETS:
        raise UsageError(f"--dataset {name!r} is unknown; choose one of: {', '.join(DATASETS)}.")
    return DATASETS[name]
