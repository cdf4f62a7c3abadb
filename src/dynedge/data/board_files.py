"""Files of two leaderboards: the Temporal Graph Benchmark (TGB) and TGB-Seq, beyond their lists of edges.

TGB distributes negatives as pickles, which can run any code when they are loaded, so they are not loaded here.
CONVERT is a command that makes an .npz file of one, with the arrays `edges` int64[n, 3] (source, destination, time),
`counts` int64[n] and `negatives` int64[..]. TGB-Seq has the part of each edge in a column and 100 negatives of each
test edge in an .npy file.

A negative that is never a destination, so no item of the log, is stored as the item whose first event is the latest:
until then that one has no events either.
"""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Mapping
from fractions import Fraction
from pathlib import Path

import numpy as np
from numpy.lib import format as npy

from dynedge.data.id_index import IdIndex
from dynedge.data.log import EventLog
from dynedge.data.splits import Split
from dynedge.data.stored_negatives import StoredNegatives, write_negatives
from dynedge.errors import DataError
from dynedge.utils.array_type import Array

CONVERT = (
    "python -c \"import pickle, sys, numpy as np; d = pickle.load(open(sys.argv[1], 'rb')); "
    "v = [np.asarray(x, np.int64) for x in d.values()]; "
    "np.savez_compressed(sys.argv[1][:-4], edges=np.array(list(d), np.int64), counts=[len(x) for x in v], "
    'negatives=np.concatenate(v))" '
)
SPLIT_COLUMN, TIME_COLUMN = "split", "time"  # of TGB-Seq
PARTS = "val", "test"  # as TGB names them
# What reading a file that is no archive of arrays raises; a pickle is refused by a ValueError.
UNREADABLE = OSError, ValueError, EOFError, KeyError, RuntimeError, zipfile.BadZipFile, zlib.error


# ---- TGB-Seq


def tgb_seq_split(file: Path) -> Split:
    """Returns the split of a TGB-Seq file; DataError unless its parts follow each other in time."""
    part, time = _split_and_time(file)
    sizes = [int((part == number).sum()) for number in range(3)]
    if sum(sizes) != len(part) or not len(part):
        raise DataError(f"{file}: the column '{SPLIT_COLUMN}' should be 0 (training), 1 (validation) or 2 (test).")
    in_log_order = part[np.argsort(time, kind="stable")].astype(np.int64)
    if len(late := np.flatnonzero(np.diff(in_log_order) < 0)):
        before, after = in_log_order[late[0] : late[0] + 2]
        raise DataError(f"{file}: a row with {SPLIT_COLUMN} {before} is earlier than one with {after}.")
    return Split(*(Fraction(size, len(part)) for size in sizes))  # type: ignore[arg-type]


def add_tgb_seq_negatives(log: EventLog, file: Path) -> str:
    """Stores the negatives of NAME_test_ns.npy, beside NAME.csv, with its log; returns a line about it."""
    stored = file.with_name(f"{file.stem}_test_ns.npy")
    if not stored.is_file():
        write_negatives(log, StoredNegatives(len(log), np.zeros(1, np.int64), np.empty(0, np.int32)))
        return f"{stored} is missing: --protocol tgb will sample 100 negatives of test events, not the board's."
    part, time = _split_and_time(file)
    try:
        negatives = npy.open_memmap(stored, mode="r")
    except (OSError, ValueError, EOFError):
        raise DataError(f"{stored} is not an array file of numpy; download it again.") from None
    test = np.flatnonzero(part == 2)
    if negatives.ndim != 2 or len(negatives) != len(test) or negatives.dtype.kind not in "iu" or not negatives.size:
        raise DataError(f"{stored} should have a row of item ids for each of the {len(test):,} test rows of {file}.")
    if len(log) != len(part):
        raise DataError(
            f"{file}: {len(part) - len(log):,} rows were rejected, so {stored.name} does not fit the log."
        )
    in_log_order = negatives[np.argsort(time[test], kind="stable")]
    items, unknown = _as_items(in_log_order.ravel(), _numbers(log.item_ids), log)
    offsets = np.arange(len(test) + 1, dtype=np.int64) * negatives.shape[1]
    write_negatives(log, StoredNegatives(len(log) - len(test), offsets, items))
    return f"stored {negatives.shape[1]} negatives of each of {len(test):,} test events{unknown}."


def _split_and_time(file: Path) -> tuple[Array, Array]:
    from pyarrow import ArrowException, csv

    try:
        options = csv.ConvertOptions(include_columns=[SPLIT_COLUMN, TIME_COLUMN])
        table = csv.read_csv(file, convert_options=options)
        columns = [table.column(name).to_numpy() for name in (SPLIT_COLUMN, TIME_COLUMN)]
    except (ArrowException, OSError, KeyError) as error:
        reason = str(error).splitlines()[0]
        raise DataError(f"{file} has no readable columns '{SPLIT_COLUMN}' and '{TIME_COLUMN}': {reason}.") from None
    if columns[1].dtype.kind not in "iuf" or np.isnan(columns[1]).any():
        raise DataError(f"{file}: the column '{TIME_COLUMN}' has values that are not numbers.")
    return columns[0], columns[1]


def _numbers(ids: IdIndex) -> Array:
    """int64[..]: ids as numbers, in the order of the index; DataError if they are not numbers."""
    if ids.are_strings:
        raise DataError("the ids are not whole numbers, so the negatives do not fit them.")
    return np.asarray(ids.values, np.int64)


