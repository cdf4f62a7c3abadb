"""Files of two leaderboards: the Temporal Graph Benchmark (TGB) and TGB-Seq, beyond their lists of edges.

TGB distributes negatives as pickles, which can run any code when they are loaded, so they are not loaded here.
CONVERT is a command that makes an .npz file of one, with the arrays `edges` int64[n, 3] (source, destination, time),
`counts` int64[n] and `negatives` int64[..]. TGB-Seq has the part of each edge in a column and 100 negatives of each
test edge in an .npy file.

A negative that is never a destination, so no item of the log, is stored as the item whose first event is the latest:
until then that one has no events either.
"""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from pathlib import Path

import numpy as np

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


# ---- TGB-Seq


def tgb_seq_split(file: Path) -> Split:
    """Returns the split of a TGB-Seq file; DataError unless its parts follow each other in time."""
    part, time = _split_and_time(file)
    sizes = [int((part == number).sum()) for number in range(3)]
    if sum(sizes) != len(part) or not len(part):
        raise DataError(f"{file}: the column '{SPLIT_COLUMN}' should be 0 (training), 1 (validation) or 2 (test).")
    for before, after in ((0, 1), (1, 2)):
        if sizes[before] and sizes[after] and time[part == before].max() > time[part == after].min():
            raise DataError(f"{file}: a row with {SPLIT_COLUMN} {after} is earlier than one with {before}.")
    return Split(*(Fraction(size, len(part)) for size in sizes))  # type: ignore[arg-type]


def add_tgb_seq_negatives(log: EventLog, file: Path) -> str:
    """Stores the negatives of NAME_test_ns.npy, beside NAME.csv, with its log; returns a line about it."""
    stored = file.with_name(f"{file.stem}_test_ns.npy")
    if not stored.is_file():
        write_negatives(log, StoredNegatives(len(log), np.zeros(1, np.int64), np.empty(0, np.int32)))
        return f"{stored} is missing: --protocol tgb will sample 100 negatives of test events, not the board's."
    part, time = _split_and_time(file)
    try:
        negatives = np.load(stored, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError, EOFError):
        raise DataError(f"{stored} is not an array file of numpy; download it again.") from None
    test = np.flatnonzero(part == 2)
    if negatives.ndim != 2 or len(negatives) != len(test) or negatives.dtype.kind not in "iu":
        raise DataError(f"{stored} should have a row of item ids for each of the {len(test):,} test rows of {file}.")
    if len(log) != len(part):
        raise DataError(
            f"{file}: {len(part) - len(log):,} rows were rejected, so {stored.name} does not fit the log."
        )
    in_log_order = negatives[np.argsort(time[test], kind="stable")]
    items = _known(_rows_of_ids(log, in_log_order.ravel()), log)
    offsets = np.arange(len(test) + 1, dtype=np.int64) * negatives.shape[1]
    write_negatives(log, StoredNegatives(len(log) - len(test), offsets, items))
    return f"stored {negatives.shape[1]} negatives of each of {len(test):,} test events."


def _split_and_time(file: Path) -> tuple[Array, Array]:
    from pyarrow import ArrowException, csv

    try:
        options = csv.ConvertOptions(include_columns=[SPLIT_COLUMN, TIME_COLUMN])
        table = csv.read_csv(file, convert_options=options)
        columns = [table.column(name).to_numpy() for name in (SPLIT_COLUMN, TIME_COLUMN)]
    except (ArrowException, OSError, KeyError) as error:
        reason = str(error).splitlines()[0]
        raise DataError(f"{file} has no readable columns '{SPLIT_COLUMN}' and '{TIME_COLUMN}': {reason}.") from None
    return columns[0], columns[1]


def _rows_of_ids(log: EventLog, ids: Array) -> Array:
    """int64[..]: the items with these integer ids; −1: no item of the log."""
    if log.item_ids.are_strings:
        raise DataError("the item ids are not numbers, so the negatives do not fit them.")
    known = np.asarray(log.item_ids.values)
    order = np.argsort(known)
    at = np.minimum(np.searchsorted(known[order], ids), len(known) - 1)
    return np.where(known[order][at] == ids, order[at], -1)


def _known(items: Array, log: EventLog) -> Array:
    return np.where(items < 0, log.num_items - 1, items).astype(np.int32)


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
    parts = [_read_converted(path) for path in files]
    first = log.split.bounds(len(log))[0]
    counts, items = _of_events(log, first, {name: np.concatenate([p[name] for p in parts]) for name in parts[0]})
    write_negatives(log, StoredNegatives(first, np.append(0, np.cumsum(counts)), items))
    return f"stored {len(items):,} negatives of {len(counts):,} validation and test events."


def _read_converted(path: Path) -> dict[str, Array]:
    try:
        with np.load(path, allow_pickle=False) as file:
            arrays = {name: file[name].astype(np.int64) for name in ("edges", "counts", "negatives")}
        if arrays["edges"].shape != (len(arrays["counts"]), 3) or arrays["counts"].sum() != len(arrays["negatives"]):
            raise ValueError
    except (OSError, ValueError, EOFError, KeyError):
        raise DataError(
            f"{path} is not a converted file of negatives; convert the pickle with: {CONVERT}FILE"
        ) from None
    return arrays


def _of_events(log: EventLog, first: int, stored: Mapping[str, Array]) -> tuple[Array, Array]:
    """The number of negatives of each event from position `first` on, and these negatives as items of the log."""
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
    item_of = np.full(max(int(negatives.max(initial=0)), int(items.max(initial=0))) + 1, -1)
    item_of[items] = np.arange(len(items))
    return counts, _known(item_of[negatives], log)


def node_numbers(log: EventLog) -> tuple[Array, Array]:
    """int64[users], int64[items]: their node numbers as `py-tgb` assigns them.

    In tgbl-wiki an item's number is its id plus the number of users; elsewhere nodes are numbered as they appear.
    """
    users, items = log.user_ids.decoded, log.item_ids.decoded
    if log.metadata["source"]["dataset"] == "tgbl-wiki":
        return np.array(users, np.int64), np.array(items, np.int64) + max(users) + 1  # type: ignore[type-var, operator]
    appearance: dict[str, int] = {}
    for ids, column, side in ((users, log.user, 0), (items, log.item, 1)):
        first = np.unique(column, return_index=True)[1]
        for name, position in zip(ids, first.tolist(), strict=True):
            appearance[str(name)] = min(appearance.get(str(name), 2 * len(log)), 2 * position + side)
    number = {name: k for k, name in enumerate(sorted(appearance, key=appearance.__getitem__))}
    return tuple(np.array([number[str(name)] for name in ids], np.int64) for ids in (users, items))  # type: ignore[return-value]
