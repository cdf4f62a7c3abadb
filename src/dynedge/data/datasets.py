"""Known public logs, read exactly as their publishers ship them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from dynedge.data.ingest.readers import Schema
from dynedge.data.log import EventLog
from dynedge.errors import DataError, UsageError


@dataclass(frozen=True)
class Counts:
    """What somebody says the log holds."""

    who: str
    users: int
    items: int
    events: int

    def differs(self, log: EventLog) -> str:
        """ "" if the log is as said, else what is not."""
        have = {"users": log.num_users, "items": log.num_items, "events": len(log)}
        said = {"users": self.users, "items": self.items, "events": self.events}
        return ", ".join(f"{have[key]:,} {key} instead of {said[key]:,}" for key in said if have[key] != said[key])


@dataclass(frozen=True)
class Dataset:
    title: str
    file: str  # the publisher's name for the file; a folder that holds it will do
    where: str  # where a person gets it
    schema: Schema
    split: str
    counts: tuple[Counts, ...]  # the publisher's first: that is what the file should hold

    def find(self, path: Path) -> Path:
        """The file itself, or the file of the known name in a folder."""
        if path.is_dir():
            for found in (path / self.file, *sorted(path.glob(f"*/{self.file}"))):
                if found.is_file():
                    return found
            raise DataError(f"{path} holds no {self.file}; get it from {self.where}.")
        return path

    def complaint(self, log: EventLog) -> str:
        """A sentence if the file is not what was published, else ""."""
        differs = [counts.differs(log) for counts in self.counts]
        if not all(differs):
            return ""
        return f"this file is not {self.title} as published: it has {differs[0]} ({self.counts[0].who})."


_JODIE = "snap.stanford.edu/jodie"
_GROUPLENS = "grouplens.org/datasets/movielens"

# A header with four names and one more for a list of features, then rows with any number of features.
_JODIE_SCHEMA = Schema(
    time="timestamp",
    label="state_label",
    names=("user_id", "item_id", "timestamp", "state_label", "feature"),
    delimiter=",",
    time_unit="s",
    rest_are_features=True,
)


def _jodie(title: str, file: str, users: int, items: int, events: int, paper: Counts | None = None) -> Dataset:
    counts = (Counts("the publisher", users, items, events), *([paper] if paper else []))
    return Dataset(title, file, f"{_JODIE}/{file}", _JODIE_SCHEMA, "0.8,0.1,0.1", counts)


def _ratings(delimiter: str, names: tuple[str, ...] | None = None) -> Schema:
    user, item, rating, time = names or ("userId", "movieId", "rating", "timestamp")
    return Schema(user=user, item=item, time=time, label=rating, names=names, delimiter=delimiter, time_unit="s")


_RATING_NAMES = ("user_id", "item_id", "rating", "timestamp")


def _movielens(name: str, file: str, schema: Schema, users: int, items: int, events: int, *more: Counts) -> Dataset:
    split = "0.7,0.1,0.2" if name == "25M" else "0.8,0.1,0.1"
    counts = (Counts("the publisher", users, items, events), *more)
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
        Counts("the EDGE paper", 162_538, 59_048, 24_999_849),
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
            Counts("the publisher", 987_994, 4_162_024, 100_150_807),
            Counts("the EDGE paper", 987_975, 4_111_798, 96_678_667),
        ),
    ),
}


def dataset(name: str) -> Dataset:
    if name not in DATASETS:
        raise UsageError(f"--dataset {name!r} is not known; these are: {', '.join(DATASETS)}.")
    return DATASETS[name]