def _as_items(numbers: Array, of_items: Array, log: EventLog) -> tuple[Array, str]:
    """(int32[..], text): the items with these numbers, `of_items` being theirs, and the count of those unknown."""
    order = np.argsort(of_items)
    at = np.minimum(np.searchsorted(of_items, numbers, sorter=order), len(order) - 1)
    items = order[at].astype(np.int32)
    is_unknown = of_items[items] != numbers
    if is_unknown.all() and len(items):
        raise DataError(f"none of the negatives is an item of {log.path}: they are of another data set.")
    items[is_unknown] = log.num_items - 1
    count = int(is_unknown.sum())
    return items, f", of which {count:,} are no items of the log" if count else ""


# ---- TGB


def add_tgb_negatives(log: EventLog, file: Path) -> str:
    """Stores the negatives beside NAME_edgelist[_v2].csv with its log; returns a line about it.

    They are those of NAME_val_ns[_v2].npz and NAME_test_ns[_v2].npz.
    """
    files = [file.with_name(file.stem.replace("_edgelist", f"_{part}_ns") + ".npz") for part in PARTS]
    if not all(path.is_file() for path in files):
        pickles = " ".join(str(path.with_suffix(".pkl")) for path in files)
        return (
            "the board's negatives are not stored: --protocol tgb will rank among all items but the user's others of "
            f"the same time. Convert their files and prepare again: for f in {pickles}; do {CONVERT}$f; done"
        )
    parts = [read_converted(path) for path in files]
    first = log.split.bounds(len(log))[0]
    stored = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    counts, items, unknown = _of_events(log, first, stored)
    write_negatives(log, StoredNegatives(first, np.append(0, np.cumsum(counts)), items))
    return f"stored {len(items):,} negatives of {len(counts):,} validation and test events{unknown}."


def read_converted(path: Path) -> dict[str, Array]:
    """Returns the arrays of a file that CONVERT wrote; DataError if it is none."""
    try:
        with zipfile.ZipFile(path) as archive:
            arrays = {name: _read_array(archive, name) for name in ("edges", "counts", "negatives")}
        counts, negatives = arrays["counts"], arrays["negatives"]
        sound = (
            counts.ndim == 1
            and arrays["edges"].shape == (len(counts), 3)
            and bool((counts >= 0).all())
            and bool((counts <= len(negatives)).all())
            and negatives.shape == (counts.sum(),)
        )
    except UNREADABLE:
        sound = False
    if not sound:
        raise DataError(f"{path} is not a converted file of negatives; convert the pickle with: {CONVERT}FILE")
    return arrays


def _read_array(archive: zipfile.ZipFile, name: str) -> Array:
    """int64[..]: an array of an .npz file, which has at least one dimension; ValueError if it is none."""
    with archive.open(f"{name}.npy") as file:
        array: Array = npy.read_array(file, allow_pickle=False)
    if not array.ndim or array.dtype.kind not in "iu":
        raise ValueError
    return array.astype(np.int64)


def _of_events(log: EventLog, first: int, stored: Mapping[str, Array]) -> tuple[Array, Array, str]:
    """The number of negatives of each event from position `first` on, these as items, and the text of `_as_items`."""
    users, items = node_numbers(log)
    keys = np.stack(
        [users[log.user[first:]], items[log.item[first:]], np.asarray(log.time[first:]).astype(np.int64)], 1
    )
    unique, inverse = np.unique(np.concatenate([stored["edges"], keys]), axis=0, return_inverse=True)
    row_of = np.full(len(unique), -1)
    row_of[inverse[: len(stored["edges"])]] = np.arange(len(stored["edges"]))
    row = row_of[inverse[len(stored["edges"]) :]]
    if (missing := int((row < 0).sum())) or not len(row):
        raise DataError(
            f"{missing:,} of {len(row):,} events of {log.path} are not in the board's files of negatives."
        )
    counts, starts = stored["counts"][row], (np.cumsum(stored["counts"]) - stored["counts"])[row]
    within = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
    negatives = stored["negatives"][np.repeat(starts, counts) + within]
    return counts, *_as_items(negatives, items, log)


def node_numbers(log: EventLog) -> tuple[Array, Array]:
    """int64[users], int64[items]: their node numbers as `py-tgb` assigns them.

    In tgbl-wiki an item's number is its id plus the number of users; elsewhere nodes are numbered as they appear.
    """
    if log.metadata["source"]["dataset"] == "tgbl-wiki":
        sources, destinations = _numbers(log.user_ids), _numbers(log.item_ids)
        return sources, destinations + sources.max() + 1
    users, items = log.user_ids.decoded, log.item_ids.decoded
    appearance: dict[str, int] = {}
    for ids, column, side in ((users, log.user, 0), (items, log.item, 1)):
        first = np.unique(column, return_index=True)[1]
        for name, position in zip(ids, first.tolist(), strict=True):
            appearance[str(name)] = min(appearance.get(str(name), 2 * len(log)), 2 * position + side)
    number = {name: k for k, name in enumerate(sorted(appearance, key=appearance.__getitem__))}
    return tuple(np.array([number[str(name)] for name in ids], np.int64) for ids in (users, items))  # type: ignore[return-value]
